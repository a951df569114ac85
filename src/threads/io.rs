//! The io thread: renewals in one write, undos until they are sure, and the probe of the subscriber.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::clock::{Instant, nap};
use crate::error::Error;
use crate::hold::Hold;
use crate::kind::Found;
use crate::lease::{Ask, Standing};
use crate::lost::Lost;
use crate::renewed::Renewed;
use crate::replicas::Replicas;
use crate::scripts::{Call, Reply};
use crate::server::{Fault, Wire};
use crate::threads::Shared;
use crate::threads::site::Site;
use crate::threads::tally::Parcel;
use crate::threads::worker::{Worker, contain};
use crate::undo::Undo;

/// The most commands in one write: their answers must fit into the sockets' buffers meanwhile.
const MOST_TOGETHER: usize = 256;

/// How often the subscriber is proved to hear, while anybody waits.
const PROBE_EVERY: Duration = Duration::from_secs(1);

enum Job {
    Renew(Vec<(Arc<Hold>, Ask)>),
    Undo(Undo),
    /// Somebody waits.
    Probe,
    Stop,
}

pub(crate) struct Io {
    queue: Sender<Job>,
    jobs: Receiver<Job>,
    /// Somebody waits, and the thread knows it.
    probing: AtomicBool,
    worker: Worker,
}

impl Default for Io {
    fn default() -> Self {
        let (queue, jobs) = unbounded();
        Self {
            queue,
            jobs,
            probing: AtomicBool::new(false),
            worker: Worker::new("leasehold-io"),
        }
    }
}

impl Io {
    pub(crate) fn start(&self, shared: &Arc<Shared>, site: &Arc<Site>) -> Result<(), Error> {
        if self.worker.is_started() {
            return Ok(());
        }
        let (shared, site) = (Arc::clone(shared), Arc::clone(site));
        self.worker
            .start(move || Desk::default().run(&shared, &site))
    }

    fn send(&self, job: Job) {
        // The receiver is in self, so there is somebody to send to.
        let _ = self.queue.send(job);
    }

    pub(crate) fn renew(&self, asks: Vec<(Arc<Hold>, Ask)>) {
        self.send(Job::Renew(asks));
    }

    /// Repeats a release until it is sure.
    pub(crate) fn undo(&self, undo: Undo) {
        self.send(Job::Undo(undo));
    }

    /// Somebody waits: proves from now on that the subscriber hears.
    pub(crate) fn probe(&self) {
        // Once is enough: a thread woken for every waiter would cost more than the waiting.
        if !self.probing.swap(true, Ordering::SeqCst) {
            self.send(Job::Probe);
        }
    }

    pub(crate) fn stop(&self) {
        self.send(Job::Stop);
    }

    pub(crate) fn join(&self, until: Instant) -> bool {
        self.worker.join(until)
    }
}

/// What one write holds a part of.
enum Item {
    Renew(Arc<Hold>, Ask),
    Undo(Undo),
    Tally(Parcel),
}

impl Item {
    fn replicas(&self) -> Option<Replicas> {
        match self {
            Self::Renew(hold, _) => hold.replicas,
            Self::Undo(_) | Self::Tally(_) => None,
        }
    }

    fn call(&self) -> Call<'_> {
        match self {
            Self::Renew(hold, ask) => hold
                .keys
                .renew(&hold.id, ask.ttl, false)
                .acknowledged_by(hold.replicas),
            Self::Undo(undo) => undo.keys.release(undo.id.as_str().as_bytes()),
            Self::Tally(parcel) => parcel.call(),
        }
    }
}

/// What the thread has before it.
#[derive(Default)]
struct Desk {
    wire: Option<Wire>,
    undos: Vec<Undo>,
    probe_at: Option<Instant>,
    /// When what was counted is told.
    tally_at: Option<Instant>,
}

impl Desk {
    fn run(mut self, shared: &Shared, site: &Site) {
        let mut stopping = false;
        self.tally_at = shared.tally.first();
        while !stopping {
            let mut items = Vec::new();
            let mut job = self.wait(&site.io.jobs);
            while let Some(next) = job {
                match next {
                    Job::Renew(asks) => {
                        items.extend(asks.into_iter().map(|(hold, ask)| Item::Renew(hold, ask)));
                    }
                    Job::Undo(undo) => self.undos.push(undo),
                    Job::Probe => self.probe_at = self.probe_at.or(Some(Instant::START)),
                    Job::Stop => stopping = true,
                }
                job = site.io.jobs.try_recv().ok();
            }
            self.take_due_undos(shared, &mut items, stopping);
            let parcels = shared.tally.due(shared, site, &mut self.tally_at, stopping);
            items.extend(parcels.into_iter().map(Item::Tally));
            // Those who wait for replicas go last, and with their like.
            items.sort_by_key(|item| item.replicas().map(|wanted| (wanted.within, wanted.wanted)));
            while let Some(first) = items.first() {
                let replicas = first.replicas();
                let alike = items.iter().take(MOST_TOGETHER);
                let alike = alike.take_while(|item| item.replicas() == replicas).count();
                let rest = items.split_off(alike);
                self.write(shared, site, std::mem::replace(&mut items, rest));
            }
            contain(|| self.probe(shared, site));
        }
    }

    /// Waits for work; `None` when an undo or the probe is due.
    fn wait(&self, jobs: &Receiver<Job>) -> Option<Job> {
        let next = self
            .undos
            .iter()
            .map(|undo| undo.next)
            .chain(self.probe_at)
            .chain(self.tally_at)
            .min();
        match next {
            None => jobs.recv().ok(),
            Some(at) => jobs.recv_timeout(nap(Instant::now(), at)).ok(),
        }
    }

