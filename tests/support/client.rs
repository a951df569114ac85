//! A client for tests with failing servers: its timeouts are short.

use std::time::Duration;

use leasehold::{Client, ClientBuilder};

use super::time::ms;

pub const COMMAND_TIMEOUT: Duration = ms(500);

pub fn builder(url: &str) -> ClientBuilder {
    builder_within(url, COMMAND_TIMEOUT)
}

/// Returns a builder whose connections and commands take at most `timeout`.
pub fn builder_within(url: impl Into<String>, timeout: Duration) -> ClientBuilder {
    let builder = Client::builder().url(url);
    builder.connect_timeout(timeout).command_timeout(timeout)
}

pub fn client(url: &str) -> Client {
    builder(url).build().expect("the URL is valid")
}
