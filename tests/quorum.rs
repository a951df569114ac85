//! Promise: over a quorum of independent servers a lock keeps what it promises on one, whatever befalls a minority of them.

mod support;

use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, ClientBuilder, Error, Lost, Unlocked};
use support::{Server, eventually, ms};

struct Servers(Vec<Server>);

impl Servers {
    fn start(count: usize) -> Self {
        Self((0..count).map(|_| Server::start()).collect())
    }

    fn urls(&self) -> Vec<String> {
        self.0.iter().map(Server::url).collect()
    }

    fn builder(&self) -> ClientBuilder {
        Client::builder().quorum(self.urls())
    }

    fn client(&self) -> Client {
        self.builder().build().unwrap()
    }

    /// On how many of them the key is.
    fn count(&self, key: &str) -> usize {
        self.0
            .iter()
            .filter(|server| server.get(key).is_some())
            .count()
    }
}

#[test]
fn smoke() {
    for count in [1, 3, 5] {
        let servers = Servers::start(count);
        let (one, two) = (servers.client(), servers.client());
        assert!(one.ping().is_ok());
        let guard = one.mutex("a").lock().unwrap();
        assert!(servers.count("lock:a") > count / 2);
        assert!(two.mutex("a").try_lock().unwrap().is_none());
        let holder = two.mutex("a").inspect().unwrap().expect("it is held");
        assert_eq!(holder.holder_id(), Some(guard.holder_id()));
        assert_eq!(holder.fencing_token(), Some(guard.fencing_token()));
        guard.renew().unwrap();
        let token = guard.fencing_token();
        assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
        eventually(ms(5_000), || servers.count("lock:a") == 0);
        let again = two.mutex("a").try_lock().unwrap().expect("it is free");
        assert!(again.fencing_token() > token);
        assert!(two.mutex("a").force_unlock().unwrap());
        assert_eq!(
            again.unlock().unwrap(),
            Unlocked::AlreadyLost(Lost::Deleted)
        );
    }
}
