//! The io thread: renewals in one write, undos until they are sure, and the probe of the subscriber.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, after, never, select, unbounded};

use crate::clock::{Instant, nap};
use crate::error::Error;
use crate::hold::Hold;
use crate::kind::{Found, Key};
use crate::lease::{Ask, Standing};
use crate::lost::Lost;
use crate::renewed::Renewed;
use crate::replicas::Replicas;
use crate::scripts::{Call, Reply};
use crate::server::{Condition, Errand, Fault, Lane, Peer, Promise, Wire};
use crate::threads::Shared;
use crate::threads::ballot::Paper;
use crate::threads::site::Site;
use crate::threads::tally::Parcel;
use crate::threads::worker::{Worker, contain};
use crate::undo::Undo;
use crate::wait::Backoff;

/// The most names in one write: their answers must fit into the sockets' buffers meanwhile, and come in time.
const MOST_TOGETHER: usize = 256;

/// How often it is tried whether a server that is not asked answers again, while anybody cares.
const WATCH_EVERY: Duration = Duration::from_millis(500);

/// How often the subscriber is proved to hear, while anybody waits.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// How long after its server was found to be of no more use the thread still sends on what comes.
const LEAVE_AFTER: Duration = Duration::from_secs(2);
/// How long answers that nobody waited for may lie: all that matters in them is what to undo, and
/// how fast the server is.
const TIDY_AFTER: Duration = Duration::from_millis(100);

/// Between probes of a server that is left aside.
const ASIDE: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(4)).jitter(0.5);

enum Job {
    Renew(Vec<Paper>),
    Undo(Undo),
    /// Somebody waits.
    Probe,
    /// Somebody waits until the server is asked again.
    Watch,
    /// The server is of no more use.
    Leave,
    /// The subscriber is to look what it was asked for.
    Wake,
    Stop,
}

pub(crate) struct Io {
    queue: Sender<Job>,
    jobs: Receiver<Job>,
    /// Somebody waits, and the thread knows it.
    probing: AtomicBool,
    /// How renewals go.
    pub(crate) condition: Condition,
    worker: Worker,
}

