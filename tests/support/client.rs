//! A client for tests with failing servers: its timeouts are short.

use std::time::Duration;

use leasehold::{Client, ClientBuilder};

use super::time::ms;

pub const COMMAND_TIMEOUT: Duration = ms(500);

pub fn builder(url: &str) -> ClientBuilder {
    Client::builder()
        .url(url)
        .connect_timeout(COMMAND_TIMEOUT)
        .command_timeout(COMMAND_TIMEOUT)
}

pub fn client(url: &str) -> Client {
    builder(url).build().expect("the URL is valid")
}
