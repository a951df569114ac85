//! The io thread: renewals in one write, undos until they are sure, and the probe of the subscriber.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::clock::{Instant, LONGEST_SLEEP, nap};
use crate::error::Error;
use crate::hold::Hold;
use crate::holder::HolderId;
use crate::kind::{Found, Keys};
use crate::lease::{Ask, Standing};
use crate::lost::Lost;
use crate::renewed::Renewed;
use crate::scripts::{Call, Reply};
use crate::server::{Fault, Wire};
use crate::threads::Shared;
use crate::threads::worker::Worker;
use crate::wait::RECONNECT;

/// The most commands in one write: their answers must fit into the sockets' buffers meanwhile.
const MOST_TOGETHER: usize = 256;

/// How often the subscriber is proved to hear, while anybody waits.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// A release that is repeated until it is sure.
#[derive(Debug)]
pub(crate) struct Undo {
    pub(crate) keys: Arc<Keys>,
    pub(crate) id: HolderId,
    /// By then the key is gone by itself.
    pub(crate) until: Instant,
    /// Undoes an acquire that may yet run, so that finding nothing proves nothing.
    pub(crate) of_acquire: bool,
    tries: u32,
    next: Instant,
}

enum Job {
    Renew(Vec<(Arc<Hold>, Ask)>),
    Undo(Undo),
    /// Releases for a client that shuts down; each hold comes back with what was found.
    Release(Vec<Arc<Hold>>, Sender<Option<Found>>),
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
    pub(crate) fn start(&self, shared: &Arc<Shared>) -> Result<(), Error> {
        if self.worker.is_started() {
            return Ok(());
        }
        let shared = Arc::clone(shared);
        self.worker.start(move || Desk::default().run(&shared))
    }

    fn send(&self, job: Job) {
        // The receiver is in self, so there is somebody to send to.
        let _ = self.queue.send(job);
    }

    pub(crate) fn renew(&self, asks: Vec<(Arc<Hold>, Ask)>) {
        self.send(Job::Renew(asks));
    }

    /// Repeats a release until it is sure, at the longest until `until`.
    pub(crate) fn undo(&self, keys: Arc<Keys>, id: HolderId, until: Instant, of_acquire: bool) {
        self.send(Job::Undo(Undo {
            keys,
            id,
            until,
            of_acquire,
            tries: 0,
            next: Instant::START,
        }));
    }

    /// Releases all `holds` once. The receiver gets an answer for each, and is disconnected at the
    /// end.
    pub(crate) fn release(&self, holds: Vec<Arc<Hold>>) -> Receiver<Option<Found>> {
        let (answers, receiver) = unbounded();
        self.send(Job::Release(holds, answers));
        receiver
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
    Release(Arc<Hold>, Sender<Option<Found>>),
}

impl Item {
    fn call(&self) -> Call<'_> {
        match self {
            Self::Renew(hold, ask) => hold.keys.renew(&hold.id, ask.ttl, false),
            Self::Undo(undo) => undo.keys.release(undo.id.as_str().as_bytes()),
            Self::Release(hold, _) => hold.keys.release(hold.id.as_str().as_bytes()),
        }
    }
}

/// What the thread has before it.
#[derive(Default)]
struct Desk {
    wire: Option<Wire>,
    undos: Vec<Undo>,
    probe_at: Option<Instant>,
}

impl Desk {
    fn run(mut self, shared: &Shared) {
        let mut stopping = false;
        while !stopping {
            let mut items = Vec::new();
            let mut job = self.wait(&shared.io.jobs);
            while let Some(next) = job {
                match next {
                    Job::Renew(asks) => {
                        items.extend(asks.into_iter().map(|(hold, ask)| Item::Renew(hold, ask)))
                    }
                    Job::Undo(undo) => self.undos.push(undo),
                    Job::Release(holds, answers) => {
                        items.extend(
                            holds
                                .into_iter()
                                .map(|hold| Item::Release(hold, answers.clone())),
                        );
                    }
                    Job::Probe => self.probe_at = self.probe_at.or(Some(Instant::START)),
                    Job::Stop => stopping = true,
                }
                job = shared.io.jobs.try_recv().ok();
            }
            self.take_due_undos(&mut items, stopping);
            while !items.is_empty() {
                let rest = items.split_off(items.len().min(MOST_TOGETHER));
                self.write(shared, std::mem::replace(&mut items, rest));
            }
            self.probe(shared);
        }
    }

    /// Waits for work; `None` when an undo or the probe is due.
    fn wait(&self, jobs: &Receiver<Job>) -> Option<Job> {
        let next = self
            .undos
            .iter()
            .map(|undo| undo.next)
            .chain(self.probe_at)
            .min();
        match next {
            None => jobs.recv().ok(),
            Some(at) => jobs.recv_timeout(nap(Instant::now(), at)).ok(),
        }
    }

