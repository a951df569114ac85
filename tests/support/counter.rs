//! Processes that increment a plain key under a lock: two holders at once would lose a count.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use leasehold::{Client, FairMutex, FencingToken, Mutex, RwLock};

use super::child::{Child, parameter, tell_parent};
use super::server::Server;
use super::time::ms;

/// The longest time that a call waits for a reply: many threads of several processes call at once.
const PATIENCE: Duration = ms(10_000);

/// The number of processes, of threads in each, and of increments by each thread.
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    pub processes: usize,
    pub threads: usize,
    pub rounds: usize,
}

impl Counters {
    /// Counts on `plain` under a mutex at `urls` and asserts that no count was lost.
    ///
    /// Several URLs are a quorum. No thread gets the lock before all processes are ready.
    #[track_caller]
    pub fn count_exactly(self, urls: &[String], plain: &Server) {
        self.count_exactly_as("counter", urls, plain);
    }

    /// Counts as [`Self::count_exactly`] does, in a role that calls [`counter_with`].
    #[track_caller]
    pub fn count_exactly_as(self, role: &str, urls: &[String], plain: &Server) {
        let urls = urls.join(" ");
        let client = client(&urls);
        let start = client.mutex("a").lock().unwrap();
        let (threads, rounds) = (self.threads.to_string(), self.rounds.to_string());
        let parameters = [
            ("URLS", &*urls),
            ("PLAIN", &plain.url()),
            ("THREADS", &threads),
            ("ROUNDS", &rounds),
        ];
        let children: Vec<_> = (0..self.processes)
            .map(|_| Child::spawn(role, &parameters))
            .collect();
        for child in &children {
            child.wait_for_line("ready");
        }
        let first = start.fencing_token().value();
        start.unlock().unwrap();
        for child in children {
            child.wait().succeeded();
        }

        let total = self.processes * self.threads * self.rounds;
        assert_eq!(plain.get("count"), Some(total.to_string().into_bytes()));
        let tokens: Vec<u64> = redis::cmd("LRANGE")
            .arg(&["tokens", "0", "-1"])
            .query(&mut plain.connection())
            .unwrap();
        assert_eq!(tokens.len(), total);
        assert!(tokens[0] > first);
        assert!(tokens.is_sorted_by(|earlier, later| earlier < later));
    }
}

/// Returns a client whose calls do not fail because this machine is slow.
fn client(urls: &str) -> Client {
    let builder = Client::builder();
    let builder = if urls.contains(' ') {
        builder.quorum(urls.split(' '))
    } else {
        builder.url(urls)
    };
    let patient = builder.connect_timeout(PATIENCE).command_timeout(PATIENCE);
    patient.build().expect("the URLs are valid")
}

/// A lock of any kind.
pub trait Lock {
    /// Acquires the lock, runs `section` with the token, and releases the lock, which must still be
    /// held.
    fn run(&self, section: &mut dyn FnMut(FencingToken));
}

macro_rules! lock {
    ($lock:ident, $acquire:ident) => {
        impl Lock for $lock {
            fn run(&self, section: &mut dyn FnMut(FencingToken)) {
                let guard = self.$acquire().unwrap();
                section(guard.fencing_token());
                guard.unlock().unwrap();
            }
        }
    };
}

lock!(Mutex, lock);
lock!(FairMutex, lock);
lock!(RwLock, write);

/// The role of each process: counts under a mutex and records the fencing tokens.
pub fn counter() {
    counter_with(|client| Box::new(client.mutex("a")));
}

/// Counts as [`counter`] does, under another kind of lock.
pub fn counter_with(lock: fn(&Client) -> Box<dyn Lock>) {
    let number = |key| parameter(key).parse::<usize>().expect("a number");
    let (threads, rounds) = (number("THREADS"), number("ROUNDS"));
    let client = client(&parameter("URLS"));
    let plain = redis::Client::open(parameter("PLAIN")).unwrap();
    let ready = Barrier::new(threads + 1);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mutex = lock(&client);
                let mut redis = plain.get_connection().unwrap();
                ready.wait();
                let mut count_on = |token: FencingToken| {
                    let mut get = redis::cmd("GET");
                    let count: Option<u64> = get.arg("count").query(&mut redis).unwrap();
                    let mut push = redis::cmd("RPUSH");
                    push.arg("tokens").arg(token.value());
                    push.exec(&mut redis).unwrap();
                    let mut set = redis::cmd("SET");
                    set.arg("count").arg(count.unwrap_or(0) + 1);
                    set.exec(&mut redis).unwrap();
                };
                for _ in 0..rounds {
                    mutex.run(&mut count_on);
                }
            });
        }
        ready.wait();
        tell_parent("ready");
    });
}