    fn take_due_undos(&mut self, shared: &Shared, items: &mut Vec<Item>, all: bool) {
        let now = Instant::now();
        let over = self.undos.extract_if(.., |undo| !undo.is_worthwhile(now));
        over.for_each(|undo| shared.sites.forget_undo(&undo.id));
        let due = self.undos.extract_if(.., |undo| all || undo.next <= now);
        items.extend(due.map(Item::Undo));
    }

    /// Sends `items` in one write, and sees to their answers.
    fn write(&mut self, shared: &Shared, site: &Site, mut items: Vec<Item>) {
        let asked = Instant::now();
        let server = &site.server;
        self.wire.take_if(|wire| !server.is_current(wire));
        if self.wire.is_none() {
            match server.wire(asked.after(server.command_timeout())) {
                Ok(wire) => self.wire = Some(wire),
                Err(fault) => {
                    for item in items {
                        self.settle(shared, item, asked, Err(fault.clone()));
                    }
                    return;
                }
            }
        }
        let Some(wire) = &mut self.wire else { return };
        let sent = Instant::now();
        // What was lost or let go while it lay here must not be given a whole ttl more.
        items.retain(|item| match item {
            Item::Renew(hold, _) => matches!(hold.stand(sent), Standing::Held(_)),
            Item::Undo(_) | Item::Tally(_) => true,
        });
        let calls: Vec<Call<'_>> = items.iter().map(Item::call).collect();
        let (answers, usable) = server.batch(wire, &calls);
        drop(calls);
        if !usable {
            self.wire = None;
        }
        for (item, answer) in items.into_iter().zip(answers) {
            self.settle(shared, item, sent, answer);
        }
    }

    fn settle(&mut self, shared: &Shared, item: Item, sent: Instant, answer: Result<Reply, Fault>) {
        match item {
            Item::Renew(hold, ask) => contain(|| {
                renewed(shared, &hold, ask, sent, &answer);
                drop(hold);
            }),
            Item::Tally(parcel) => shared.tally.settle(parcel, answer),
            Item::Undo(mut undo) => {
                let found = answer.ok().as_ref().and_then(Found::read);
                if undo.is_over(Instant::now(), found) {
                    shared.sites.forget_undo(&undo.id);
                } else {
                    self.undos.push(undo);
                }
            }
        }
    }

    /// Publishes to the subscriber what it must hear within a second.
    fn probe(&mut self, shared: &Shared, site: &Site) {
        let now = Instant::now();
        if self.probe_at.is_none_or(|at| at > now) || shared.is_closed() {
            return;
        }
        let is_used = || site.subscriber.is_used();
        if !is_used() {
            site.io.probing.store(false, Ordering::SeqCst);
            // Whoever came just before this saw the flag set, and is seen here.
            if !is_used() {
                self.probe_at = None;
                return;
            }
            site.io.probing.store(true, Ordering::SeqCst);
        }
        self.probe_at = Some(now.after(PROBE_EVERY));
        site.subscriber.probe(&site.server);
    }
}

/// Sees to the answer of a renewal, and returns what it found. A failed call is no loss; a definite
/// "not yours" is.
pub(crate) fn renewed(
    shared: &Shared,
    hold: &Arc<Hold>,
    ask: Ask,
    sent: Instant,
    answer: &Result<Reply, Fault>,
) -> Option<Found> {
    let now = Instant::now();
    let found = answer.as_ref().ok().and_then(Found::read);
    // A lease that ran out before the answer came is lost for that.
    hold.stand(now);
    let lag = hold.answered(|lease| {
        let lag = lease.lag(now);
        match found {
            Some(Found::Ours) => lease.confirmed(sent, now, ask),
            _ => lease.unconfirmed(now),
        }
        lag
    });
    if ask.renews {
        count(shared, found, lag);
    }
    match found {
        Some(Found::Nobody) => hold.lose(Lost::Deleted),
        Some(Found::Another) => hold.lose(Lost::Taken),
        Some(Found::Ours) | None => {}
    }
    shared.look_after(hold);
    match (found, answer) {
        (Some(Found::Ours), _) if ask.renews => {
            if let Standing::Held(remaining) = hold.stand(now) {
                tell_renewal(shared, hold, remaining, sent.until(now));
            }
        }
        (None, Err(fault)) => log::debug!(
            name:% = hold.keys.name, holder:% = hold.id.short(), outcome = "not renewed",
            ttl_ms = hold.ttl_ms(), trace_id = hold.trace_id.as_deref();
            "not renewed {}, to be tried again: {fault}", hold.keys.name
        ),
        _ => {}
    }
    found
}

/// Counts a renewal that came back so long after it was due. What it found gone is a loss instead.
pub(crate) fn count(shared: &Shared, found: Option<Found>, lag: Duration) {
    match found {
        Some(Found::Ours) => shared.meters.renewed(Some(lag)),
        Some(Found::Nobody | Found::Another) => {}
        None => shared.meters.renewed(None),
    }
}

fn tell_renewal(shared: &Shared, hold: &Arc<Hold>, remaining: Duration, took: Duration) {
    if let Some(on_renew) = hold.on_renew.clone() {
        let renewed = Renewed {
            name: hold.keys.name.clone(),
            holder_id: hold.id.clone(),
            fencing_token: hold.token,
            remaining,
            took,
        };
        shared.callbacks.run(Box::new(move || on_renew(&renewed)));
    }
    log::debug!(
        name:% = hold.keys.name, holder:% = hold.id.short(), outcome = "renewed", ttl_ms = hold.ttl_ms(),
        remaining_ms = remaining.as_millis() as u64, trace_id = hold.trace_id.as_deref();
        "renewed {} for {remaining:?}", hold.keys.name
    );
}
