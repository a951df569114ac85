//! What is special of several independent servers that keep each lock: no I/O, no clock.

pub(crate) mod messages;
