//! Tests of the parker: on threads of the system, and in the model of the threads.

use super::*;

#[cfg(not(threads))]
mod asleep;
#[cfg(threads)]
mod model;
