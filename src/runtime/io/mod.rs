//! The io thread: renewals in one write, undos until they are sure, and the probe of the subscriber.

pub(crate) mod acknowledged;
pub(crate) mod job;
pub(crate) mod recovery;
pub(crate) mod renewal;
pub(crate) mod renewal_round;
pub(crate) mod shared_stats;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, after, never, select, unbounded};

use crate::clock::{Instant, nap};
use crate::error::Error;
use crate::lease::state::LeaseStatus;
use crate::lease::undo::Undo;
use crate::lease::undos::Undos;
use crate::protocol::script::{Call, Reply};
use crate::redis::{Cap, Connection, Fault, ServerHealth};
use crate::runtime::Runtime;
use crate::runtime::endpoint::Endpoint;
use crate::runtime::io::job::{IoJob, send_on};
use crate::runtime::io::recovery::Recovery;
use crate::runtime::io::renewal_round::RenewalPart;
use crate::runtime::worker::{Worker, contain};

/// The most names in one write: their answers must fit into the sockets' buffers meanwhile, and come in time.
const MOST_TOGETHER: usize = 256;

/// How often it is tried whether a server that is not asked answers again, while anybody cares.
const WATCH_EVERY: Duration = Duration::from_millis(500);

/// How often the subscriber is proved to hear, while anybody waits.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// How long after its server was found to be of no more use the thread still sends on what comes.
const LEAVE_AFTER: Duration = Duration::from_secs(2);

enum IoRequest {
    Renew(Vec<RenewalPart>),
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
    queue: Sender<IoRequest>,
    jobs: Receiver<IoRequest>,
    /// Somebody waits, and the thread knows it.
    probing: AtomicBool,
    /// How renewals go.
    pub(crate) condition: ServerHealth,
    worker: Worker,
}

impl Default for Io {
    fn default() -> Self {
        let (queue, jobs) = unbounded();
        Self {
            queue,
            jobs,
            probing: AtomicBool::new(false),
            condition: ServerHealth::new(0),
            worker: Worker::new("leasehold-io"),
        }
    }
}

impl Io {
    pub(crate) fn start(
        &self,
        runtime: &Arc<Runtime>,
        endpoint: &Arc<Endpoint>,
    ) -> Result<(), Error> {
        if self.worker.is_started() {
            return Ok(());
        }
        let (runtime, endpoint) = (Arc::clone(runtime), Arc::clone(endpoint));
        self.worker
            .start(move || IoLoop::default().run(&runtime, &endpoint))
    }

    fn send(&self, job: IoRequest) {
        // The receiver is in self, so there is somebody to send to.
        let _ = self.queue.send(job);
    }

    pub(crate) fn renew(&self, papers: Vec<RenewalPart>) {
        self.send(IoRequest::Renew(papers));
    }

    /// Repeats a release until it is sure.
    pub(crate) fn undo(&self, undo: Undo) {
        self.send(IoRequest::Undo(undo));
    }

    /// Wakes the subscriber, for a caller who has no time for this server.
    pub(crate) fn wake(&self) {
        self.send(IoRequest::Wake);
    }

    /// Somebody waits: proves from now on that the subscriber hears.
    pub(crate) fn probe(&self) {
        // Once is enough: a thread woken for every waiter would cost more than the waiting.
        if !self.probing.swap(true, Ordering::SeqCst) {
            self.send(IoRequest::Probe);
        }
    }

    /// The server is not asked at present, and somebody waits for that to end.
    pub(crate) fn watch(&self) {
        self.send(IoRequest::Watch);
    }

    /// Ends the thread by and by: somebody may be about to send it something.
    pub(crate) fn leave(&self) {
        self.send(IoRequest::Leave);
    }

    pub(crate) fn is_through(&self) -> bool {
        self.worker.is_through()
    }

    pub(crate) fn stop(&self) {
        self.send(IoRequest::Stop);
    }

