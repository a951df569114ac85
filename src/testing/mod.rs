//! A server in this process, for the tests of programs that use leasehold.

#[allow(dead_code, reason = "the server that runs these commands comes next")]
mod keyspace;
#[allow(dead_code, reason = "as above")]
mod reply;