impl Default for Io {
    fn default() -> Self {
        let (queue, jobs) = unbounded();
        Self {
            queue,
            jobs,
            probing: AtomicBool::new(false),
            condition: Condition::new(0),
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

    pub(crate) fn renew(&self, papers: Vec<Paper>) {
        self.send(Job::Renew(papers));
    }

    /// Repeats a release until it is sure.
    pub(crate) fn undo(&self, undo: Undo) {
        self.send(Job::Undo(undo));
    }

    /// Wakes the subscriber, for a caller who has no time for this server.
    pub(crate) fn wake(&self) {
        self.send(Job::Wake);
    }

    /// Somebody waits: proves from now on that the subscriber hears.
    pub(crate) fn probe(&self) {
        // Once is enough: a thread woken for every waiter would cost more than the waiting.
        if !self.probing.swap(true, Ordering::SeqCst) {
            self.send(Job::Probe);
        }
    }

    /// The server is not asked at present, and somebody waits for that to end.
    pub(crate) fn watch(&self) {
        self.send(Job::Watch);
    }

    /// Ends the thread by and by: somebody may be about to send it something.
    pub(crate) fn leave(&self) {
        self.send(Job::Leave);
    }

    pub(crate) fn is_through(&self) -> bool {
        self.worker.is_through()
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
    Renew(Paper),
    Undo(Undo),
    Tally(Parcel),
}

impl Item {
    fn replicas(&self) -> Option<Replicas> {
        match self {
            Self::Renew(paper) => paper.ballot.hold.replicas,
            Self::Undo(_) | Self::Tally(_) => None,
        }
    }

    fn names(&self) -> usize {
        match self {
            Self::Renew(paper) => paper.keys.names.len(),
            Self::Undo(undo) => undo.keys.names.len(),
            Self::Tally(_) => 1,
        }
    }

    fn key(&self) -> Option<Key<'_>> {
        match self {
            Self::Renew(paper) => Some(paper.keys.key(0)),
            Self::Undo(undo) => Some(undo.keys.key(0)),
            Self::Tally(_) => None,
        }
    }

    fn call(&self) -> Call<'_> {
        match self {
            Self::Renew(Paper { ballot, keys }) => {
                let hold = &ballot.hold;
                keys.renew(&hold.id, ballot.ask.ttl, false)
                    .acknowledged_by(hold.replicas)
            }
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
    /// When it is tried whether a server that is not asked answers again.
    watch_at: Option<Instant>,
    /// When the thread ends, where the server is of no more use.
    leave_at: Option<Instant>,
    /// When it is tried whether the server answers again, and how often it did not.
    ask_at: Option<(Instant, u32)>,
    /// When what callers have left unread is read.
    tidy_at: Option<Instant>,
    /// When what was counted is told.
    tally_at: Option<Instant>,
}

impl Desk {
    fn run(mut self, shared: &Shared, site: &Site) {
        if let Some(peer) = &site.server.peer {
            // What the thread knew is gone if it is here for the second time, after a panic.
            self.tidy_at = Some(Instant::START);
            self.ask_at = peer.is_aside().then_some((Instant::START, 0));
        }
        let mut stopping = false;
        self.tally_at = shared.tally.first();
        while !stopping {
            let mut items = Vec::new();
            let mut job = self.wait(shared, site);
            while let Some(next) = job {
                match next {
                    Job::Renew(papers) => items.extend(papers.into_iter().map(Item::Renew)),
                    Job::Undo(undo) => self.undos.push(undo),
                    Job::Wake => site.subscriber.wake_now(&site.server),
                    Job::Probe => self.probe_at = self.probe_at.or(Some(Instant::START)),
                    Job::Watch => self.watch_at = self.watch_at.or(Some(Instant::START)),
                    Job::Leave => {
                        self.leave_at
                            .get_or_insert_with(|| Instant::now().after(LEAVE_AFTER));
                    }
                    Job::Stop => stopping = true,
                }
                job = site.io.jobs.try_recv().ok();
            }
            if let Some(peer) = &site.server.peer {
                for errand in peer.desk.try_iter() {
                    self.take(shared, site, peer, errand);
                }
            }
            let is_leaving = self.leave_at.is_some();
            self.take_due_undos(shared, &mut items, stopping || is_leaving);
            stopping |= self.leave_at.is_some_and(|at| at <= Instant::now());
            send_on(shared, site, &mut items);
            let parcels = shared.tally.due(shared, site, &mut self.tally_at, stopping);
            items.extend(parcels.into_iter().map(Item::Tally));
            // Those who wait for replicas go last, and with their like.
            items.sort_by_key(|item| item.replicas().map(|wanted| (wanted.within, wanted.wanted)));
            while let Some(first) = items.first() {
                let replicas = first.replicas();
                let mut names = 0;
                let alike = items.iter().take_while(|item| {
                    let is_first = names == 0;
                    names += item.names();
                    item.replicas() == replicas && (is_first || names <= MOST_TOGETHER)
                });
                let alike = alike.count();
                let rest = items.split_off(alike);
                self.write(shared, site, std::mem::replace(&mut items, rest));
            }
            contain(|| self.probe(shared, site));
            contain(|| self.watch(shared, site));
            if stopping {
                // A connection that is closed with answers unread is reset, and what the network has
                // lost of it is not sent again: the release of the last lease.
                self.tidy_at = Some(Instant::START);
            }
            contain(|| self.see_to_peer(shared, site));
        }
    }

    /// Waits for work; `None` when an undo or the probe is due.
    fn wait(&mut self, shared: &Shared, site: &Site) -> Option<Job> {
        let jobs = &site.io.jobs;
        let next = self
            .undos
            .iter()
            .map(|undo| undo.next)
            .chain(self.probe_at)
            .chain(self.watch_at)
            .chain(self.leave_at)
            .chain(self.ask_at.map(|(at, _)| at))
            .chain(self.tidy_at)
            .chain(self.tally_at)
            .min();
        let pause = next.map(|at| nap(Instant::now(), at));
        let Some(peer) = &site.server.peer else {
            return match pause {
                None => jobs.recv().ok(),
                Some(pause) => jobs.recv_timeout(pause).ok(),
            };
        };
        let pause_over = pause.map_or_else(never, after);
        select! {
            recv(jobs) -> job => job.ok(),
            recv(peer.desk) -> errand => {
                if let Ok(errand) = errand {
                    self.take(shared, site, peer, errand);
                }
                None
            },
            recv(pause_over) -> _ => None,
        }
    }

    fn take(&mut self, shared: &Shared, site: &Site, peer: &Peer, errand: Errand) {
        match errand {
            Errand::Undo(promise) => {
                shared.sites.note_undo(&promise.id);
                let may_yet_run = promise.may_yet_run(peer.index);
                let Promise {
                    keys, id, until, ..
                } = promise;
                self.undos.push(if may_yet_run {
                    Undo::of_acquire(keys, id, until)
                } else {
                    Undo::of_release(keys, id, until)
                });
            }
            Errand::Drain(line) => {
                if !peer.drain(*line, site.server.command_timeout()) {
                    peer.set_aside();
                }
            }
            Errand::Tidy => self.tidy_at = Some(Instant::now().after(TIDY_AFTER)),
            Errand::Probe => {
                self.ask_at = Some((Instant::now().after(ASIDE.pause(0)), 0));
            }
        }
    }

    /// Tries whether a server that was left aside answers again.
    fn see_to_peer(&mut self, shared: &Shared, site: &Site) {
        let Some(peer) = &site.server.peer else {
            return;
        };
        let now = Instant::now();
        if self.tidy_at.is_some_and(|at| at <= now) {
            self.tidy_at = None;
            if !peer.tidy(site.server.command_timeout()) {
                peer.set_aside();
            }
        }
        let Some((_, failures)) = self
            .ask_at
            .filter(|(at, _)| *at <= now && !shared.is_closed())
        else {
            return;
        };
        let until = now.after(site.server.command_timeout());
        match site.server.command("PING", &[], until, Lane::Free) {
            Ok(_) => {
                self.ask_at = None;
                peer.is_back(now.until(Instant::now()));
                shared.servers.peer_is_back();
                shared.waiters.ring_all();
                log::debug!(server = site.server.label(); "{} answers again", site.server.label());
            }
            Err(fault) => {
                let pause = ASIDE.pause(failures + 1);
                self.ask_at = Some((Instant::now().after(pause), failures.saturating_add(1)));
                log::debug!(server = site.server.label(); "{} is left aside: {fault}", site.server.label());
            }
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
                        self.settle(shared, site, item, asked, Err(fault.clone()));
                    }
                    return;
                }
            }
        }
        let Some(wire) = &mut self.wire else { return };
        let sent = Instant::now();
        // What was lost or let go while it lay here must not be given a whole ttl more.
        items.retain(|item| match item {
            Item::Renew(paper) => matches!(paper.ballot.hold.stand(sent), Standing::Held(_)),
            Item::Undo(_) | Item::Tally(_) => true,
        });
        let calls: Vec<Call<'_>> = items.iter().map(Item::call).collect();
        let (answers, usable) = server.batch(wire, &calls);
        drop(calls);
        if !usable {
            self.wire = None;
        }
        let until = sent.after(server.command_timeout());
        for (item, answer) in items.into_iter().zip(answers) {
            let (answer, sent) = match answer {
                // Nothing ran, so it may be sent again to where the name is kept now.
                Err(Fault::Elsewhere(..)) => {
                    match shared
                        .servers
                        .call_or_undo(item.call(), until, Lane::Free, None)
                    {
                        Ok((reply, sent)) => (Ok(reply), sent),
                        Err(fault) => (Err(fault), sent),
                    }
                }
                answer => (answer, sent),
            };
            self.settle(shared, site, item, sent, answer);
        }
    }