    fn take_due_undos(&mut self, items: &mut Vec<Item>, all: bool) {
        let now = Instant::now();
        self.undos.retain(|undo| undo.until > now);
        let due = self.undos.extract_if(.., |undo| all || undo.next <= now);
        items.extend(due.map(Item::Undo));
    }

    /// Sends `items` in one write, and sees to their answers.
    fn write(&mut self, shared: &Shared, items: Vec<Item>) {
        let asked = Instant::now();
        if self.wire.is_none() {
            match shared
                .server
                .wire(asked.after(shared.server.command_timeout()))
            {
                Ok(wire) => self.wire = Some(wire),
                Err(fault) => {
                    log::debug!("renewals and undos wait: {fault}");
                    for item in items {
                        self.settle(shared, item, asked, Err(fault.clone()));
                    }
                    return;
                }
            }
        }
        let Some(wire) = &mut self.wire else { return };
        let sent = Instant::now();
        let calls: Vec<Call<'_>> = items.iter().map(Item::call).collect();
        let (answers, usable) = shared.server.batch(wire, &calls);
        drop(calls);
        if !usable {
            self.wire = None;
        }
        for (item, answer) in items.into_iter().zip(answers) {
            self.settle(shared, item, sent, answer);
        }
    }

    fn settle(&mut self, shared: &Shared, item: Item, sent: Instant, answer: Result<Reply, Fault>) {
        let found = match &answer {
            Ok(reply) => Found::read(reply),
            Err(_) => None,
        };
        match item {
            Item::Renew(hold, ask) => renewed(shared, &hold, ask, sent, found, answer.err()),
            Item::Undo(undo) => self.undone(undo, found),
            Item::Release(_, answers) => {
                // Whoever asked may have run out of time.
                let _ = answers.send(found);
            }
        }
    }

    fn undone(&mut self, mut undo: Undo, found: Option<Found>) {
        let over = match found {
            Some(Found::Ours) => true,
            Some(_) => !undo.of_acquire,
            None => false,
        };
        if over {
            log::debug!(
                name:% = undo.keys.name, holder:% = undo.id.short();
                "undid {} (holder {})", undo.keys.name, undo.id.short()
            );
            return;
        }
        undo.next = Instant::now().after(RECONNECT.pause(undo.tries));
        undo.tries = undo.tries.saturating_add(1);
        self.undos.push(undo);
    }

    /// Publishes to the subscriber what it must hear within a second.
    fn probe(&mut self, shared: &Shared) {
        let now = Instant::now();
        if self.probe_at.is_none_or(|at| at > now) || shared.is_closed() {
            return;
        }
        if !shared.waiters.anybody() {
            shared.io.probing.store(false, Ordering::SeqCst);
            // Whoever joined just before this saw the flag set, and is seen here.
            if !shared.waiters.anybody() {
                self.probe_at = None;
                return;
            }
            shared.io.probing.store(true, Ordering::SeqCst);
        }
        self.probe_at = Some(now.after(PROBE_EVERY.min(LONGEST_SLEEP)));
        shared.subscriber.probe(&shared.server);
    }
}

/// Sees to the answer of a renewal. A failed call is no loss; a definite "not yours" is.
pub(crate) fn renewed(
    shared: &Shared,
    hold: &Arc<Hold>,
    ask: Ask,
    sent: Instant,
    found: Option<Found>,
    fault: Option<Fault>,
) {
    let now = Instant::now();
    hold.answered(|lease| match found {
        Some(Found::Ours) => lease.confirmed(sent, now, ask),
        _ => lease.unconfirmed(now),
    });
    match found {
        Some(Found::Ours) if ask.renews => {
            if let Standing::Held(remaining) = hold.stand(now) {
                tell_renewal(shared, hold, remaining, sent.until(now));
            }
        }
        Some(Found::Ours) => {}
        Some(Found::Nobody) => hold.lose(Lost::Deleted),
        Some(Found::Another) => hold.lose(Lost::Taken),
        None => {
            let why = fault.map_or_else(
                || "an answer that cannot be read".to_owned(),
                |fault| fault.to_string(),
            );
            log::debug!(
                name:% = hold.keys.name, holder:% = hold.id.short(), trace_id = hold.trace_id.as_deref();
                "not renewed {}, to be tried again: {why}", hold.keys.name
            );
        }
    }
    shared.look_after(hold);
}

fn tell_renewal(shared: &Shared, hold: &Arc<Hold>, remaining: Duration, took: Duration) {
    log::debug!(
        name:% = hold.keys.name, holder:% = hold.id.short(), remaining_ms = remaining.as_millis() as u64,
        trace_id = hold.trace_id.as_deref();
        "renewed {} for {remaining:?}", hold.keys.name
    );
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
}
