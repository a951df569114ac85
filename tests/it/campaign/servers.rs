//! The servers of a campaign, and what happens to them.

use rand::RngExt;
use rand::rngs::SmallRng;
use support::{Sentinels, Server, eventually, ms};

/// The servers that users contend on.
pub(super) enum Servers {
    One(Server),
    Group(Sentinels),
}

impl Servers {
    pub(super) fn url(&self) -> String {
        match self {
            Self::One(server) => server.url(),
            Self::Group(group) => group.url(),
        }
    }

    /// Returns the server that accepts writes, if the sentinels name one.
    fn master(&self) -> Option<&Server> {
        match self {
            Self::One(server) => Some(server),
            Self::Group(group) => {
                let ask = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"];
                let address: Vec<String> = group.ask_sentinel(0, &ask).ok()?;
                let data = group.data().iter();
                let mut named = data.filter(|server| server.port().to_string() == address[1]);
                named.next()
            }
        }
    }

    /// Runs a command on the master.
    pub(super) fn run(&self, command: &[&str]) {
        // A server that becomes a replica closes its connections.
        let answer = || -> Option<redis::Value> {
            match self {
                Self::One(server) => redis::cmd(command[0])
                    .arg(&command[1..])
                    .query(&mut server.connection())
                    .ok(),
                Self::Group(group) => group.ask_data(self.master()?, command).ok(),
            }
        };
        eventually(ms(60_000), || answer().is_some());
    }

    pub(super) fn close_connections(&self, rng: &mut SmallRng) {
        let kind = if rng.random() { "normal" } else { "pubsub" };
        self.run(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
    }

    /// Restarts the server, as after its crash.
    pub(super) fn restart(&mut self, keeps_data: bool) {
        match self {
            Self::One(server) if keeps_data => server.restart_with_data(),
            Self::One(server) => server.restart(),
            Self::Group(_) => unreachable!("its master fails over instead"),
        }
    }

    /// Replaces the master, and returns once the former one accepts no write.
    pub(super) fn fail_over(&self) {
        let Self::Group(group) = self else {
            unreachable!("one server")
        };
        let former = self.master().expect("the sentinels know the master");
        group.failover();
        let is_replica = || {
            let role: redis::RedisResult<Vec<redis::Value>> = group.ask_data(former, &["ROLE"]);
            role.is_ok_and(|role| role[0] == redis::Value::BulkString(b"slave".to_vec()))
        };
        eventually(ms(60_000), || {
            is_replica() && self.master().is_some_and(|it| it.port() != former.port())
        });
    }
}
