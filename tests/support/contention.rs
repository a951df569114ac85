//! Processes that contend for a lock, and the resource that it protects: what they came to while their servers failed.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Error, Unlocked};
use redis::RedisResult;

use super::child::{Child, parameter, tell_parent};
use super::client::{COMMAND_TIMEOUT, builder};
use super::server::Server;
use super::time::{Control, Timed, eventually, ms};

/// How many processes contend.
pub const PROCESSES: usize = 8;

/// What a call may be later than a plain wait of the same length.
pub const SLACK: Duration = ms(250);

/// How soon after the new master takes writes somebody holds the lock there.
pub const RESUME_WITHIN: Duration = ms(2_000);

/// What befalls a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MasterFailure {
    Killed,
    Stopped,
    SwitchedByCommand,
}

/// What the lock protects: a server that has nothing to do with those that keep it. It turns away whoever was
/// overtaken, and counts how often somebody came in while another was inside.
const ENTER: &str = "
local others = redis.call('SCARD', 'inside')
redis.call('SADD', 'inside', ARGV[1])
if others > 0 then redis.call('INCR', 'coincided') end
redis.call('INCR', 'entered')
if tonumber(ARGV[1]) < tonumber(redis.call('GET', 'newest') or 0) then
  redis.call('INCR', 'stale')
  return 0
end
redis.call('SET', 'newest', ARGV[1])
redis.call('RPUSH', 'accepted', ARGV[1])
return 1
";

/// Several processes that take a lock over and over.
pub struct Contention {
    witness: Server,
    children: Vec<Child>,
}

/// How it went.
#[derive(Debug)]
pub struct Outcome {
    pub entered: u64,
    /// How often somebody came in while another was inside.
    pub coincided: u64,
    /// How often the resource turned away somebody who was overtaken.
    pub turned_away: u64,
    /// How often a holder learned that it had lost the lock.
    pub told: u64,
    /// How late the latest call was.
    pub late: Duration,
    /// How late a plain wait was at the same time.
    pub overshoot: Duration,
    /// The resource accepted no older token after a newer one.
    pub is_in_order: bool,
}

impl Contention {
    /// Starts them, and waits until each has held the lock.
    pub fn start(url: &str, name: &str, processes: usize, replicas: usize) -> Self {
        Self::start_as("contender", url, name, processes, replicas)
    }

    /// The same in a role that the test has for them, made with `contend_and_then`.
    pub fn start_as(role: &str, url: &str, name: &str, processes: usize, replicas: usize) -> Self {
        let witness = Server::start();
        let given = [
            ("URL", url.to_owned()),
            ("NAME", name.to_owned()),
            ("WITNESS", witness.url()),
            ("REPLICAS", replicas.to_string()),
        ];
        let given = given.each_ref().map(|(key, value)| (*key, value.as_str()));
        let children: Vec<_> = (0..processes).map(|_| Child::spawn(role, &given)).collect();
        for child in &children {
            child.wait_for_line("ready");
        }
        Self { witness, children }
    }

    pub fn entered(&self) -> u64 {
        self.number("entered")
    }

    /// Returns when they have held the lock so many times more.
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

    /// Has them stop.
    pub fn finish(mut self) -> Outcome {
        self.witness.run("SET", &["stop", "1"]);
        let mut late = Duration::ZERO;
        let mut overshoot = Duration::ZERO;
        for child in self.children.drain(..) {
            let said = child.wait().succeeded().lines;
            let numbers = said.last().expect("it says how it went").split(' ');
            let mut numbers = numbers.map(|n| ms(n.parse().expect("milliseconds")));
            late = late.max(numbers.next().expect("how late a call was"));
            overshoot = overshoot.max(numbers.next().expect("how late a plain wait was"));
        }
        let accepted: Vec<u64> = redis::cmd("LRANGE")
            .arg(&["accepted", "0", "-1"])
            .query(&mut self.witness.connection())
            .expect("the witness is well");
        Outcome {
            entered: self.entered(),
            coincided: self.number("coincided"),
            turned_away: self.number("stale"),
            told: self.number("told"),
            late,
            overshoot,
            is_in_order: accepted.is_sorted_by(|earlier, later| earlier < later),
        }
    }
}

