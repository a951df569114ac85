//! A master and the replicas that follow it.

use super::server::Server;
use super::time::{eventually, ms};

pub(crate) struct Replicas {
    /// The master first.
    servers: Vec<Server>,
}

impl Replicas {
    /// Starts them, and waits until each replica is linked and the master counts it as such.
    pub(crate) fn start(replicas: usize) -> Self {
        let mut servers = vec![Server::start()];
        for _ in 0..replicas {
            servers.push(servers[0].replica());
        }
        let this = Self { servers };
        this.wait_until_linked();
        this
    }

    pub(crate) fn master(&self) -> &Server {
        &self.servers[0]
    }

    pub(crate) fn replica(&self, n: usize) -> &Server {
        &self.servers[1 + n]
    }

    /// The master first.
    pub(crate) fn all(&self) -> &[Server] {
        &self.servers
    }

    pub(crate) fn kill_master(&mut self) {
        self.servers[0].kill();
    }

    /// From now on this replica acknowledges nothing.
    pub(crate) fn pause(&self, n: usize) {
        self.replica(n).pause();
    }

    pub(crate) fn resume(&self, n: usize) {
        self.replica(n).resume();
    }

    /// Returns when the master would count an acknowledgement of each replica. None of them may be paused.
    #[track_caller]
    pub(crate) fn wait_until_linked(&self) {
        for replica in &self.servers[1..] {
            eventually(ms(20_000), || {
                replica.info("replication", "master_link_status").as_deref() == Some("up")
            });
        }
        for n in 0..self.servers.len() - 1 {
            // Linked in the replica's eyes may still be "send_bulk" in the master's.
            eventually(ms(20_000), || {
                let line = self.master().info("replication", &format!("slave{n}"));
                line.is_some_and(|line| line.contains("state=online"))
            });
        }
    }
}
