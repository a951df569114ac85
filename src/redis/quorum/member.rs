//! One server of a quorum: its recent latency, whether it is down, and its idle connections.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::error_reply::meaning;
use crate::protocol::answer::Answer;
use crate::redis::conn::connection::Replied;
use crate::redis::quorum::pipelined_connection::{PendingReply, PipelinedConnection};
use crate::redis::undoable::{PendingRelease, Vote};
use crate::sync::Mutex;

/// No call uses a connection with this many unread replies: the engine drains it first.
/// The replies must fit into the socket buffers, and reading them must stay cheap compared with a
/// call.
const MAX_PENDING: usize = 64;

/// A task of the quorum for the engine.
pub(crate) enum MemberTask {
    /// Repeats a release until it is confirmed.
    Undo(PendingRelease),
    /// Reads the unread replies of this connection.
    Drain(Box<PipelinedConnection>),
    /// Reads, after a delay, the replies that callers left unread.
    ReadUnread,
    /// Probes the server until it replies again.
    Probe,
}

pub(crate) struct Member {
    /// Index of the server in the quorum.
    pub(crate) index: usize,
    /// Recent reply time in ns; 0 until one has been measured.
    latency: AtomicU64,
    /// True after a [`MemberTask::ReadUnread`] was sent, until the engine begins to read.
    has_unread: AtomicBool,
    /// True after a failure, until the server replies to a probe. While a majority is up, calls
    /// skip a server that is down.
    down: AtomicBool,
    /// The most idle connections kept; more are kept only while they have unread replies.
    max_idle: usize,
    /// Idle connections, the most recently used last.
    idle: Mutex<Vec<PipelinedConnection>>,
    closed: AtomicBool,
    /// True at first, and after the server was found to hold the id of a call that it refused.
    must_check_name: AtomicBool,
    task_queue: Sender<MemberTask>,
    waker: OnceLock<Waker>,
    /// The tasks of the engine.
    pub(crate) tasks: Receiver<MemberTask>,
}

impl Member {
    pub(crate) fn new(index: usize, max_idle: usize) -> Self {
        let (task_queue, tasks) = unbounded();
        Self {
            index,
            latency: AtomicU64::new(0),
            has_unread: AtomicBool::new(false),
            down: AtomicBool::new(false),
            max_idle,
            idle: Mutex::default(),
            closed: AtomicBool::new(false),
            must_check_name: AtomicBool::new(true),
            task_queue,
            waker: OnceLock::new(),
            tasks,
        }
    }

    /// Wakes the engine by `waker` for each task from now on.
    pub(crate) fn wake_with(&self, waker: Waker) {
        // Set once, when the engine starts.
        let _ = self.waker.set(waker);
    }