    pub(crate) fn join(&self, until: Instant) -> bool {
        self.worker.join(until)
    }
}

/// A connection that a thread keeps for what it sends.
#[derive(Default)]
pub(in crate::runtime) struct Writer {
    connection: Option<Connection>,
}

impl Writer {
    /// Sends `items` in one write, and gives each answer to `settle`, with the instant before it was sent.
    pub(in crate::runtime) fn write(
        &mut self,
        runtime: &Runtime,
        endpoint: &Endpoint,
        mut items: Vec<IoJob>,
        mut settle: impl FnMut(IoJob, Instant, Result<Reply, Fault>),
    ) {
        let asked = Instant::now();
        let server = &endpoint.server;
        self.connection
            .take_if(|connection| !server.is_current(connection));
        if self.connection.is_none() {
            match server.connection(asked.after(server.command_timeout())) {
                Ok(connection) => self.connection = Some(connection),
                Err(fault) => {
                    for item in items {
                        settle(item, asked, Err(fault.clone()));
                    }
                    return;
                }
            }
        }
        let Some(connection) = &mut self.connection else {
            return;
        };
        let sent = Instant::now();
        // What was lost or let go while it lay here must not be given a whole ttl more.
        let over: Vec<IoJob> = items
            .extract_if(.., |item| match item {
                IoJob::Renew(part) => {
                    !matches!(part.ballot.hold.status(sent), LeaseStatus::Held(_))
                }
                IoJob::Undo(_) | IoJob::LeaseVotes(_) => false,
            })
            .collect();
        // A lease may own the last of a user's closures, whose destructor may panic.
        contain(move || drop(over));
        let calls: Vec<Call<'_>> = items.iter().map(IoJob::call).collect();
        let (answers, usable) = server.batch(connection, &calls);
        drop(calls);
        if !usable {
            self.connection = None;
        }
        let until = sent.after(server.command_timeout());
        for (item, answer) in items.into_iter().zip(answers) {
            let (answer, sent) = match answer {
                // Nothing ran, so it may be sent again to where the name is kept now.
                Err(Fault::Redirected(..)) => {
                    match runtime
                        .deployment
                        .call_or_undo(item.call(), until, Cap::Exempt, None)
                    {
                        Ok((reply, sent)) => (Ok(reply), sent),
                        Err(fault) => (Err(fault), sent),
                    }
                }
                answer => (answer, sent),
            };
            settle(item, sent, answer);
        }
    }
}

/// Takes out what goes into one write: alike in the replicas that must acknowledge it, those without first.
pub(in crate::runtime) fn take_write(items: &mut Vec<IoJob>) -> Option<Vec<IoJob>> {
    items.sort_by_key(|item| item.replicas().map(|wanted| (wanted.within, wanted.wanted)));
    let replicas = items.first()?.replicas();
    let mut weight = 0;
    let alike = items.iter().take_while(|item| {
        let is_first = weight == 0;
        weight += item.weight();
        item.replicas() == replicas && (is_first || weight <= MOST_TOGETHER)
    });
    let alike = alike.count();
    let rest = items.split_off(alike);
    Some(std::mem::replace(items, rest))
}

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
            let parcels = runtime
                .tally
                .due(runtime, endpoint, &mut self.tally_at, stopping);
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

pub(in crate::runtime) fn settle_renewal(
    runtime: &Runtime,
    endpoint: &Endpoint,
    paper: RenewalPart,
    sent: Instant,
    answer: Result<Reply, Fault>,
) {
    contain(|| {
        note(&endpoint.io.condition, &answer);
        paper.ballot.cast(runtime, sent, answer);
        drop(paper);
    });
}

fn note(condition: &ServerHealth, answer: &Result<Reply, Fault>) {
    match answer {
        Err(Fault::NotRun(cause) | Fault::Unknown(cause)) => {
            condition.failed(Some(cause), false);
        }
        _ => {
            condition.answered(Instant::now());
        }
    }
}
