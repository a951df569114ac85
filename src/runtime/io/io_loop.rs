//! The io thread: renewals in one write, undos until they are sure, and the probe of the subscriber.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{after, never, select};

use crate::clock::{Instant, nap};
use crate::lease::undos::Undos;
use crate::protocol::script::Reply;
use crate::redis::{Cap, Fault};
use crate::runtime::endpoint::Endpoint;
use crate::runtime::io::IoRequest;
use crate::runtime::io::job::{IoJob, send_on};
use crate::runtime::io::recovery::Recovery;
use crate::runtime::io::renewal::settle_renewal;
use crate::runtime::io::writer::{Writer, take_write};
use crate::runtime::state::Runtime;
use crate::runtime::worker::contain;

/// How often it is tried whether a server that is not asked answers again, while anybody cares.
const WATCH_EVERY: Duration = Duration::from_millis(500);

/// How often the subscriber is proved to hear, while anybody waits.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// How long after its server was found to be of no more use the thread still sends on what comes.
const LEAVE_AFTER: Duration = Duration::from_secs(2);

/// What the thread has before it.
#[derive(Default)]
struct IoLoop {
    writer: Writer,
    undos: Undos,
    probe_at: Option<Instant>,
    /// When it is tried whether a server that is not asked answers again.
    watch_at: Option<Instant>,
    /// When the thread ends, where the server is of no more use.
    leave_at: Option<Instant>,
    aside: Recovery,
    /// When what was counted is told.
    tally_at: Option<Instant>,
}

pub(in crate::runtime) fn run(runtime: &Runtime, endpoint: &Endpoint) {
    IoLoop::default().run(runtime, endpoint);
}

impl IoLoop {
    fn run(mut self, runtime: &Runtime, endpoint: &Endpoint) {
        self.aside = Recovery::begin(endpoint.server.member.as_ref());
        let mut stopping = false;
        self.tally_at = runtime.tally.first();
        while !stopping {
            let mut items = Vec::new();
            let mut job = self.wait(runtime, endpoint);
            while let Some(next) = job {
                match next {
                    IoRequest::Renew(papers) => items.extend(papers.into_iter().map(IoJob::Renew)),
                    IoRequest::Undo(undo) => self.undos.push(undo, Instant::now()),
                    IoRequest::Wake => endpoint.subscriber.wake_now(&endpoint.server),
                    IoRequest::Probe => self.probe_at = self.probe_at.or(Some(Instant::START)),
                    IoRequest::Watch => self.watch_at = self.watch_at.or(Some(Instant::START)),
                    IoRequest::Leave => {
                        self.leave_at
                            .get_or_insert_with(|| Instant::now().after(LEAVE_AFTER));
                    }
                    IoRequest::Stop => stopping = true,
                }
                job = endpoint.io.jobs.try_recv().ok();
            }
            if let Some(member) = &endpoint.server.member {
                let left = member.desk.try_iter();
                let undos =
                    left.filter_map(|errand| self.aside.take(runtime, endpoint, member, errand));
                undos.for_each(|undo| self.undos.push(undo, Instant::now()));
            }
            let is_leaving = self.leave_at.is_some();
            self.take_due_undos(runtime, &mut items, stopping || is_leaving);
            stopping |= self.leave_at.is_some_and(|at| at <= Instant::now());
            send_on(runtime, endpoint, &mut self.undos, &mut items);
            let parcels = runtime.stats_due(endpoint, &mut self.tally_at, stopping);
            items.extend(parcels.into_iter().map(IoJob::LeaseVotes));
            while let Some(next) = take_write(&mut items) {
                let undos = &mut self.undos;
                self.writer
                    .write(runtime, endpoint, next, |item, sent, answer| {
                        settle(undos, runtime, endpoint, item, sent, answer);
                    });
            }
            contain(|| self.probe(runtime, endpoint));
            contain(|| self.watch(runtime, endpoint));
            if stopping {
                // A connection that is closed with answers unread is reset, and what the network has
                // lost of it is not sent again: the release of the last lease.
                self.aside.tidy_now();
            }
            contain(|| self.aside.see_to(runtime, endpoint));
        }
    }

