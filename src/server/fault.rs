//! What a call came to, where it is no answer.

use std::fmt;

use crate::error::{Cause, Error};

/// What a call came to, where it is no answer.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// It did not run, and may run later: no connection, or an answer that says "not now".
    NotNow(Cause),
    /// It was sent, and no answer came: it may have run, and may yet run.
    NoAnswer(Cause),
    /// It ran, and did not become as safe as was asked: what it did is to be undone, or not counted.
    Unsafe(Error),
    /// It did not run, and will not.
    Never(Error),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotNow(cause) | Self::NoAnswer(cause) => cause.fmt(f),
            Self::Unsafe(error) | Self::Never(error) => error.fmt(f),
        }
    }
}
