//! The client's threads, and what they share with each other and with the calls of users.

pub(crate) mod callbacks;
pub(crate) mod io;
pub(crate) mod subscriber;
pub(crate) mod switches;
pub(crate) mod timer;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::clock::Instant;
use crate::config::Config;
use crate::error::Error;
use crate::hold::Hold;
use crate::server::Server;
use crate::threads::callbacks::Callbacks;
use crate::threads::io::Io;
use crate::threads::subscriber::Subscriber;
use crate::threads::switches::Switches;
use crate::threads::timer::Timer;
use crate::undo::Released;
use crate::waiters::Waiters;

/// What the threads work on. Nothing here keeps the client alive: the last client, lock or guard to
/// go stops the threads, and with them this goes.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) server: Server,
    pub(crate) waiters: Waiters,
    pub(crate) timer: Timer,
    pub(crate) io: Io,
    pub(crate) subscriber: Subscriber,
    pub(crate) switches: Switches,
    pub(crate) callbacks: Callbacks,
    /// What was released lately; only kept where the master may be replaced.
    pub(crate) released: Mutex<Released>,
    closed: AtomicBool,
    serial: AtomicU64,
}

impl Shared {
    pub(crate) fn new(config: Config, server: Server) -> Self {
        let switches = Switches::new(server.sentinels().map_or(0, |sentinels| sentinels.len()));
        Self {
            config,
            server,
            waiters: Waiters::default(),
            timer: Timer::default(),
            io: Io::default(),
            subscriber: Subscriber::default(),
            switches,
            callbacks: Callbacks::default(),
            released: Mutex::default(),
            closed: AtomicBool::new(false),
            serial: AtomicU64::new(0),
        }
    }

    /// Errors once the client is shut down.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.is_closed() {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Refuses new work from now on; true for the first call.
    pub(crate) fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    /// Starts the threads that every lease needs. Before the first lease is asked for: then a
    /// machine that gives no more threads costs an error, not a lease without renewal.
    pub(crate) fn start(self: &Arc<Self>) -> Result<(), Error> {
        self.timer.start(self)?;
        self.io.start(self)?;
        self.switches.start(self)
    }

    /// Tells a loss to the waiters and the callbacks, once. Those who listen on the guard's channel
    /// were told when it was noticed.
    pub(crate) fn tell_loss(&self, hold: &Arc<Hold>) {
        let Some(lost) = hold.untold() else { return };
        self.timer.forget(hold);
        self.waiters.ended(&hold.keys.name, &hold.id, false);
        if let Some(on_lost) = hold.on_lost.clone() {
            self.callbacks.run(Box::new(move || on_lost(&lost)));
        }
        // Last, since a user's logger may panic.
        log::warn!(
            name:% = hold.keys.name, holder:% = hold.id.short(), token = hold.token.value(),
            outcome:% = lost, ttl_ms = hold.ttl_ms(), trace_id = hold.trace_id.as_deref();
            "lost {}: {lost} (holder {}, token {})", hold.keys.name, hold.id.short(), hold.token
        );
    }

    /// Another server is the master now: what the one before did last may not have come to it.
    fn follow(&self) {
        for hold in self.timer.all() {
            hold.lease(|lease| lease.doubt(Instant::now()));
            self.look_after(&hold);
        }
        for undo in self.released.lock().take() {
            self.io.undo(undo);
        }
    }

    /// Looks after a lease from now on: sets the timer to what is due next, or tells its loss.
    pub(crate) fn look_after(&self, hold: &Arc<Hold>) {
        let now = Instant::now();
        hold.stand(now);
        match hold.lease(|lease| lease.due(now)) {
            crate::lease::Due::At(at) => self.timer.watch(hold, at),
            crate::lease::Due::Ask => self.timer.watch(hold, now),
            crate::lease::Due::Nothing => self.tell_loss(hold),
        }
    }
}
