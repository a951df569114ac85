//! Processes that contend for a lock while some are killed or paused at random.
//!
//! The resource that the lock protects records the time of each entry, and the processes that were
//! overtaken or rejected.

use std::collections::HashSet;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Error, MutexGuard};
use rand::RngExt;
use redis::Connection;

use super::child::{Child, parameter, tell_parent};
use super::server::Server;
use super::time::{Control, SLACK, WAKE_UPS, eventually, let_pass, ms};

/// The ttl: the lease of a killed holder expires within this time.
const TTL: Duration = ms(2_000);

/// The longest time between two refreshes of a waiter's place in the queue: a quarter of the ttl,
/// at most 1 s. A waiter sends each refresh a tenth earlier, because threads wake late.
const REFRESH: Duration = ms(500);

/// How long a grant lasts at most if the waiter does not renew it: 3 s, or the ttl if shorter.
const GRANT: Duration = TTL;

/// Enters the protected resource, which rejects a token that is not newer than the newest one.
///
/// It records the time of each entry. It also records the ids of processes that were inside when
/// another entered, and of processes that it rejected.
const ENTER: &str = "
if tonumber(ARGV[1]) <= tonumber(redis.call('GET', 'newest') or 0) then
  redis.call('RPUSH', 'rejected', ARGV[2])
  return 0
end
for _, process in ipairs(redis.call('HVALS', 'inside')) do
  redis.call('RPUSH', 'overtaken', process)
end
redis.call('DEL', 'inside')
redis.call('HSET', 'inside', ARGV[1], ARGV[2])
redis.call('SET', 'newest', ARGV[1])
redis.call('RPUSH', 'accepted', ARGV[1])
local time = redis.call('TIME')
redis.call('RPUSH', 'at', time[1] * 1000000 + time[2])
return 1
";

/// A run of processes that are killed and paused.
#[derive(Clone, Copy, Debug)]
pub struct Chaos {
    /// The kind of lock: `mutex` or `fair`.
    pub kind: &'static str,
    pub processes: usize,
    /// In each process.
    pub threads: usize,
    /// Some of the victims are paused; otherwise all of them are killed.
    pub pauses: bool,
    pub duration: Duration,
}

/// The counts and delays of a run.
#[derive(Debug)]
pub struct ChaosReport {
    pub killed: usize,
    pub paused: usize,
    pub accepted: usize,
    /// How often a holder entered while another, which had been killed or paused, was inside.
    pub overtaken: usize,
    /// How often the resource rejected a holder that tried to enter after a newer one.
    pub rejected: usize,
    /// The longest time without an entry.
    pub stall: Duration,
    /// The longest stall that the crate promises, plus a margin for this machine's scheduling.
    pub bound: Duration,
}

impl Chaos {
    /// Contends for a lock on `server` and asserts that only killed or paused processes lost it.
    ///
    /// The protected resource is on `witness`. The processes have the role `survivor`.
    #[track_caller]
    pub fn run(self, server: &Server, witness: &Server) -> ChaosReport {
        let parameters = [
            ("URL", server.url()),
            ("WITNESS", witness.url()),
            ("KIND", self.kind.to_owned()),
            ("THREADS", self.threads.to_string()),
        ];
        let parameters = parameters
            .each_ref()
            .map(|(key, value)| (*key, value.as_str()));
        let start = || Child::spawn("survivor", &parameters);
        let mut children: Vec<Child> = (0..self.processes).map(|_| start()).collect();
        for child in &children {
            child.wait_for_line("ready");
        }

        let control = Control::start();
        let mut harmed = Harmed::default();
        let ends = Instant::now() + self.duration;
        // A run without an overtaken holder proves little.
        while Instant::now() < ends || length(witness, "overtaken") == 0 {
            wait_for_progress(witness);
            harmed.harm_some(self.pauses, &mut children, start);
        }
        wait_for_progress(witness);
        witness.run("SET", &["stop", "1"]);
        for child in children {
            child.wait().succeeded();
        }
        // On an idle machine this is 1 s, less than the ttl: a stall for one more lease is found.
        let margin = WAKE_UPS * control.overshoot() + 2 * SLACK;
        self.report(&harmed, witness, self.bound() + margin)
    }

    #[track_caller]
    fn report(self, harmed: &Harmed, witness: &Server, bound: Duration) -> ChaosReport {
        let list = |key: &str| -> Vec<String> {
            redis::cmd("LRANGE")
                .arg(&[key, "0", "-1"])
                .query(&mut witness.connection())
                .expect("the witness replies")
        };
        let (overtaken, rejected) = (list("overtaken"), list("rejected"));
        let known_losses = list("known losses");
        for process in overtaken.iter().chain(&rejected).chain(&known_losses) {
            assert!(
                harmed.processes.contains(process),
                "process {process} lost the lock, but was neither killed nor paused: {self:?}"
            );
        }
        let at = list("at").into_iter();
        let at: Vec<u64> = at.map(|n| n.parse().expect("a number")).collect();
        let stalls = at.windows(2).map(|both| both[1] - both[0]);
        ChaosReport {
            killed: harmed.killed,
            paused: harmed.paused,
            accepted: at.len(),
            overtaken: overtaken.len(),
            rejected: rejected.len(),
            stall: Duration::from_micros(stalls.max().expect("there were several entries")),
            bound,
        }
    }

