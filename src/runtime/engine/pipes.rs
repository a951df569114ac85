//! The pipelines of the engine: one for each server, and one for each setting of `min_replicas`
//! there, because WAIT blocks its connection.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Waker;

use crate::clock::Instant;
use crate::protocol::answer::Answer;
use crate::protocol::redirect::Redirect;
use crate::redis::cluster::{MOST_HOPS, TRY_AGAIN};
use crate::redis::{Deployment, Ended, NodeFault, Pipeline, Server};
use crate::replicas::Replicas;
use crate::runtime::engine::work::{Command, Work};

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
    pub(in crate::runtime) end: Result<Answer, NodeFault>,
}

pub(in crate::runtime) struct Pipes {
    all: Vec<Pipe>,
    /// Commands whose slot is being moved, and when they are sent again.
    paused: Vec<(Instant, Command)>,
    waker: Waker,
}

struct Pipe {
    replicas: Option<Replicas>,
    pipeline: Pipeline<Command>,
    /// The socket can be read or written.
    is_ready: bool,
}

impl Pipes {
    pub(in crate::runtime) fn new(waker: Waker) -> Self {
        Self {
            all: Vec::new(),
            paused: Vec::new(),
            waker,
        }
    }

    /// Queues a command for a server; [`turn`](Self::turn) sends it.
    pub(in crate::runtime) fn push(&mut self, server: &Arc<Server>, command: Command) {
        let replicas = command.replicas();
        let pipe = match self.pipe_for(server, replicas) {
            Some(n) => n,
            None => {
                self.all.push(Pipe {
                    replicas,
                    pipeline: Pipeline::new(Arc::clone(server), self.waker.clone()),
                    is_ready: false,
                });
                self.all.len() - 1
            }
        };
        if let Some(pipe) = self.all.get_mut(pipe) {
            pipe.pipeline.push(command);
        }
    }

    /// Returns the index of the pipeline for a command; `None` if it needs a new one.
    fn pipe_for(&self, server: &Arc<Server>, replicas: Option<Replicas>) -> Option<usize> {
        let all = self.all.iter().enumerate();
        let of_server = all.filter(|(_, pipe)| Arc::ptr_eq(&pipe.pipeline.server, server));
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
    pub(in crate::runtime) fn next(&self, now: Instant) -> Instant {
        let pipes = self.all.iter().map(|pipe| pipe.pipeline.next(now));
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
    pub(in crate::runtime) fn turn(
        &mut self,
        deployment: &Deployment,
        now: Instant,
    ) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        let mut redirected = Vec::new();
        let mut ended = Vec::new();
        for pipe in &mut self.all {
            let is_ready = std::mem::take(&mut pipe.is_ready);
            pipe.pipeline.turn(now, is_ready, &mut ended);
            let server = &pipe.pipeline.server;
            for ended in ended.drain(..) {
                match ended.end {
                    Err(NodeFault::Redirected(..)) => redirected.push((Arc::clone(server), ended)),
                    _ => outcomes.push(outcome(server, ended)),
                }
            }
        }
        // The server was replaced; its last commands have ended.
        (self.all).retain(|pipe| pipe.pipeline.is_busy() || !pipe.pipeline.server.is_retired());
        for (server, ended) in redirected {
            outcomes.extend(self.follow(deployment, &server, ended, now));
        }
        let is_due = |(at, _): &mut (Instant, Command)| *at <= now;
        let again: Vec<_> = self.paused.extract_if(.., is_due).collect();
        for (_, command) in again {
            if let (Some(map), Some(slot)) = (deployment.slot_map(), command.slot()) {
                self.push(&map.owner_of(slot), command);
            }
        }
        outcomes
    }

    /// Sends a command, which did not run, to the node to which `server` has redirected it. Returns
    /// it if it follows no redirect any more.
    fn follow(
        &mut self,
        deployment: &Deployment,
        server: &Arc<Server>,
        ended: Ended<Command>,
        now: Instant,
    ) -> Option<Outcome> {
        let (Some(map), Some(slot), Err(NodeFault::Redirected(redirect, _))) =
            (deployment.slot_map(), ended.job.slot(), &ended.end)
        else {
            return Some(outcome(server, ended));
        };
        if ended.job.hops >= MOST_HOPS || now >= ended.job.until {
            return Some(outcome(server, ended));
        }
        let next = map.redirected(slot, server, redirect);
        let mut command = ended.job;
        command.is_asking = matches!(redirect, Redirect::Ask(..));
        if *redirect != Redirect::TryAgain {
            command.hops += 1;
        } else if !command.use_fewer_keys() {
            command.hops = 0;
            command.tries += 1;
            let at = now.after(TRY_AGAIN.pause(command.tries - 1));
            self.paused.push((at, command));
            return None;
        }
        self.push(&next, command);
        None
    }
}

fn outcome(server: &Arc<Server>, ended: Ended<Command>) -> Outcome {
    Outcome {
        work: ended.job.work,
        server: Arc::clone(server),
        sent: ended.sent,
        end: ended.end,
    }
}
