//! leasehold's own connection to a server: its socket, its bounded buffer, and absolute deadlines.
//!
//! The connection of the `redis` crate hides its socket and its buffer, its parser has no limits,
//! and its timeouts start again with every read. Here every call has one deadline, by which it ends
//! whatever the peer does. The `redis` crate still packs the commands and parses the replies, after
//! [`frame`] has found each reply to be complete and within the limits.

pub(crate) mod call_queue;
pub(crate) mod callers;
pub(crate) mod combined_call;
pub(crate) mod connection;
pub(crate) mod connector;
pub(crate) mod dial;
pub(crate) mod dialer;
pub(crate) mod frame;
pub(crate) mod handshake;
pub(crate) mod input;
pub(crate) mod pool;
pub(crate) mod pool_state;
pub(crate) mod short_reply;
pub(crate) mod socket;
pub(crate) mod stream;
#[cfg(feature = "tls")]
pub(crate) mod tls;

#[cfg(test)]
pub(crate) use crate::redis::conn::input::read_frame;
