//! Assertion for calls whose servers do not reply.

use leasehold::Error;

/// Returns the message of an `Unreachable` error; fails the test on any other outcome.
#[track_caller]
pub fn expect_unreachable<T>(answer: Result<T, Error>) -> String {
    match answer {
        Err(error @ Error::Unreachable { .. }) => error.to_string(),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("the call succeeded, but no server can reply"),
    }
}
