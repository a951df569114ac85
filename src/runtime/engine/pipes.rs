//! The pipelines of the engine: one for each server, and one for each setting of `min_replicas`
//! there, because WAIT blocks its connection.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Waker;

use crate::clock::Instant;
use crate::protocol::answer::Answer;
use crate::protocol::redirect::Redirect;
use crate::redis::Job as _;
use crate::redis::cluster::{MOST_HOPS, TRY_AGAIN};
use crate::redis::{Ended, Fault, LineState, NodeFault, Pipeline, Server};
use crate::replicas::Replicas;
use crate::runtime::engine::work::{Sending, Work};
use crate::runtime::state::Runtime;

/// The most pipelines of one server for settings of `min_replicas`. If there are more, some share
/// one.
const MOST_SETTINGS: usize = 8;

/// The end of a command, and the server that was asked.
pub(in crate::runtime) struct Outcome {
    pub(in crate::runtime) work: Work,
    /// The server that was asked last.
    pub(in crate::runtime) server: Arc<Server>,
    /// The instant before it was sent.
    pub(in crate::runtime) sent: Instant,
    pub(in crate::runtime) end: Result<Answer, Fault>,
    /// The number of the last connection to the server.
    pub(in crate::runtime) link: u64,
}

pub(in crate::runtime) struct Pipes {
    all: Vec<Pipe>,
    /// A connection to a server of a quorum was made or lost in the last turn.
    has_changed: bool,
    /// Commands whose slot is being moved, and when they are sent again.
    paused: Vec<(Instant, Sending)>,
    waker: Waker,
}

struct Pipe {
    replicas: Option<Replicas>,
    /// It has the acquiring commands and refreshes: if one gets no reply, renewals and releases go
    /// on.
    is_asking: bool,
    pipeline: Pipeline<Sending>,
    /// The socket can be read or written.
    is_ready: bool,
}

impl Pipes {
    pub(in crate::runtime) fn new(waker: Waker) -> Self {
        Self {
            all: Vec::new(),
            has_changed: false,
            paused: Vec::new(),
            waker,
        }
    }

    /// Queues a command for a server; [`turn`](Self::turn) sends it.
    pub(in crate::runtime) fn push(&mut self, server: &Arc<Server>, sending: Sending) {
        // The release of a proposal must not overtake it.
        let is_asking = server.number.is_none() && sending.is_for_call();
        let pipe = self.pipe(server, sending.replicas(), is_asking);
        pipe.pipeline.push(sending);
    }

    /// Returns the pipeline for a command, which it makes if there is none.
    fn pipe(
        &mut self,
        server: &Arc<Server>,
        replicas: Option<Replicas>,
        is_asking: bool,
    ) -> &mut Pipe {
        let n = self.pipe_for(server, replicas, is_asking);
        let n = n.unwrap_or(self.all.len());
        if n == self.all.len() {
            self.all.push(Pipe {
                replicas,
                is_asking,
                pipeline: Pipeline::new(Arc::clone(server), self.waker.clone()),
                is_ready: false,
            });
        }
        &mut self.all[n]
    }

    /// Makes the pipelines of the servers of a quorum, in their order, before all others.
    pub(in crate::runtime) fn add_quorum(&mut self, servers: &[Arc<Server>]) {
        for server in servers.iter().filter(|server| server.number.is_some()) {
            self.pipe(server, None, false);
        }
    }

    /// Returns the state of the connection to a server of a quorum, which is made if there is none.
    /// The first of the calls that want it gives up at `wanted_by`.
    pub(in crate::runtime) fn want_line(&self, server: usize, wanted_by: Instant) -> LineState {
        self.all[server].pipeline.want_line(wanted_by)
    }

    /// Returns why there is no connection to a server of a quorum.
    pub(in crate::runtime) fn why_down(&self, server: usize) -> Fault {
        self.all[server].pipeline.why_down()
    }