impl Outcome {
    /// No call overran its deadline by more than `slack` and what this machine does to a plain wait, and the resource
    /// accepted no older token after a newer one.
    #[track_caller]
    pub fn assert_promises(&self, slack: Duration) {
        assert!(
            self.late <= slack + 3 * self.overshoot,
            "a call was {:?} late, where a plain wait overshoots by {:?}",
            self.late,
            self.overshoot
        );
        assert!(self.is_in_order, "{self:?}");
    }
}

/// Waits until somebody has taken the lock where it is kept now: nothing else changes the `counter` of its tokens there.
pub fn time_until_taken(
    began: Instant,
    counter: impl Fn() -> RedisResult<Option<u64>>,
) -> Timed<()> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let overshoot = scope.spawn(|| overshoot_until(&is_over));
        let mut before = None;
        eventually(ms(30_000), || match (counter(), before) {
            (Ok(now), Some(before)) => now != before,
            (Ok(now), None) => {
                before = Some(now);
                false
            }
            (Err(_), _) => false,
        });
        let took = began.elapsed();
        is_over.store(true, Ordering::SeqCst);
        Timed {
            value: (),
            took,
            limit: RESUME_WITHIN,
            // Several things in a row were as late as a single plain wait.
            overshoot: 3 * overshoot.join().expect("no panic"),
        }
    })
}

/// The role of each process: takes the lock until told to stop, and says how late its calls were.
pub fn contender() {
    contend_and_then(|_| {});
}

/// The same, with something to see to before the client ends.
pub fn contend_and_then(see_to: impl FnOnce(&Client)) {
    let client = builder(&parameter("URL"))
        .ttl(ms(5_000))
        .min_replicas(parameter("REPLICAS").parse().expect("a number"), ms(200))
        .build()
        .expect("a URL of ours");
    let witness = redis::Client::open(parameter("WITNESS")).expect("a URL");
    let ready = Barrier::new(2);
    let is_over = AtomicBool::new(false);
    let (late, overshoot) = thread::scope(|scope| {
        let overshoot = scope.spawn(|| overshoot_until(&is_over));
        let contending = scope.spawn(|| contend(&client, &witness, &ready));
        ready.wait();
        tell_parent("ready");
        let late = contending.join().expect("no panic");
        is_over.store(true, Ordering::SeqCst);
        (late, overshoot.join().expect("no panic"))
    });
    see_to(&client);
    tell_parent(&format!("{} {}", late.as_millis(), overshoot.as_millis()));
}

/// The most that a plain wait was late.
fn overshoot_until(is_over: &AtomicBool) -> Duration {
    let mut most = Duration::ZERO;
    while !is_over.load(Ordering::SeqCst) {
        most = most.max(Control::start(ms(100)).overshoot());
    }
    most
}

/// Returns how late the latest call was.
fn contend(client: &Client, witness: &redis::Client, ready: &Barrier) -> Duration {
    let mutex = client.mutex(parameter("NAME"));
    let mut witness = witness.get_connection().expect("the witness is well");
    let limit = ms(700);
    let mut late = Duration::ZERO;
    let mut is_ready = false;
    loop {
        let began = Instant::now();
        let answer = mutex.try_lock_for(limit);
        late = late.max(began.elapsed().saturating_sub(limit));
        match answer {
            Ok(Some(guard)) => {
                let token = guard.fencing_token().value();
                let _: i32 = redis::cmd("EVAL")
                    .arg(ENTER)
                    .arg(0)
                    .arg(token)
                    .query(&mut witness)
                    .expect("the witness is well");
                // The work that the lock is for.
                let _ = guard.lost().recv_timeout(ms(5));
                redis::cmd("SREM")
                    .arg("inside")
                    .arg(token)
                    .exec(&mut witness)
                    .expect("the witness is well");
                let began = Instant::now();
                match guard.unlock() {
                    Ok(Unlocked::Released) | Err(Error::Unreachable { .. }) => {}
                    Ok(Unlocked::AlreadyLost(_)) => redis::cmd("INCR")
                        .arg("told")
                        .exec(&mut witness)
                        .expect("the witness is well"),
                    Err(error) => panic!("{error:?}"),
                }
                late = late.max(began.elapsed().saturating_sub(COMMAND_TIMEOUT));
                if !std::mem::replace(&mut is_ready, true) {
                    ready.wait();
                }
            }
            Ok(None) => {}
            Err(error) => assert!(error.is_unreachable() || error.may_be_held(), "{error:?}"),
        }
        let stop: bool = redis::cmd("EXISTS")
            .arg("stop")
            .query(&mut witness)
            .expect("the witness is well");
        if stop {
            return late;
        }
    }
}