    /// Waits for work; `None` when an undo or the probe is due.
    fn wait(&mut self, runtime: &Runtime, endpoint: &Endpoint) -> Option<IoRequest> {
        let jobs = &endpoint.io.jobs;
        let undos = self.undos.next();
        let next = undos
            .into_iter()
            .chain(self.probe_at)
            .chain(self.watch_at)
            .chain(self.leave_at)
            .chain(self.aside.due())
            .chain(self.tally_at)
            .min();
        let pause = next.map(|at| nap(Instant::now(), at));
        let Some(member) = &endpoint.server.member else {
            return match pause {
                None => jobs.recv().ok(),
                Some(pause) => jobs.recv_timeout(pause).ok(),
            };
        };
        let pause_over = pause.map_or_else(never, after);
        select! {
            recv(jobs) -> job => job.ok(),
            recv(member.desk) -> errand => {
                let undo = errand.ok().and_then(|errand| self.aside.take(runtime, endpoint, member, errand));
                if let Some(undo) = undo {
                    self.undos.push(undo, Instant::now());
                }
                None
            },
            recv(pause_over) -> _ => None,
        }
    }

    fn take_due_undos(&mut self, runtime: &Runtime, items: &mut Vec<IoJob>, all: bool) {
        let now = Instant::now();
        let over = self.undos.take_over(now);
        over.iter()
            .for_each(|undo| runtime.endpoints.forget_undo(&undo.id));
        let due = self.undos.take_due(now, all);
        items.extend(due.into_iter().map(IoJob::Undo));
    }

    /// Tries whether a server that has failed again and again answers: nobody is to wait for it longer
    /// than it takes.
    fn watch(&mut self, runtime: &Runtime, endpoint: &Endpoint) {
        let now = Instant::now();
        let is_cared_for =
            || !self.undos.is_empty() || runtime.waiters.anybody() || runtime.timer.watches_any();
        if !endpoint.server.is_open() || runtime.is_closed() || !is_cared_for() {
            self.watch_at = None;
        } else if self.watch_at.is_none_or(|at| at <= now) {
            self.watch_at = Some(now.after(WATCH_EVERY));
            let until = now.after(endpoint.server.command_timeout());
            let answer = endpoint.server.ping(until, Cap::Exempt);
            if answer.is_ok() {
                runtime.waiters.wake_all();
            }
        }
    }

    /// Publishes to the subscriber what it must hear within a second.
    fn probe(&mut self, runtime: &Runtime, endpoint: &Endpoint) {
        let now = Instant::now();
        if self.probe_at.is_none_or(|at| at > now) || runtime.is_closed() {
            return;
        }
        let is_used = || endpoint.subscriber.is_used();
        if !is_used() {
            endpoint.io.probing.store(false, Ordering::SeqCst);
            // Whoever came just before this saw the flag set, and is seen here.
            if !is_used() {
                self.probe_at = None;
                return;
            }
            endpoint.io.probing.store(true, Ordering::SeqCst);
        }
        self.probe_at = Some(now.after(PROBE_EVERY));
        endpoint.subscriber.probe(&endpoint.server);
        if runtime.deployment.slot_map().is_some()
            && let Some(name) = endpoint.subscriber.waited()
        {
            // One that was demoted in good order still hears all: only a command about a key is sent
            // on, and tells where its slots are kept now.
            let keys = runtime.keys(name);
            let until = now.after(endpoint.server.command_timeout());
            let _ = runtime.deployment.call(keys.inspect(), until, Cap::Exempt);
        }
    }
}

fn settle(
    undos: &mut Undos,
    runtime: &Runtime,
    endpoint: &Endpoint,
    item: IoJob,
    sent: Instant,
    answer: Result<Reply, Fault>,
) {
    match item {
        IoJob::Renew(paper) => settle_renewal(runtime, endpoint, paper, sent, answer),
        IoJob::LeaseVotes(parcel) => runtime.tally.settle(parcel, answer),
        IoJob::Undo(batch) => {
            let over = undos.settle(&batch, answer.ok().as_ref());
            over.iter()
                .for_each(|undo| runtime.endpoints.forget_undo(&undo.id));
        }
    }
}
