//! The votes of the servers of a quorum, and the tokens that a client proposes to them. The
//! arithmetic is that of `redis/quorum`.

pub(crate) use crate::redis::quorum::tokens::Tokens;
pub(crate) use crate::redis::quorum::votes::{Majority, Verdict, Votes};
