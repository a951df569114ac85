//! Several independent servers that keep each lock. No I/O, no clock.

pub(crate) mod commands;
pub(crate) mod messages;
pub(crate) mod round;
mod rounds;
mod tokens;
pub(crate) mod votes;
