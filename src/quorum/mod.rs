//! Several independent servers that keep each lock. No I/O, no clock.

pub(crate) mod messages;
