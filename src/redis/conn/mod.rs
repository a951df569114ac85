//! leasehold's own connections to a server, with a bounded buffer and absolute deadlines, and the
//! pool that keeps them.
//!
//! The connection of the `redis` crate hides its socket and its buffer, its parser has no limits,
//! and its timeouts start again with every read. Here every call has one deadline, by which it ends
//! whatever the peer does, and [`reader`] reads replies within limits. The `redis` crate packs most
//! commands that are not script calls.

pub(crate) mod call_queue;
pub(crate) mod callers;
pub(crate) mod combined_call;
pub(crate) mod connection;
pub(crate) mod connector;
pub(crate) mod dial;
pub(crate) mod dialer;
pub(crate) mod handshake;
pub(crate) mod output;
pub(crate) mod pool;
pub(crate) mod pool_state;
pub(crate) mod reader;
pub(crate) mod socket;
pub(crate) mod stream;
#[cfg(feature = "tls")]
pub(crate) mod tls;
mod writable;

#[cfg(test)]
pub(crate) use crate::redis::conn::reader::read_reply;
