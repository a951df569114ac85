//! Processes that take a lock over and over while they are killed and paused at random, and the resource that it
//! protects: who came in while another was inside, who was turned away, and how long nobody came.

use std::collections::HashSet;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Error, MutexGuard, Unlocked};
use rand::RngExt;
use redis::Connection;

use super::child::{Child, parameter, tell_parent};
use super::server::Server;
use super::time::{Control, eventually, let_pass, ms};

/// How long the lease of a holder that was killed outlives it.
const TTL: Duration = ms(2_000);

/// Of waiters, in a queue: a quarter of the ttl, and at most a second.
const REFRESH: Duration = ms(500);

/// Of one who has died and whose place does not tell it yet: 3 s, or the ttl if that is less.
const GRANT: Duration = TTL;

/// What the lock protects turns away whoever comes with a token that is not newer than the last one it saw. It keeps who
/// was inside when another came, who was turned away, and when somebody came.
const ENTER: &str = "
if tonumber(ARGV[1]) <= tonumber(redis.call('GET', 'newest') or 0) then
  redis.call('RPUSH', 'turned away', ARGV[2])
  return 0
end
for _, who in ipairs(redis.call('HVALS', 'inside')) do redis.call('RPUSH', 'overtaken', who) end
redis.call('DEL', 'inside')
redis.call('HSET', 'inside', ARGV[1], ARGV[2])
redis.call('SET', 'newest', ARGV[1])
redis.call('RPUSH', 'accepted', ARGV[1])
local time = redis.call('TIME')
redis.call('RPUSH', 'at', time[1] * 1000000 + time[2])
return 1
";

#[derive(Clone, Copy, Debug)]
pub struct Chaos {
    /// What they take: `mutex` or `fair`.
    pub kind: &'static str,
    pub processes: usize,
    pub threads: usize,
    pub lasts: Duration,
}

/// How it went.
#[derive(Debug)]
pub struct ChaosReport {
    pub killed: usize,
    pub paused: usize,
    pub accepted: usize,
    /// How often somebody came in while another, who had been killed or paused, was inside.
    pub overtaken: usize,
    /// How often somebody who had been paused came too late and was turned away.
    pub turned_away: usize,
    /// The longest that nobody came.
    pub stall: Duration,
    /// The longest that is promised, with what this machine does to a plain wait.
    pub bound: Duration,
}

impl Chaos {
    /// Lets them contend for what `server` keeps, and strikes them, while `witness` keeps what it protects. Whoever was
    /// not struck is never overtaken or turned away. The test has the role `survivor`.
    #[track_caller]
    pub fn run(self, server: &Server, witness: &Server) -> ChaosReport {
        let given = [
            ("URL", server.url()),
            ("WITNESS", witness.url()),
            ("KIND", self.kind.to_owned()),
            ("THREADS", self.threads.to_string()),
        ];
        let given = given.each_ref().map(|(key, value)| (*key, value.as_str()));
        let start = || Child::spawn("survivor", &given);
        let mut children: Vec<Child> = (0..self.processes).map(|_| start()).collect();
        for child in &children {
            child.wait_for_line("ready");
        }

        let mut struck = HashSet::new();
        let (mut killed, mut paused) = (0, 0);
        let mut overshoot = Duration::ZERO;
        let mut random = rand::rng();
        let ends = Instant::now() + self.lasts;
        // A run in which nobody was overtaken has shown little.
        while Instant::now() < ends || length(witness, "overtaken") == 0 {
            wait_for_progress(witness);
            // Several at once are likelier to hit the holder, and they cost no more than one: what is known of them is
            // equally old.
            let victims = random.random_range(1..self.processes);
            let pause = TTL.mul_f64(random.random_range(0.1..1.5));
            let waits = Control::start(pause);
            let mut stopped = Vec::new();
            let mut dead = Vec::new();
            for child in children.split_off(children.len() - victims) {
                struck.insert(child.id().to_string());
                match random.random() {
                    true => dead.push(child),
                    false => stopped.push(child),
                }
            }
            for child in &mut dead {
                child.kill();
            }
            for child in &stopped {
                child.pause();
            }
            killed += dead.len();
            paused += stopped.len();
            // Those that are struck next have been there for longest.
            let fresh: Vec<Child> = dead.iter().map(|_| start()).collect();
            // So long they stand still: it is what the others have to get over.
            let_pass(pause);
            for child in &stopped {
                child.resume();
            }
            overshoot = overshoot.max(waits.overshoot());
            children.splice(0..0, stopped.into_iter().chain(fresh));
        }
        wait_for_progress(witness);
        witness.run("SET", &["stop", "1"]);
        for child in children {
            child.wait().succeeded();
        }

        let list = |key: &str| -> Vec<String> {
            redis::cmd("LRANGE")
                .arg(&[key, "0", "-1"])
                .query(&mut witness.connection())
                .expect("the witness is well")
        };
        let numbers = |key: &str| -> Vec<u64> {
            let list = list(key).into_iter();
            list.map(|n| n.parse().expect("a number")).collect()
        };
        let (overtaken, turned_away) = (list("overtaken"), list("turned away"));
        for who in overtaken.iter().chain(&turned_away).chain(&list("told")) {
            assert!(
                struck.contains(who),
                "{who} lost the lock unharmed: {self:?}"
            );
        }
        let accepted = numbers("accepted");
        assert!(accepted.is_sorted_by(|earlier, later| earlier < later));
        let at = numbers("at");
        let stalls = at.windows(2).map(|both| both[1] - both[0]);
        ChaosReport {
            killed,
            paused,
            accepted: accepted.len(),
            overtaken: overtaken.len(),
            turned_away: turned_away.len(),
            stall: Duration::from_micros(stalls.max().expect("somebody came")),
            bound: self.bound() + 3 * overshoot + ms(300),
        }
    }

