//! A master and the replicas that follow it.

use super::server::Server;
use super::time::{eventually, ms};

pub struct Replicas {
    /// The master first.
    servers: Vec<Server>,
}

impl Replicas {
    /// Starts them, and waits until each replica is linked and the master counts it as such.
    pub fn start(replicas: usize) -> Self {
        let mut servers = vec![Server::start()];
        for _ in 0..replicas {
            servers.push(servers[0].replica());
        }
        let this = Self { servers };
        this.wait_until_linked();
        this
    }

    /// A master that nobody follows.
    pub fn alone(master: Server) -> Self {
        let servers = vec![master];
        Self { servers }
    }

    /// As [`Server::untimed`].
    pub fn untimed(mut self) -> Self {
        self.servers = self.servers.into_iter().map(Server::untimed).collect();
        self
    }

    pub fn master(&self) -> &Server {
        &self.servers[0]
    }

    pub fn replica(&self, n: usize) -> &Server {
        &self.servers[1 + n]
    }

    /// The master first.
    pub fn all(&self) -> &[Server] {
        &self.servers
    }

    pub fn kill_master(&mut self) {
        self.servers[0].kill();
    }

    /// From now on this replica acknowledges nothing.
    pub fn pause(&self, n: usize) {
        self.replica(n).pause();
    }

    pub fn resume(&self, n: usize) {
        self.replica(n).resume();
    }

    /// Returns when the master would count an acknowledgement of each replica. None of them may be paused.
    #[track_caller]
    pub fn wait_until_linked(&self) {
        for replica in &self.servers[1..] {
            eventually(ms(20_000), || {
                replica.info("replication", "master_link_status").as_deref() == Some("up")
            });
        }
        // "online" in the master's eyes may still wait for the first acknowledgement, which comes once
        // a second, before anything is sent on.
        let replicas = self.servers.len() - 1;
        let mut master = self.master().connection();
        eventually(ms(20_000), || {
            let mut pipe = redis::pipe();
            pipe.cmd("SET").arg("warm-up").arg(1).ignore();
            pipe.cmd("DEL").arg("warm-up").ignore();
            pipe.cmd("WAIT").arg(replicas).arg(100);
            let acknowledged: (usize,) = pipe.query(&mut master).unwrap();
            acknowledged.0 == replicas
        });
    }
}