    fn settle(
        &mut self,
        shared: &Shared,
        site: &Site,
        item: Item,
        sent: Instant,
        answer: Result<Reply, Fault>,
    ) {
        match item {
            Item::Renew(paper) => contain(|| {
                note(&site.io.condition, &answer);
                paper.ballot.cast(shared, sent, answer);
                drop(paper);
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

    /// Tries whether a server that has failed again and again answers: nobody is to wait for it longer
    /// than it takes.
    fn watch(&mut self, shared: &Shared, site: &Site) {
        let now = Instant::now();
        let is_cared_for =
            || !self.undos.is_empty() || shared.waiters.anybody() || shared.timer.watches_any();
        if !site.server.is_open() || shared.is_closed() || !is_cared_for() {
            self.watch_at = None;
        } else if self.watch_at.is_none_or(|at| at <= now) {
            self.watch_at = Some(now.after(WATCH_EVERY));
            let until = now.after(site.server.command_timeout());
            let answer = site.server.command("PING", &[], until, Lane::Free);
            if answer.is_ok() {
                shared.waiters.ring_all();
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
        if shared.servers.cluster().is_some()
            && let Some(name) = site.subscriber.waited()
        {
            // One that was demoted in good order still hears all: only a command about a key is sent
            // on, and tells where its slots are kept now.
            let keys = shared.keys(name);
            let until = now.after(site.server.command_timeout());
            let _ = shared.servers.call(keys.inspect(), until, Lane::Free);
        }
    }
}

/// Hands on what is kept by another server now.
fn send_on(shared: &Shared, site: &Site, items: &mut Vec<Item>) {
    let is_elsewhere = |key: Key<'_>| !shared.is_home(site, key);
    for item in items.extract_if(.., |item| item.key().is_some_and(is_elsewhere)) {
        let homes = item.key().map(|key| shared.homes(key).0);
        // Only a cluster has names that move, and there each has one home.
        let Some(home) = homes.and_then(|homes| homes.into_iter().next()) else {
            continue;
        };
        match item {
            Item::Renew(paper) => home.io.renew(vec![paper]),
            Item::Undo(undo) => home.io.undo(undo),
            Item::Tally(_) => {}
        }
    }
}

fn note(condition: &Condition, answer: &Result<Reply, Fault>) {
    match answer {
        Err(Fault::NotNow(cause) | Fault::NoAnswer(cause)) => {
            condition.failed(Some(cause), false);
        }
        _ => {
            condition.answered(Instant::now());
        }
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
            name:% = hold.keys, holder:% = hold.id.short(), outcome = "not renewed",
            ttl_ms = hold.ttl_ms(), trace_id = hold.trace_id().as_deref();
            "not renewed {}, to be tried again: {fault}", hold.keys
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
    if let Some(on_renew) = hold.on_renew() {
        let renewed = Renewed {
            name: hold.keys.key(0).name.clone(),
            holder_id: hold.id.clone(),
            fencing_token: hold.token(),
            remaining,
            took,
        };
        shared.callbacks.run(Box::new(move || on_renew(&renewed)));
    }
    log::debug!(
        name:% = hold.keys, holder:% = hold.id.short(), outcome = "renewed", ttl_ms = hold.ttl_ms(),
        remaining_ms = remaining.as_millis() as u64, trace_id = hold.trace_id().as_deref();
        "renewed {} for {remaining:?}", hold.keys
    );
}
