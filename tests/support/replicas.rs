//! A master and its replicas.

use super::server::Server;
use super::time::{eventually, ms};

pub struct Replicas {
    /// All servers, the master first.
    servers: Vec<Server>,
}

impl Replicas {
    /// Starts a master with this many replicas, and waits until it counts an acknowledgement of
    /// each.
    pub fn start(replicas: usize) -> Self {
        let mut servers = vec![Server::start()];
        for _ in 0..replicas {
            servers.push(servers[0].replica());
        }
        let this = Self { servers };
        this.wait_until_linked();
        this
    }

    /// A master without replicas.
    pub fn master_only(master: Server) -> Self {
        let servers = vec![master];
        Self { servers }
    }

    /// Removes the time limits and permits, as [`Server::long_lived`] does.
    pub fn long_lived(mut self) -> Self {
        self.servers = self.servers.into_iter().map(Server::long_lived).collect();
        self
    }

    pub fn master(&self) -> &Server {
        &self.servers[0]
    }

    pub fn replica(&self, n: usize) -> &Server {
        &self.servers[1 + n]
    }

    /// Returns all servers, the master first.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    pub fn kill_master(&mut self) {
        self.servers[0].kill();
    }

    /// Pauses a replica, which then acknowledges nothing.
    pub fn pause(&self, n: usize) {
        self.replica(n).pause();
    }

    pub fn resume(&self, n: usize) {
        self.replica(n).resume();
    }

    /// Waits until the master counts an acknowledgement of each replica. None may be paused.
    #[track_caller]
    pub fn wait_until_linked(&self) {
        for replica in &self.servers[1..] {
            eventually(ms(20_000), || {
                replica.info("replication", "master_link_status").as_deref() == Some("up")
            });
        }
        // A replica whose link is up may not have acknowledged anything yet: without a request, it
        // acknowledges once a second.
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
