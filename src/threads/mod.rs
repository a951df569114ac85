//! The client's threads, and what they share with each other and with the calls of users.

pub(crate) mod callbacks;
pub(crate) mod io;
pub(crate) mod site;
pub(crate) mod subscriber;
pub(crate) mod switches;
pub(crate) mod tally;
pub(crate) mod timer;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crossbeam_channel::{Receiver, unbounded};
use parking_lot::Mutex;

use crate::clock::Instant;
use crate::config::Config;
use crate::error::Error;
use crate::hold::Hold;
use crate::kind::{Found, Keys};
use crate::lease::Ask;
use crate::server::Servers;
use crate::stats::Meters;
use crate::threads::callbacks::Callbacks;
use crate::threads::site::{Site, Sites};
use crate::threads::subscriber::Subscription;
use crate::threads::switches::Switches;
use crate::threads::tally::Tally;
use crate::threads::timer::Timer;
use crate::undo::{Released, Undo};
use crate::waiters::Waiters;

/// What the threads work on. Nothing here keeps the client alive: the last client, lock or guard to
/// go stops the threads, and with them this goes.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) servers: Servers,
    pub(crate) waiters: Waiters,
    pub(crate) meters: Meters,
    pub(crate) tally: Tally,
    pub(crate) timer: Timer,
    pub(crate) sites: Sites,
    pub(crate) switches: Switches,
    pub(crate) callbacks: Callbacks,
    /// What was released lately; only kept where the master may be replaced.
    pub(crate) released: Mutex<Released>,
    closed: AtomicBool,
    serial: AtomicU64,
    /// For threads that are started from others of ours.
    me: Weak<Self>,
}

impl Shared {
    pub(crate) fn new(config: Config, servers: Servers) -> Arc<Self> {
        let switches = Switches::new(servers.sentinels().map_or(0, |sentinels| sentinels.len()));
        let tally = Tally::new(&config);
        Arc::new_cyclic(|me| Self {
            tally,
            config,
            servers,
            waiters: Waiters::default(),
            meters: Meters::default(),
            timer: Timer::default(),
            sites: Sites::default(),
            switches,
            callbacks: Callbacks::default(),
            released: Mutex::default(),
            closed: AtomicBool::new(false),
            serial: AtomicU64::new(0),
            me: Weak::clone(me),
        })
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
        self.sites.start(self, self.servers.fixed())?;
        self.switches.start(self)
    }

    /// The site that keeps a name now, as far as is known.
    fn home(&self, keys: &Keys) -> Arc<Site> {
        let site = self.sites.of(&self.servers.home(keys));
        if let Some(me) = self.me.upgrade()
            && let Err(error) = site.io.start(&me, &site)
        {
            // A lease that is not renewed for that is lost by its own clock, and its holder told.
            log::error!("nothing is renewed or undone: {error}");
        }
        site
    }

    /// Wants to hear the releases of a name.
    pub(crate) fn subscribe<'a>(
        self: &Arc<Self>,
        keys: &'a Keys,
        until: Instant,
    ) -> Result<Subscription<'a>, Error> {
        self.home(keys).subscribe(self, keys, until)
    }

    /// Asks for the renewals that are due.
    fn renew(&self, asks: Vec<(Arc<Hold>, Ask)>) {
        let mut batches: Vec<(Arc<Site>, Vec<_>)> = Vec::new();
        for (hold, ask) in asks {
            let home = self.home(&hold.keys);
            match batches
                .iter_mut()
                .find(|(site, _)| Arc::ptr_eq(site, &home))
            {
                Some((_, batch)) => batch.push((hold, ask)),
                None => batches.push((home, vec![(hold, ask)])),
            }
        }
        for (site, batch) in batches {
            site.io.renew(batch);
        }
    }

    /// Repeats a release until it is sure.
    pub(crate) fn undo(&self, undo: Undo) {
        self.sites.note_undo(&undo.id);
        self.home(&undo.keys).io.undo(undo);
    }

    /// Releases all `holds` until `until`. The receiver gets what was found for each that was
    /// answered, and is disconnected at the end.
    pub(crate) fn release(&self, holds: Vec<Arc<Hold>>, until: Instant) -> Receiver<Found> {
        let (told, found) = unbounded();
        for hold in holds {
            let keys = Arc::clone(&hold.keys);
            self.undo(Undo::told(keys, hold.id.clone(), until, told.clone()));
        }
        found
    }

    /// Tells a loss to the waiters and the callbacks, once. Those who listen on the guard's channel
    /// were told when it was noticed.
    pub(crate) fn tell_loss(&self, hold: &Arc<Hold>) {
        let Some(lost) = hold.untold() else { return };
        self.meters.lost(lost);
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
            self.undo(undo);
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
