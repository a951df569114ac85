//! Processes that contend for a lock while its servers fail, and the resource that it protects.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Error};
use redis::RedisResult;

use super::child::{Child, parameter, tell_parent};
use super::client::{COMMAND_TIMEOUT, builder};
use super::server::Server;
use super::time::{Control, Timed, WAKE_UPS, eventually, ms};

/// The number of contending processes.
pub const PROCESSES: usize = 8;

/// The time after the new master accepts writes within which a process must hold the lock there.
pub const RESUME_WITHIN: Duration = ms(2_000);

/// A way to take a master out of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MasterFailure {
    Killed,
    Stopped,
    SwitchedByCommand,
}

/// Enters the protected resource, which is a server other than those of the lock.
///
/// It rejects a token older than the newest one, but not the newest one itself, so that a token
/// used twice is found. It counts entries while another process is inside.
const ENTER: &str = "
local others = redis.call('SCARD', 'inside')
redis.call('SADD', 'inside', ARGV[1])
if others > 0 then redis.call('INCR', 'overlaps') end
redis.call('INCR', 'entered')
if tonumber(ARGV[1]) < tonumber(redis.call('GET', 'newest') or 0) then
  redis.call('INCR', 'rejected')
  return 0
end
redis.call('SET', 'newest', ARGV[1])
redis.call('RPUSH', 'accepted', ARGV[1])
return 1
";

/// Several processes that acquire and release a lock in a loop.
pub struct Contention {
    witness: Server,
    children: Vec<Child>,
}

/// The counts and delays of all contending processes.
#[derive(Debug)]
pub struct Outcome {
    /// How often a process entered the resource.
    pub entered: u64,
    /// How often a process entered while another was inside.
    pub overlaps: u64,
    /// How often the resource rejected an outdated token.
    pub rejected: u64,
    /// How often a holder learned from `unlock` that it had lost the lock.
    pub known_losses: u64,
    /// The most by which a call exceeded its deadline.
    pub lateness: Duration,
    /// The most by which a plain wait exceeded its length in the same time.
    pub overshoot: Duration,
    /// Whether the accepted tokens rise. The resource rejects older ones, so they rise unless a
    /// token was used twice.
    pub is_in_order: bool,
}

impl Contention {
    /// Starts the processes and waits until each has held the lock.
    pub fn start(url: &str, name: &str, processes: usize, replicas: usize) -> Self {
        Self::start_as("contender", url, name, processes, replicas)
    }

    /// Starts the processes in a role that calls [`contend_and_then`].
    pub fn start_as(role: &str, url: &str, name: &str, processes: usize, replicas: usize) -> Self {
        let mut this = Self {
            witness: Server::start(),
            children: Vec::new(),
        };
        this.join(role, url, name, processes, replicas);
        this
    }

    /// Starts further processes, and waits until each has held the lock.
    pub fn join(&mut self, role: &str, url: &str, name: &str, processes: usize, replicas: usize) {
        let parameters = [
            ("URL", url.to_owned()),
            ("NAME", name.to_owned()),
            ("WITNESS", self.witness.url()),
            ("REPLICAS", replicas.to_string()),
        ];
        let parameters = parameters
            .each_ref()
            .map(|(key, value)| (*key, value.as_str()));
        let joining = (0..processes).map(|_| Child::spawn(role, &parameters));
        let joining: Vec<_> = joining.collect();
        for child in &joining {
            child.wait_for_line("ready");
        }
        self.children.extend(joining);
    }

    pub fn entered(&self) -> u64 {
        self.number("entered")
    }

    /// Waits until the processes have held the lock `times` more times.
    #[track_caller]
    pub fn wait_for_progress(&self, times: u64) {
        let entered = self.entered();
        eventually(ms(60_000), || self.entered() > entered + times);
    }

    fn number(&self, key: &str) -> u64 {
        let value = self.witness.get(key).unwrap_or_else(|| b"0".to_vec());
        let text = String::from_utf8(value).expect("digits");
        text.parse().expect("a number")
    }

    /// Stops the processes and returns what they counted.
    pub fn finish(mut self) -> Outcome {
        self.witness.run("SET", &["stop", "1"]);
        let mut lateness = Duration::ZERO;
        let mut overshoot = Duration::ZERO;
        for child in self.children.drain(..) {
            let lines = child.wait().succeeded().lines;
            let numbers = lines
                .last()
                .expect("the child reports its delays")
                .split(' ');
            let mut numbers = numbers.map(|n| ms(n.parse().expect("milliseconds")));
            lateness = lateness.max(numbers.next().expect("the lateness of calls"));
            overshoot = overshoot.max(numbers.next().expect("the overshoot of plain waits"));
        }
        let accepted: Vec<u64> = redis::cmd("LRANGE")
            .arg(&["accepted", "0", "-1"])
            .query(&mut self.witness.connection())
            .expect("the witness replies");
        Outcome {
            entered: self.entered(),
            overlaps: self.number("overlaps"),
            rejected: self.number("rejected"),
            known_losses: self.number("known losses"),
            lateness,
            overshoot,
            is_in_order: accepted.is_sorted_by(|earlier, later| earlier < later),
        }
    }
}