    /// Returns the longest stall that processes killed or paused at the same time may cause.
    fn bound(self) -> Duration {
        match self.kind {
            // The lease of the killed or paused holder expires, and the waiters then ask again.
            "mutex" => TTL,
            // The same: a grant passes over killed waiters, which do not listen.
            _ if !self.pauses => TTL,
            // Just before the holder's lease expires, the lock may be granted to a paused waiter,
            // which still listens. The refresh after that grant's expiry ends the stall.
            _ => TTL + GRANT + REFRESH,
        }
    }
}

/// The processes that were killed or paused so far.
#[derive(Default)]
struct Harmed {
    /// Their ids.
    processes: HashSet<String>,
    killed: usize,
    paused: usize,
}

impl Harmed {
    /// Kills some of the processes and starts others in their places. If `pauses` is true, pauses
    /// some of the victims for a while instead of killing them.
    fn harm_some(&mut self, pauses: bool, children: &mut Vec<Child>, start: impl Fn() -> Child) {
        let mut random = rand::rng();
        // Several victims at once are more likely to include the holder. They delay the others no
        // longer than one victim does, because their leases and places expire at the same time.
        let victims = random.random_range(1..children.len());
        let pause = TTL.mul_f64(random.random_range(0.1..1.5));
        let mut stopped = Vec::new();
        let mut dead = Vec::new();
        for child in children.split_off(children.len() - victims) {
            self.processes.insert(child.id().to_string());
            if pauses && random.random() {
                stopped.push(child)
            } else {
                dead.push(child)
            }
        }
        for child in &mut dead {
            child.kill();
        }
        for child in &stopped {
            child.pause();
        }
        self.killed += dead.len();
        self.paused += stopped.len();
        let fresh: Vec<Child> = dead.iter().map(|_| start()).collect();
        // The others must make progress meanwhile.
        let_pass(pause);
        for child in &stopped {
            child.resume();
        }
        // The next victims are taken from the end, so these processes are the last to be chosen.
        children.splice(0..0, stopped.into_iter().chain(fresh));
    }
}

impl ChaosReport {
    #[track_caller]
    pub fn assert_promises(&self) {
        assert!(self.stall <= self.bound, "{self:?}");
    }
}

/// Waits for another 20 entries.
#[track_caller]
fn wait_for_progress(witness: &Server) {
    let before = length(witness, "accepted");
    eventually(ms(60_000), || length(witness, "accepted") >= before + 20);
}

fn length(witness: &Server, list: &str) -> usize {
    redis::cmd("LLEN")
        .arg(list)
        .query(&mut witness.connection())
        .expect("the witness replies")
}

/// The role of each process: acquires and releases the lock until told to stop.
pub fn survivor() {
    let client = Client::builder().url(parameter("URL")).ttl(TTL);
    let client = client.build().expect("the URL is valid");
    let witness = redis::Client::open(parameter("WITNESS")).expect("the URL is valid");
    let kind = parameter("KIND");
    thread::scope(|scope| {
        for _ in 0..parameter("THREADS").parse().expect("a number") {
            scope.spawn(|| {
                let witness = witness.get_connection().expect("the witness replies");
                survive(witness, || match kind.as_str() {
                    "mutex" => client.mutex("a").lock(),
                    "fair" => client.fair_mutex("a").lock(),
                    _ => unreachable!("no kind of lock is called {kind}"),
                });
            });
        }
        tell_parent("ready");
    });
}

fn survive(mut witness: Connection, lock: impl Fn() -> Result<MutexGuard, Error>) {
    let own = process::id();
    loop {
        let guard = lock().expect("the lock's server replies");
        let token = guard.fencing_token().value();
        let _: i32 = redis::cmd("EVAL")
            .arg(ENTER)
            .arg(0)
            .arg(token)
            .arg(own)
            .query(&mut witness)
            .expect("the witness replies");
        // Long enough that a second holder could enter.
        let_pass(ms(1));
        redis::cmd("HDEL")
            .arg("inside")
            .arg(token)
            .exec(&mut witness)
            .expect("the witness replies");
        match guard.unlock() {
            Ok(()) => {}
            // If the process was paused during the call, the call exceeds its command timeout.
            Err(Error::Lost(_) | Error::Unreachable { .. }) => redis::cmd("RPUSH")
                .arg("known losses")
                .arg(own)
                .exec(&mut witness)
                .expect("the witness replies"),
            Err(error) => panic!("{error:?}"),
        }
        let stop: bool = redis::cmd("EXISTS")
            .arg("stop")
            .query(&mut witness)
            .expect("the witness replies");
        if stop {
            return;
        }
    }
}
