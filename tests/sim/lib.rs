//! The kernel with its simulation (`src/sim/`), and what they need of the library.
//!
//! A package of its own: the simulation is many times faster if it is optimized, and the whole
//! library would take minutes to build in this way. It has nothing but tests.
#![cfg(test)]
// Most of what the library offers is not called here.
#![allow(dead_code, unused_imports, unused_macros)]
// A simulation has few of its large values.
#![allow(clippy::large_enum_variant)]

#[path = "../../src/kernel/mod.rs"]
mod kernel;
#[path = "../../src/sim/mod.rs"]
mod sim;

mod members;

/// The choice of the server that a client uses.
#[path = "../../src/redis"]
mod redis {
    pub(crate) mod members;
    pub(crate) mod sentinel {
        pub(crate) mod beliefs;
    }
}

/// The commands between the kernel and the virtual server.
#[path = "../../src/runtime"]
mod runtime {
    pub(crate) mod commands;
}

mod url {
    pub(crate) type HostPort = (String, u16);
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
    pub(crate) mod quorum;
    pub(crate) mod random;
    pub(crate) mod renewed;
    pub(crate) mod replicas;
    pub(crate) mod set;
    pub(crate) mod shortage;
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
