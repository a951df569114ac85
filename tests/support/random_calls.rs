//! Random calls, some of which lose their replies, compared with a model in memory.

use std::env;
use std::thread;

use leasehold::{ClientBuilder, Error};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::fair::PATIENCE;
use super::proxy::{Proxy, Traffic};
use super::server::Server;
use super::time::{eventually, ms};

/// One call in this many may lose its reply.
const LOSES: u32 = 20;

/// Each thread of a run has its own name, clients and model.
const THREADS: usize = 3;

/// How a call ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The reply came, or the proxy cut it after the command had run.
    WithReply,
    /// It had a deadline and returned no error. If it gave up, its effects are undone in the
    /// background.
    AtItsDeadline,
    /// It had a deadline and failed. Its command may run at any later time, and other calls are
    /// then refused what it acquires, until its undo.
    WithoutReply,
}

/// Makes random calls on one name, and models what Redis must then contain.
pub trait Model {
    /// Returns the model of a name that nobody uses yet.
    fn start(server: &Server, proxy: &Proxy, name: String) -> Self;

    /// Makes a call, compares its outcome with the model, and returns how the call ended. If it
    /// `loses`, the proxy may cut its reply, or has just cut one of another call, so the call may
    /// fail.
    fn call(&mut self, rng: &mut SmallRng, loses: bool) -> Ended;

    /// Returns how Redis differs from the model, or `None` if they agree.
    fn difference(&mut self) -> Option<String>;
}

/// Makes `steps` calls, over all threads, and compares Redis with the model after each.
///
/// `LEASEHOLD_STEPS` overrides the number of calls, and `LEASEHOLD_SEED` repeats a run.
pub fn compare_random_calls<M: Model>(steps: usize) {
    let from_env = |key| Some(env::var(key).ok()?.parse::<usize>().expect("a number"));
    let steps = from_env("LEASEHOLD_STEPS").unwrap_or(steps) / THREADS;
    let seed = from_env("LEASEHOLD_SEED").map_or_else(rand::random, |seed| seed as u64);
    println!("LEASEHOLD_SEED={seed} repeats this run");
    let server = &Server::start();
    thread::scope(|scope| {
        for n in 0..THREADS {
            scope.spawn(move || {
                let proxy = Proxy::new(server);
                let mut rng = SmallRng::seed_from_u64(seed + n as u64);
                // Dropped before the proxy, through which the model's guards are released.
                let mut model = M::start(server, &proxy, format!("name {n}"));
                let mut has_lost = false;
                for calls in 0..steps {
                    let ended = step(&mut model, &proxy, &mut rng, &mut has_lost);
                    if ended == Ended::WithoutReply {
                        model = M::start(server, &proxy, format!("name {n} from {calls}"));
                    }
                }
            });
        }
    });
}

/// `has_lost`: the call before may have lost its reply. The client may not have noticed yet that
/// another of its connections was closed, too.
fn step(model: &mut impl Model, proxy: &Proxy, rng: &mut SmallRng, has_lost: &mut bool) -> Ended {
    let loses = rng.random_ratio(1, LOSES);
    if loses {
        proxy.set_open(Traffic::CutOnReply);
    }
    let may_fail = std::mem::replace(has_lost, loses) || loses;
    let ended = model.call(rng, may_fail);
    if loses {
        proxy.set_all(Traffic::Pass);
    }
    if may_fail || ended != Ended::WithReply {
        // The effects of a call that gave up or got no reply are undone in the background.
        eventually(PATIENCE, || model.difference().is_none());
    } else {
        assert_eq!(model.difference(), None);
    }
    ended
}

/// Returns how a call with this outcome ended. A call with a deadline may have had no time for its
/// reply.
pub fn ended<T>(outcome: &Result<T, Error>, had_deadline: bool) -> Ended {
    match (had_deadline, outcome) {
        (false, _) => Ended::WithReply,
        (true, Ok(_)) => Ended::AtItsDeadline,
        (true, Err(_)) => Ended::WithoutReply,
    }
}

/// Removes and returns a random element, or returns `None` if there is none.
pub fn take_any<T>(held: &mut Vec<T>, rng: &mut SmallRng) -> Option<T> {
    let count = held.len();
    (count > 0).then(|| held.swap_remove(rng.random_range(0..count)))
}

/// Returns a builder of clients that wait 10 s for a reply: a slow machine makes no call fail.
pub fn patient(proxy: &Proxy) -> ClientBuilder {
    let builder = leasehold::Client::builder().command_timeout(ms(10_000));
    builder.url(proxy.url())
}