    /// The client is closed: no connection is made any more unless a command needs it.
    pub(in crate::runtime) fn end_probing(&mut self) {
        let pipelines = self.all.iter_mut().map(|pipe| &mut pipe.pipeline);
        pipelines.for_each(Pipeline::end_probing);
    }

    /// Ends all acquiring commands and refreshes: the client is closed.
    pub(in crate::runtime) fn end_asking(&mut self, now: Instant) -> Vec<Outcome> {
        let asking = self.all.iter_mut().filter(|pipe| pipe.is_asking);
        asking.for_each(|pipe| pipe.pipeline.abort(now));
        self.ended()
    }

    /// Ends the commands that are not written and not `wanted` any more.
    pub(in crate::runtime) fn drop_queued(
        &mut self,
        now: Instant,
        wanted: impl Fn(&Work) -> bool,
    ) -> Vec<Outcome> {
        let wanted = |sending: &Sending| wanted(&sending.work);
        for pipe in &mut self.all {
            pipe.pipeline.drop_queued(now, wanted);
        }
        self.ended()
    }

    /// Takes the commands that have ended out of all pipelines.
    fn ended(&mut self) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for Pipe { pipeline, .. } in &mut self.all {
            let ended = pipeline.ended.drain(..);
            outcomes.extend(ended.map(|ended| outcome(&pipeline.server, ended)));
        }
        outcomes
    }

    /// Returns the index of the pipeline for a command; `None` if it needs a new one.
    fn pipe_for(
        &self,
        server: &Arc<Server>,
        replicas: Option<Replicas>,
        is_asking: bool,
    ) -> Option<usize> {
        let all = self.all.iter().enumerate();
        let of_server = all.filter(|(_, pipe)| {
            Arc::ptr_eq(&pipe.pipeline.server, server) && pipe.is_asking == is_asking
        });
        let same = |(_, pipe): &(usize, &Pipe)| pipe.replicas == replicas;
        if let Some((n, _)) = of_server.clone().find(same) {
            return Some(n);
        }
        // The one whose waiting time is nearest, if there are too many.
        let wanted = replicas?.within;
        let settings = of_server.filter_map(|(n, pipe)| Some((n, pipe.replicas?.within)));
        let nearest = settings
            .clone()
            .min_by_key(|(_, other)| other.abs_diff(wanted));
        nearest
            .filter(|_| settings.count() >= MOST_SETTINGS)
            .map(|(n, _)| n)
    }

    /// Returns whether a command has not ended.
    pub(in crate::runtime) fn is_busy(&self) -> bool {
        !self.paused.is_empty() || self.all.iter().any(|pipe| pipe.pipeline.is_busy())
    }

    /// Returns when the next turn is due, if no socket becomes ready before.
    pub(in crate::runtime) fn next(&self) -> Instant {
        if self.has_changed {
            return Instant::START;
        }
        let pipes = self.all.iter().map(|pipe| pipe.pipeline.next());
        let paused = self.paused.iter().map(|(at, _)| *at);
        pipes.chain(paused).min().unwrap_or(Instant::NEVER)
    }

    /// Returns the sockets, and whether each must be written.
    pub(in crate::runtime) fn sockets(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        self.all.iter().filter_map(|pipe| pipe.pipeline.socket())
    }

    /// Notes which of the [sockets](Self::sockets) are ready.
    pub(in crate::runtime) fn note_ready(&mut self, mut ready: impl Iterator<Item = bool>) {
        for pipe in &mut self.all {
            let has_socket = pipe.pipeline.socket().is_some();
            pipe.is_ready = has_socket && ready.next() == Some(true);
        }
    }

    /// Reads and writes what is possible at `now`. Returns the commands that have ended.
    ///
    /// A command that a server has not run is sent again if `may_resend` still says so.
    pub(in crate::runtime) fn turn(
        &mut self,
        runtime: &Runtime,
        now: Instant,
        may_resend: impl Fn(&Work) -> bool,
    ) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        let mut redirected = Vec::new();
        self.has_changed = false;
        for pipe in &mut self.all {
            let is_ready = std::mem::take(&mut pipe.is_ready);
            let before = pipe.pipeline.line_state();
            pipe.pipeline.turn(now, is_ready);
            let has_changed = pipe.pipeline.line_state() != before;
            self.has_changed |= has_changed && pipe.pipeline.server.number.is_some();
            let mut by_source = Vec::new();
            let server = &pipe.pipeline.server;
            for ended in pipe.pipeline.ended.drain(..) {
                match ended.end {
                    Err(NodeFault::NoScript) if may_resend(&ended.job.work) => {
                        by_source.push(ended.job);
                    }
                    Err(NodeFault::Redirected(..)) if may_resend(&ended.job.work) => {
                        redirected.push((Arc::clone(server), ended));
                    }
                    _ => outcomes.push(outcome(server, ended)),
                }
            }
            pipe.pipeline.push_by_source(by_source);
        }
        // The server was replaced; its last commands have ended.
        (self.all).retain(|pipe| pipe.pipeline.is_busy() || !pipe.pipeline.server.is_retired());
        for (server, ended) in redirected {
            outcomes.extend(self.follow(runtime, &server, ended, now));
        }
        let is_due = |(at, _): &mut (Instant, Sending)| *at <= now;
        let again: Vec<_> = self.paused.extract_if(.., is_due).collect();
        for (_, sending) in again {
            let (Some(map), Some(slot)) = (runtime.deployment.slot_map(), sending.slot()) else {
                continue;
            };
            let owner = map.owner_of(slot);
            if may_resend(&sending.work) {
                self.push_to(runtime, &owner, sending)
            } else {
                let (sent, end) = (now, Err(NodeFault::NoScript));
                let (job, link) = (sending, 0);
                outcomes.push(outcome(
                    &owner,
                    Ended {
                        job,
                        sent,
                        end,
                        link,
                    },
                ));
            }
        }
        outcomes
    }

    /// Queues a command for another server than before.
    fn push_to(&mut self, runtime: &Runtime, server: &Arc<Server>, mut sending: Sending) {
        if let Work::Lock(_, command, inbox) = &mut sending.work {
            *inbox = runtime.inbox_at(server, command);
        }
        self.push(server, sending);
    }

    /// Sends a command, which did not run, to the node to which `server` has redirected it. Returns
    /// it if it follows no redirect any more.
    fn follow(
        &mut self,
        runtime: &Runtime,
        server: &Arc<Server>,
        ended: Ended<Sending>,
        now: Instant,
    ) -> Option<Outcome> {
        let (Some(map), Some(slot), Err(NodeFault::Redirected(redirect, _))) =
            (runtime.deployment.slot_map(), ended.job.slot(), &ended.end)
        else {
            return Some(outcome(server, ended));
        };
        if ended.job.hops >= MOST_HOPS || now >= ended.job.until {
            return Some(outcome(server, ended));
        }
        let next = map.redirected(slot, server, redirect);
        if !ended.job.follows_redirects() {
            return Some(outcome(server, ended));
        }
        let mut sending = ended.job;
        sending.is_asking = matches!(redirect, Redirect::Ask(..));
        if *redirect != Redirect::TryAgain {
            sending.hops += 1;
        } else if !sending.use_fewer_keys() {
            sending.hops = 0;
            sending.tries += 1;
            let at = now.after(TRY_AGAIN.pause(sending.tries - 1));
            self.paused.push((at, sending));
            return None;
        }
        self.push_to(runtime, &next, sending);
        None
    }
}

fn outcome(server: &Arc<Server>, ended: Ended<Sending>) -> Outcome {
    let end = ended.end.map_err(Fault::from);
    let end = end.and_then(|answer| ended.job.read(answer));
    Outcome {
        work: ended.job.work,
        server: Arc::clone(server),
        sent: ended.sent,
        end,
        link: ended.link,
    }
}
