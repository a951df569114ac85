//! The contenders: the locks of this crate, a hand-written poller, and a hand-written queue.

use std::thread;
use std::time::Duration;

use leasehold::{Client, Error, MutexGuard, Unlocked};

use super::fleet::{Lockers, Section};
use super::floor::fair::Granted;
use super::floor::pair::Bare;
use super::ping_pong::Side;

/// The name that all of them lock.
const NAME: &str = "contended";

/// The poller's pause after a refusal.
const POLLS_EVERY: Duration = Duration::from_millis(1);

/// Opens a contender. The threads of a process share one client; each poller has its own
/// connection.
pub(crate) fn open(kind: &str, url: &str) -> Lockers {
    match kind {
        "mutex" => {
            let mutex = Client::open(url).unwrap().mutex(NAME);
            Box::new(move || {
                let mutex = mutex.clone();
                Box::new(move |section| ours(mutex.lock().unwrap(), section))
            })
        }
        "fair" => {
            let mutex = Client::open(url).unwrap().fair_mutex(NAME);
            Box::new(move || {
                let mutex = mutex.clone();
                Box::new(move |section| ours(mutex.lock().unwrap(), section))
            })
        }
        "poller" => {
            let url = url.to_owned();
            Box::new(move || {
                let mut bare = Bare::new(&url, NAME);
                Box::new(move |section| {
                    let id = loop {
                        match bare.acquire() {
                            Some(id) => break id,
                            None => thread::sleep(POLLS_EVERY),
                        }
                    };
                    section.run(0);
                    bare.release(&id);
                    Ok(())
                })
            })
        }
        "granted" => granted(url, Granted::new),
        "granted-directly" => granted(url, Granted::on_waiting_thread),
        _ => unreachable!("unknown kind {kind}"),
    }
}

fn granted(url: &str, new: fn(&str) -> Granted) -> Lockers {
    let url = url.to_owned();
    Box::new(move || {
        let mut granted = new(&url);
        Box::new(move |section| {
            granted.take();
            section.run(0);
            granted.release();
            Ok(())
        })
    })
}

fn ours(guard: MutexGuard, section: &Section) -> Result<(), String> {
    section.run(guard.fencing_token().value());
    released(guard.unlock())
}

pub(crate) fn released(answer: Result<Unlocked, Error>) -> Result<(), String> {
    match answer {
        Ok(Unlocked::Released) => Ok(()),
        Ok(Unlocked::AlreadyLost(lost)) => Err(format!("lost: {lost:?}")),
        Err(error) => Err(error.to_string()),
    }
}
