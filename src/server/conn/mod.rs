//! A connection of our own to a server: its socket, its bounded buffer, and deadlines that are absolute.
//!
//! The client library's connection hides its socket and its buffer, its parser has no limits, and its timeouts count for
//! each read. Here every call names the instant by which it must be over, whatever the peer does. The library still packs
//! the commands and reads the replies, each of which [`frame`] has found to be whole and within the limits before.

mod frame;
mod handshake;
mod input;
mod socket;
mod stream;
#[cfg(feature = "tls")]
mod tls;
mod violation;
mod wire;

#[cfg(test)]
pub(crate) use input::read_frame;
#[cfg(feature = "tls")]
pub(crate) use violation::payload;
pub(crate) use violation::{NoFirstReply, Violation};
pub(crate) use wire::{Wire, wait_for_any};
