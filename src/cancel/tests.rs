//! Tests of the token: with threads of the system, and in the model of the threads.

use super::*;

#[cfg(threads)]
mod model;
#[cfg(not(threads))]
mod threads;