impl Outcome {
    /// Asserts that no call was too late and that the resource accepted no token twice.
    ///
    /// A call may exceed its deadline by `slack` and the overshoot of [`WAKE_UPS`] plain waits.
    #[track_caller]
    pub fn assert_promises(&self, slack: Duration) {
        assert!(
            self.lateness <= slack + WAKE_UPS * self.overshoot,
            "a call was {:?} late; a plain wait overshoots by {:?}",
            self.lateness,
            self.overshoot
        );
        assert!(self.is_in_order, "{self:?}");
    }
}

/// Waits until a process has acquired the lock on its current server, and returns how long it took.
///
/// Only an acquire changes the `counter` of its tokens there.
pub fn time_until_acquired(
    began: Instant,
    counter: impl Fn() -> RedisResult<Option<u64>>,
) -> Timed<()> {
    let control = Control::start();
    let mut before = None;
    eventually(ms(30_000), || match (counter(), before) {
        (Ok(now), Some(before)) => now != before,
        (Ok(now), None) => {
            before = Some(now);
            false
        }
        (Err(_), _) => false,
    });
    Timed {
        value: (),
        took: began.elapsed(),
        limit: RESUME_WITHIN,
        overshoot: control.overshoot(),
    }
}

/// The role of each process: acquires the lock until told to stop, then reports its delays.
pub fn contender() {
    contend_and_then(|_| {});
}

/// Contends as [`contender`] does, then calls `finish` before the client is dropped.
pub fn contend_and_then(finish: impl FnOnce(&Client)) {
    let client = builder(&parameter("URL"))
        .ttl(ms(5_000))
        .min_replicas(parameter("REPLICAS").parse().expect("a number"), ms(200))
        .build()
        .expect("the URL is valid");
    let witness = redis::Client::open(parameter("WITNESS")).expect("a URL");
    let ready = Barrier::new(2);
    let control = Control::start();
    let late = thread::scope(|scope| {
        let contending = scope.spawn(|| contend(&client, &witness, &ready));
        ready.wait();
        tell_parent("ready");
        contending.join().expect("no panic")
    });
    let overshoot = control.overshoot();
    finish(&client);
    tell_parent(&format!("{} {}", late.as_millis(), overshoot.as_millis()));
}

/// Returns the most by which a call exceeded its deadline.
fn contend(client: &Client, witness: &redis::Client, ready: &Barrier) -> Duration {
    let mutex = client.mutex(parameter("NAME"));
    let mut witness = witness.get_connection().expect("the witness replies");
    let limit = ms(700);
    let mut late = Duration::ZERO;
    let mut is_ready = false;
    loop {
        let began = Instant::now();
        let answer = mutex.try_lock_for(limit);
        late = late.max(began.elapsed().saturating_sub(limit));
        match answer {
            Ok(Ok(guard)) => {
                let token = guard.fencing_token().value();
                let _: i32 = redis::cmd("EVAL")
                    .arg(ENTER)
                    .arg(0)
                    .arg(token)
                    .query(&mut witness)
                    .expect("the witness replies");
                // The work under the lock takes 5 ms.
                let _ = guard.lost().recv_timeout(ms(5));
                redis::cmd("SREM")
                    .arg("inside")
                    .arg(token)
                    .exec(&mut witness)
                    .expect("the witness replies");
                let began = Instant::now();
                match guard.unlock() {
                    Ok(()) | Err(Error::Unreachable { .. }) => {}
                    Err(Error::Lost(_)) => redis::cmd("INCR")
                        .arg("known losses")
                        .exec(&mut witness)
                        .expect("the witness replies"),
                    Err(error) => panic!("{error:?}"),
                }
                late = late.max(began.elapsed().saturating_sub(COMMAND_TIMEOUT));
                if !std::mem::replace(&mut is_ready, true) {
                    ready.wait();
                }
            }
            Ok(Err(_)) => {}
            Err(error) => assert!(error.is_unreachable() || error.may_be_held(), "{error:?}"),
        }
        let stop: bool = redis::cmd("EXISTS")
            .arg("stop")
            .query(&mut witness)
            .expect("the witness replies");
        if stop {
            return late;
        }
    }
}
