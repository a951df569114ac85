//! What a call says whose servers give no answer.

use leasehold::Error;

/// Fails the test unless the call came to this. Returns what it says.
#[track_caller]
pub fn is_unreachable<T>(answer: Result<T, Error>) -> String {
    match answer {
        Err(error @ Error::Unreachable { .. }) => error.to_string(),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("an answer, where none can come"),
    }
}