    /// What those who were struck together may cost: the lease that one of them held.
    fn bound(self) -> Duration {
        match self.kind {
            "mutex" => TTL,
            // Or it goes on before that, and passes the lock on to one who was killed with it. Then the next refresh grants.
            _ => TTL + GRANT + REFRESH,
        }
    }
}

impl ChaosReport {
    #[track_caller]
    pub fn assert_promises(&self) {
        assert!(self.stall <= self.bound, "{self:?}");
    }
}

/// Returns when somebody has come in some times more.
#[track_caller]
fn wait_for_progress(witness: &Server) {
    let before = length(witness, "accepted");
    eventually(ms(60_000), || length(witness, "accepted") >= before + 20);
}

fn length(witness: &Server, list: &str) -> usize {
    redis::cmd("LLEN")
        .arg(list)
        .query(&mut witness.connection())
        .expect("the witness is well")
}

/// The role of each process: takes the lock until told to stop.
pub fn survivor() {
    let client = Client::builder().url(parameter("URL")).ttl(TTL);
    let client = client.build().expect("a URL of ours");
    let witness = redis::Client::open(parameter("WITNESS")).expect("a URL");
    let kind = parameter("KIND");
    thread::scope(|scope| {
        for _ in 0..parameter("THREADS").parse().expect("a number") {
            scope.spawn(|| {
                let witness = witness.get_connection().expect("the witness is well");
                survive(witness, || match kind.as_str() {
                    "mutex" => client.mutex("a").lock(),
                    "fair" => client.fair_mutex("a").lock(),
                    _ => unreachable!("there is no {kind}"),
                });
            });
        }
        tell_parent("ready");
    });
}

fn survive(mut witness: Connection, lock: impl Fn() -> Result<MutexGuard, Error>) {
    let own = process::id();
    loop {
        let guard = lock().expect("its server is well");
        let token = guard.fencing_token().value();
        let _: i32 = redis::cmd("EVAL")
            .arg(ENTER)
            .arg(0)
            .arg(token)
            .arg(own)
            .query(&mut witness)
            .expect("the witness is well");
        // A section that takes a moment, in which one who should not come can.
        let_pass(ms(1));
        redis::cmd("HDEL")
            .arg("inside")
            .arg(token)
            .exec(&mut witness)
            .expect("the witness is well");
        match guard.unlock() {
            Ok(Unlocked::Released) => {}
            // The command timeout has passed for who was paused in the middle of the call.
            Ok(Unlocked::AlreadyLost(_)) | Err(Error::Unreachable { .. }) => redis::cmd("RPUSH")
                .arg("told")
                .arg(own)
                .exec(&mut witness)
                .expect("the witness is well"),
            Err(error) => panic!("{error:?}"),
        }
        let stop: bool = redis::cmd("EXISTS")
            .arg("stop")
            .query(&mut witness)
            .expect("the witness is well");
        if stop {
            return;
        }
    }
}
