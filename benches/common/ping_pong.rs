//! Measures the time from the start of one process's unlock to the return of another's `lock`.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process;
use std::thread;
use std::time::Duration;

use leasehold::MutexGuard;

use crate::clocks::clock;
use crate::samples::Samples;
use crate::turns::{Runner, take_turns};
use support::{self, Child};

/// Enough time for a waiter to fall asleep, on every compared side.
const FALLS_ASLEEP: Duration = Duration::from_millis(2);

/// Sent instead of a side's number to end the waiting process: no side has this number.
const END: u8 = u8::MAX;

/// One of the ways to lock that are compared.
pub trait Side {
    fn take(&mut self);
    fn release(&mut self);
}

/// Creates all sides, in the same order in both processes.
pub type Sides = fn(url: &str) -> Vec<Box<dyn Side>>;

/// A lock of this crate.
pub struct Ours<L> {
    lock: L,
    guard: Option<MutexGuard>,
}

impl<L: Fn() -> MutexGuard> Ours<L> {
    pub fn new(lock: L) -> Self {
        Self { lock, guard: None }
    }
}

impl<L: Fn() -> MutexGuard> Side for Ours<L> {
    fn take(&mut self) {
        self.guard = Some((self.lock)());
    }

    fn release(&mut self) {
        let guard = self.guard.take().expect("the lock is held");
        guard.unlock().unwrap();
    }
}

/// The waiting process. The bench must define the child role `waiter`, which calls `wait`.
pub struct Waiter {
    child: Child,
    connection: TcpStream,
}

impl Waiter {
    pub fn start(url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let child = Child::spawn("waiter", &[("URL", url), ("PORT", &port)]);
        let (connection, _) = listener.accept().unwrap();
        connection.set_nodelay(true).unwrap();
        Self { child, connection }
    }

    /// Releases `side` while the other process waits for it, and repeats this `times` times.
    ///
    /// `n` is the number of the side, from 0. Returns for each repetition the time from the start
    /// of the release to the end of the other process's acquire.
    pub fn hand_offs(&self, times: usize, n: usize, side: &mut dyn Side) -> Vec<Duration> {
        self.slow_hand_offs(FALLS_ASLEEP, times, n, side)
    }

    /// Like [`hand_offs`](Self::hand_offs), for a side whose waiter sleeps only after this time.
    pub fn slow_hand_offs(
        &self,
        falls_asleep: Duration,
        times: usize,
        n: usize,
        side: &mut dyn Side,
    ) -> Vec<Duration> {
        let mut connection = &self.connection;
        (0..times)
            .map(|_| {
                side.take();
                connection.write_all(&[u8::try_from(n).unwrap()]).unwrap();
                thread::sleep(falls_asleep);
                let began = clock();
                side.release();
                let mut taken = [0; 8];
                connection.read_exact(&mut taken).unwrap();
                // The other process sends a second message after its release.
                connection.read_exact(&mut [0]).unwrap();
                Duration::from_nanos(u64::from_ne_bytes(taken)).saturating_sub(began)
            })
            .collect()
    }

    pub fn end(mut self) {
        self.connection.write_all(&[END]).unwrap();
        self.child.wait().succeeded();
    }
}

/// Measures the sides in turn; each hands the lock to the waiting process `hand_offs` times a
/// round.
pub fn in_turns(
    url: &str,
    rounds: usize,
    hand_offs: usize,
    sides: &mut [Box<dyn Side>],
) -> Vec<Samples> {
    let waiter = Waiter::start(url);
    let mut runners: Vec<Runner<'_>> = Vec::new();
    for (n, side) in sides.iter_mut().enumerate() {
        let waiter = &waiter;
        runners.push(Box::new(move || {
            waiter.hand_offs(hand_offs, n, side.as_mut())
        }));
    }
    let samples = take_turns(rounds, &mut runners);
    drop(runners);
    waiter.end();
    samples
}

/// Runs in the waiting process: acquires each requested side, reports when, and releases it. Exits
/// when the starter sends a number without a side.
pub fn wait(sides: Sides) {
    let port: u16 = support::parameter("PORT").parse().unwrap();
    let mut starter = TcpStream::connect(("127.0.0.1", port)).unwrap();
    starter.set_nodelay(true).unwrap();
    let mut sides = sides(&support::parameter("URL"));
    loop {
        let mut n = [0];
        starter.read_exact(&mut n).unwrap();
        let Some(side) = sides.get_mut(usize::from(n[0])) else {
            process::exit(0);
        };
        side.take();
        let taken = u64::try_from(clock().as_nanos()).unwrap();
        starter.write_all(&taken.to_ne_bytes()).unwrap();
        side.release();
        starter.write_all(&[0]).unwrap();
    }
}
