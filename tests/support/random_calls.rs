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

/// One call in this many loses its reply.
const LOSES: u32 = 20;

/// Each thread of a run has its own name, clients and model.
const THREADS: usize = 3;

/// How a call ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    WithReply,
    /// Its effects are undone in the background.
    AtItsDeadline,
    /// Its command may reach the server at any time, and then refuse other calls until its undo.
    WithoutReply,
}

/// The calls of one name, and what a model knows of them.
pub trait Model {
    /// Returns the model of a name that nobody uses yet.
    fn start(server: &Server, proxy: &Proxy, name: String) -> Self;

    /// Makes a call and compares its outcome. The reply of the call may be lost if it `loses`:
    /// apart from that, returns how the call ended.
    fn call(&mut self, rng: &mut SmallRng, loses: bool) -> Ended;

    /// Returns what Redis has of the name if it is not what the model expects.
    fn difference(&mut self) -> Option<String>;
}

/// Makes `steps` calls, over all threads, and compares Redis with the model after each.
///
/// `LEASEHOLD_STEPS` overrides the number, and `LEASEHOLD_SEED` repeats a run.
pub fn compare_random_calls<M: Model>(steps: usize) {
    let number = |key| Some(env::var(key).ok()?.parse::<usize>().expect("a number"));
    let steps = number("LEASEHOLD_STEPS").unwrap_or(steps) / THREADS;
    let seed = number("LEASEHOLD_SEED").map_or_else(rand::random, |seed| seed as u64);
    println!("LEASEHOLD_SEED={seed} repeats this run");
    let server = &Server::start();
    thread::scope(|scope| {
        for n in 0..THREADS {
            scope.spawn(move || {
                let proxy = Proxy::new(server);
                let mut rng = SmallRng::seed_from_u64(seed + n as u64);
                // Dropped before the proxy: its guards are released through it.
                let mut model = M::start(server, &proxy, format!("name {n}"));
                for number in 0..steps {
                    let ended = step(&mut model, &proxy, &mut rng);
                    if ended == Ended::WithoutReply {
                        model = M::start(server, &proxy, format!("name {n} from {number}"));
                    }
                }
            });
        }
    });
}

fn step(model: &mut impl Model, proxy: &Proxy, rng: &mut SmallRng) -> Ended {
    let loses = rng.random_ratio(1, LOSES);
    if loses {
        proxy.set_open(Traffic::CutOnReply);
    }
    let ended = model.call(rng, loses);
    if loses {
        proxy.set_all(Traffic::Pass);
    }
    if loses || ended != Ended::WithReply {
        // The effects of a call without a reply are undone in the background.
        eventually(PATIENCE, || model.difference().is_none());
    } else {
        assert_eq!(model.difference(), None);
    }
    ended
}

/// Returns how a call ended that waited for a short time, or did not wait.
pub fn ended<T>(outcome: &Result<Option<T>, Error>, has_waited: bool) -> Ended {
    match (has_waited, outcome) {
        (false, _) => Ended::WithReply,
        (true, Ok(_)) => Ended::AtItsDeadline,
        (true, Err(_)) => Ended::WithoutReply,
    }
}

/// Removes and returns any of what is held, if anything is.
pub fn take_any<T>(held: &mut Vec<T>, rng: &mut SmallRng) -> Option<T> {
    let count = held.len();
    (count > 0).then(|| held.swap_remove(rng.random_range(0..count)))
}

/// Returns a builder whose calls do not fail because this machine is slow.
pub fn patient(proxy: &Proxy) -> ClientBuilder {
    let builder = leasehold::Client::builder().command_timeout(ms(10_000));
    builder.url(proxy.url())
}
