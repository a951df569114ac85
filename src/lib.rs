//! `std::sync` for a fleet: blocking locks that hold across processes and machines, kept in Redis or Valkey.

mod acquire;
mod builder;
mod client;
mod clock;
mod config;
mod env;
mod error;
mod guard;
mod hold;
mod holder;
mod kind;
mod lease;
mod leases;
mod lost;
mod mutex;
mod name;
mod release;
mod renew;
mod renewed;
mod scripts;
mod server;
mod shutdown;
mod threads;
mod token;
mod url;
mod wait;
mod waiters;

pub use crossbeam_channel;

pub use builder::ClientBuilder;
pub use client::Client;
pub use error::{Cause, Error};
pub use guard::{MutexGuard, Unlocked};
pub use holder::{Holder, HolderId};
pub use lost::Lost;
pub use mutex::Mutex;
pub use name::Name;
pub use renewed::Renewed;
pub use shutdown::ShutdownReport;
pub use token::FencingToken;
pub use wait::{Backoff, WaitPolicy};