    fn send(&self, task: MemberTask) {
        // Cannot fail: self owns the receiver.
        let _ = self.task_queue.send(task);
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    pub(crate) fn is_down(&self) -> bool {
        self.down.load(Ordering::SeqCst)
    }

    /// Marks the server as down until it replies to a probe.
    pub(crate) fn mark_down(&self) {
        if !self.down.swap(true, Ordering::SeqCst) {
            self.discard_idle();
            self.send(MemberTask::Probe);
        }
    }

    /// Marks the server as up again; its reply took `took`.
    pub(crate) fn mark_up(&self, took: Duration) {
        self.set_latency(took);
        self.down.store(false, Ordering::SeqCst);
    }

    /// Returns whether the next acquiring call must check that this server is no other member, too.
    pub(super) fn take_name_check(&self) -> bool {
        // Mostly false: a load is cheaper.
        self.must_check_name.load(Ordering::SeqCst)
            && self.must_check_name.swap(false, Ordering::SeqCst)
    }

    pub(super) fn latency(&self) -> u64 {
        self.latency.load(Ordering::Relaxed)
    }

    pub(super) fn set_latency(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.latency.store(nanos, Ordering::Relaxed);
    }

    /// Updates the recent latency after a reply. It came `took` after the command was sent; for the
    /// last `waited` of that time, a caller waited for it.
    pub(super) fn answered_after(&self, took: Duration, waited: Duration) {
        let (latency, nanos) = (self.latency(), took.as_nanos() as u64);
        // If a reply arrived before a caller waited for it, `took` may exceed the latency.
        let was_waited_for = waited * 8 >= took;
        let latency = match nanos {
            _ if latency == 0 => nanos,
            // Not averaged: a server that has become slow must be read last from the next call on.
            _ if was_waited_for && nanos > latency.saturating_mul(2) => nanos,
            _ if was_waited_for || nanos < latency => latency - latency / 8 + nanos / 8,
            _ => return,
        };
        self.latency.store(latency, Ordering::Relaxed);
    }

    /// Takes an idle connection on which callers left replies unread; `None` if there is none.
    pub(crate) fn take_unread(&self) -> Option<PipelinedConnection> {
        // Cleared first: for replies left unread from here on, another task is sent.
        self.has_unread.store(false, Ordering::SeqCst);
        let mut idle = self.idle.lock();
        let n = idle.iter().position(|it| it.pending() > 0)?;
        Some(idle.remove(n))
    }

    /// Takes an idle connection on which no reply is pending.
    pub(in crate::redis) fn take_settled(&self) -> Option<PipelinedConnection> {
        let mut idle = self.idle.lock();
        let n = idle
            .iter()
            .rposition(|connection| connection.pending() == 0)?;
        Some(idle.remove(n))
    }

    /// Takes the idle connection that was used last. If it has too many unread replies, sends it to
    /// the engine and takes the next one. Returns `None` if that one has too many as well.
    pub(super) fn take_idle(&self) -> Option<PipelinedConnection> {
        let connection = self.idle.lock().pop()?;
        if connection.pending() < MAX_PENDING {
            return Some(connection);
        }
        self.send(MemberTask::Drain(Box::new(connection)));
        self.idle
            .lock()
            .pop_if(|connection| connection.pending() < MAX_PENDING)
    }

    /// Keeps a connection for the next call, and schedules reading of its unread replies.
    pub(crate) fn put_back(&self, connection: PipelinedConnection) {
        let has_unread = connection.pending() > 0;
        self.keep(connection);
        if has_unread && !self.has_unread.swap(true, Ordering::SeqCst) {
            self.send(MemberTask::ReadUnread);
        }
    }

    pub(super) fn keep(&self, connection: PipelinedConnection) {
        let has_surplus = connection.pending() == 0 && connection.connection().has_surplus();
        let mut idle = self.idle.lock();
        // Read under the lock: `close` and `mark_down` set these before they empty the list, and
        // would miss a connection that is added after that.
        let is_closed = self.closed.load(Ordering::SeqCst);
        if is_closed || has_surplus || self.is_down() {
            drop(idle);
            if !is_closed {
                self.settle_all(connection);
            }
        } else if idle.len() < self.max_idle || connection.pending() > 0 {
            idle.push(connection);
        }
    }

    /// Discards all idle connections: the server is gone or silent, so none of them works.
    fn discard_idle(&self) {
        let idle = std::mem::take(&mut *self.idle.lock());
        for connection in idle {
            self.settle_all(connection);
        }
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let idle = std::mem::take(&mut *self.idle.lock());
        // Closing takes a system call for each connection: not under the lock.
        drop(idle);
    }

    /// Settles every unread reply of a connection that failed.
    pub(crate) fn settle_all(&self, connection: PipelinedConnection) {
        for pending in connection.abandon(None) {
            self.settle(pending, None);
        }
    }

    /// Does what the reply to a command requires, whoever read it: records the vote of an acquire,
    /// or has the engine repeat an unconfirmed release. `answer` is `None` if none will come.
    pub(super) fn settle(&self, pending: PendingReply, answer: Option<&Replied>) {
        match (pending, answer) {
            (PendingReply::Nothing, _) | (PendingReply::Acquire(_), None) => {}
            // It may have run: the vote stays open.
            (PendingReply::Acquire(_), Some(Err(error))) if meaning(error).may_pass() => {}
            (PendingReply::Acquire(votes), Some(answer)) => {
                let found_own_id = |answer| votes.found_own_id(answer);
                let found_own_id = answer.as_ref().is_ok_and(found_own_id);
                if found_own_id {
                    self.must_check_name.store(true, Ordering::SeqCst);
                }
                // The server has the key in either case.
                let vote = if found_own_id || answer.as_ref().is_ok_and(Answer::is_done) {
                    Vote::Granted
                } else {
                    Vote::Refused
                };
                votes.note(self.index, vote);
            }
            (PendingReply::Release { .. }, Some(Ok(Answer::Ours(_)))) => {}
            (
                PendingReply::Release {
                    may_precede_acquire,
                    ..
                },
                Some(Ok(_)),
            ) if !may_precede_acquire => {}
            (PendingReply::Release { release, .. }, _) => self.undo(release),
        }
    }

    /// Has the engine repeat a release until it is confirmed, unless this server certainly
    /// granted nothing.
    pub(super) fn undo(&self, release: PendingRelease) {
        let votes = release.votes.as_ref();
        let nothing = [Vote::NotAsked, Vote::Refused];
        if votes.is_none_or(|votes| !nothing.contains(&votes.vote(self.index))) {
            self.send(MemberTask::Undo(release));
        }
    }
}
