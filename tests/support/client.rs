//! Clients: with default settings, and with short timeouts for tests with failing servers.

use std::time::Duration;

use leasehold::{Client, ClientBuilder};

use super::server::Server;
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

impl Server {
    /// Returns a new client with default settings.
    pub fn client(&self) -> Client {
        Client::open(self.url()).expect("the URL is valid")
    }

    /// Sets a user with all permissions except those that `rules` revoke. Returns the URL with it.
    pub fn url_with_rules(&self, rules: &[&str]) -> String {
        let all = [
            "SETUSER", "some", "reset", "on", ">secret", "~*", "&*", "+@all",
        ];
        self.run("ACL", &[&all[..], rules].concat());
        format!("redis://some:secret@127.0.0.1:{}", self.port())
    }

    /// Returns the URL of a user with only the permissions that a client without queues needs.
    pub fn url_without_queues(&self) -> String {
        let acl = "SETUSER limited reset on >password ~lock:* ~leasehold:fence:* &* +eval \
                   +evalsha +get +set +del +pttl +pexpire +time +publish +subscribe +unsubscribe \
                   +ping +client";
        let rules: Vec<&str> = acl.split(' ').collect();
        self.run("ACL", &rules);
        format!("redis://limited:password@127.0.0.1:{}", self.port())
    }
}
