//! The kernel with the locks of shuttle, which tries many orders in which threads can run.
//!
//! The simulation runs whole calls of the kernel, one after the other. Here several run at once:
//! threads change at each lock and each wake-up. That shows locks in a wrong order, and wake-ups
//! that are lost between two threads. The commands run on the real scripts.
#![cfg(test)]
// Most of what the library offers is not called here.
#![allow(dead_code, unused_imports, unused_macros)]

#[path = "../../src/kernel/mod.rs"]
mod kernel;

mod client;
mod models;
mod pairs;
mod wakeup;

/// The engine's wake-up has a model of its own.
#[path = "../../src/runtime"]
mod runtime {
    mod wake;
}

mod redis {
    use std::io;
    use std::os::fd::BorrowedFd;
    use std::time::Duration;

    /// The model sleeps on a pipe of its own.
    pub(crate) fn wait_for_sockets<'a>(
        _: impl Iterator<Item = (BorrowedFd<'a>, bool)>,
        _: Option<Duration>,
    ) -> io::Result<Vec<bool>> {
        unreachable!("the model has no sockets")
    }
}

#[path = "../../src"]
mod files {
    pub(crate) mod advice;
    pub(crate) mod cancel;
    pub(crate) mod cause;
    pub(crate) mod clock;
    pub(crate) mod config;
    pub(crate) mod connect_failure;
    pub(crate) mod error;
    pub(crate) mod error_reply;
    pub(crate) mod escape;
    pub(crate) mod held;
    pub(crate) mod holder;
    pub(crate) mod holder_id;
    pub(crate) mod lease;
    pub(crate) mod logging;
    pub(crate) mod lost;
    pub(crate) mod majority;
    pub(crate) mod mutant;
    pub(crate) mod name;
    pub(crate) mod parker;
    pub(crate) mod process;
    pub(crate) mod protocol;
    pub(crate) mod random;
    pub(crate) mod renewed;
    pub(crate) mod replicas;
    pub(crate) mod shortage;
    #[path = "../tests/threads/sync.rs"]
    pub(crate) mod sync;
    pub(crate) mod taken;
    pub(crate) mod testing {
        mod database;
        mod keyspace;
        pub(crate) mod reply;
        pub(crate) mod script;
        pub(crate) mod scripted;
    }
    pub(crate) mod thread_group;
    pub(crate) mod token;
    pub(crate) mod validity;
    pub(crate) mod violation;
    pub(crate) mod wait_policy;
}

// The root, as the library has it.
use cancel::CancelToken;
use error::{Cause, Error};
use files::*;
use held::Held;
use holder::Holder;
use holder_id::HolderId;
use lost::Lost;
use name::Name;
use renewed::Renewed;
use taken::Taken;
use token::FencingToken;
use wait_policy::{Backoff, WaitPolicy};
