//! Assertions about the outcomes of calls.

use leasehold::Error;

/// Fails the test unless the lock or permit was still held when it was released.
#[track_caller]
pub fn assert_released(outcome: Result<(), Error>) {
    outcome.unwrap();
}

/// Returns the message of an `Unreachable` error; fails the test on any other outcome.
#[track_caller]
pub fn expect_unreachable<T>(answer: Result<T, Error>) -> String {
    match answer {
        Err(error) if error.is_unreachable() => error.to_string(),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("the call succeeded, but no server can reply"),
    }
}
