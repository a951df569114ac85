//! One server of a quorum: its recent latency, whether it is down, and its idle connections.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;
use redis::ServerError;

use crate::clock::Instant;
use crate::error_reply::{Meaning, meaning};
use crate::protocol::answer::Answer;
use crate::redis::quorum::pipelined_connection::{PendingReply, PipelinedConnection};
use crate::redis::undoable::{PendingRelease, Vote};

/// From this many unread replies on, the server's io thread drains a connection before a call uses
/// it. The replies must fit into the socket buffers, and reading them must stay cheap compared with
/// a call.
const MOST_OWED: usize = 64;

/// A task of the quorum for a server's io thread.
pub(crate) enum MemberTask {
    /// Repeats a release until it is confirmed.
    Undo(PendingRelease),
    /// Reads the unread replies of this connection.
    Drain(Box<PipelinedConnection>),
    /// Reads, after a delay, the replies that callers left unread.
    Tidy,
    /// Probes the server until it replies again.
    Probe,
}

pub(crate) struct Member {
    /// Index of the server in the quorum.
    pub(crate) index: usize,
    /// Recent reply time in ns; 0 until one has been measured.
    pace: AtomicU64,
    /// True while a [`MemberTask::Tidy`] is queued.
    is_untidy: AtomicBool,
    /// True after a failure, until the server replies to a probe. While a majority is up, calls
    /// skip it.
    aside: AtomicBool,
    /// The most idle connections kept; more are kept only while they have unread replies.
    most_lines: usize,
    /// Idle connections, the most recently used last.
    lines: Mutex<Vec<PipelinedConnection>>,
    closed: AtomicBool,
    errands: Sender<MemberTask>,
    /// The tasks of the io thread.
    pub(crate) desk: Receiver<MemberTask>,
}

impl Member {
    pub(crate) fn new(index: usize, most_lines: usize) -> Self {
        let (errands, desk) = unbounded();
        Self {
            index,
            pace: AtomicU64::new(0),
            is_untidy: AtomicBool::new(false),
            aside: AtomicBool::new(false),
            most_lines,
            lines: Mutex::default(),
            closed: AtomicBool::new(false),
            errands,
            desk,
        }
    }

    fn send(&self, errand: MemberTask) {
        // Cannot fail: self owns the receiver.
        let _ = self.errands.send(errand);
    }

    pub(crate) fn is_aside(&self) -> bool {
        self.aside.load(Ordering::SeqCst)
    }

    /// Marks the server as down until it replies to a probe.
    pub(crate) fn mark_down(&self) {
        if !self.aside.swap(true, Ordering::SeqCst) {
            self.forget_lines();
            self.send(MemberTask::Probe);
        }
    }

    /// Marks the server as up again; its reply took `took`.
    pub(crate) fn is_back(&self, took: Duration) {
        self.set_pace(took);
        self.aside.store(false, Ordering::SeqCst);
    }

    pub(crate) fn pace(&self) -> u64 {
        self.pace.load(Ordering::Relaxed)
    }

    pub(crate) fn set_pace(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.pace.store(nanos, Ordering::Relaxed);
    }

    /// Updates the recent latency by a reply that took `took`, for which a caller waited `waited`.
    pub(crate) fn answered_after(&self, took: Duration, waited: Duration) {
        let (pace, nanos) = (self.pace(), took.as_nanos() as u64);
        // A reply that was there before anyone waited for it is only an upper bound of the latency.
        let was_waited_for = waited * 8 >= took;
        let pace = match nanos {
            _ if pace == 0 => nanos,
            // A server that has become slow is read last from the next call on.
            _ if was_waited_for && nanos > pace.saturating_mul(2) => nanos,
            _ if was_waited_for || nanos < pace => pace - pace / 8 + nanos / 8,
            _ => return,
        };
        self.pace.store(pace, Ordering::Relaxed);
    }

    /// Schedules reading of a reply that no caller waited for; its connection has been kept.
    pub(crate) fn is_unread(&self) {
        if !self.is_untidy.swap(true, Ordering::SeqCst) {
            self.send(MemberTask::Tidy);
        }
    }

    /// Reads what callers left unread, at most `patience` for each connection. Returns false if a
    /// reply did not come in time.
    pub(crate) fn tidy(&self, patience: Duration) -> bool {
        // Cleared first: replies left unread from here on schedule the next run.
        self.is_untidy.store(false, Ordering::SeqCst);
        let most = self.lines.lock().len();
        for _ in 0..most {
            let mut lines = self.lines.lock();
            let Some(n) = lines.iter().position(|line| line.pending() > 0) else {
                return true;
            };
            let line = lines.remove(n);
            drop(lines);
            if !self.drain(line, patience) {
                return false;
            }
        }
        true
    }

    /// Takes an idle connection. One with too many unread replies goes to the io thread first.
    pub(crate) fn take_line(&self) -> Option<PipelinedConnection> {
        let line = self.lines.lock().pop()?;
        if line.pending() < MOST_OWED {
            return Some(line);
        }
        self.send(MemberTask::Drain(Box::new(line)));
        self.lines.lock().pop_if(|line| line.pending() < MOST_OWED)
    }

    /// Keeps a connection for the next call.
    pub(crate) fn keep(&self, line: PipelinedConnection) {
        if self.closed.load(Ordering::SeqCst) {
            return;
        }
        if self.is_aside() {
            return self.settle_all(line);
        }
        let mut lines = self.lines.lock();
        if lines.len() < self.most_lines || line.pending() > 0 {
            lines.push(line);
        }
    }

    /// Discards all idle connections: the server is gone or silent, so none of them works.
    fn forget_lines(&self) {
        let lines = std::mem::take(&mut *self.lines.lock());
        for line in lines {
            self.settle_all(line);
        }
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let lines = std::mem::take(&mut *self.lines.lock());
        // Closing takes a system call for each connection: not under the lock.
        drop(lines);
    }

    /// Reads all unread replies of `line` within `patience`, then pings. Returns false if the
    /// connection failed.
    pub(crate) fn drain(&self, mut line: PipelinedConnection, patience: Duration) -> bool {
        let until = Instant::now().after(patience);
        while line.pending() > 0 {
            let (owed, answer) = line.receive(until);
            let Ok(answer) = answer else {
                self.settle(owed, None);
                self.settle_all(line);
                return false;
            };
            if is_no_script(&answer) {
                line.forget_taught();
            }
            self.settle(owed, Some(&answer));
        }
        let sent = Instant::now();
        let until = sent.after(patience);
        let answered = line.ping(until).is_ok() && line.receive(until).1.is_ok();
        if answered {
            self.set_pace(sent.until(Instant::now()));
            self.keep(line);
        }
        answered
    }

    /// Settles every unread reply of a connection that failed.
    pub(crate) fn settle_all(&self, line: PipelinedConnection) {
        for owed in line.abandon(None) {
            self.settle(owed, None);
        }
    }

    /// Handles a reply that no caller waits for; `None` if it will never come.
    pub(crate) fn settle(&self, owed: PendingReply, answer: Option<&Result<Answer, ServerError>>) {
        match (owed, answer) {
            (PendingReply::Nothing, _) | (PendingReply::Acquire(_), None) => {}
            (PendingReply::Acquire(votes), Some(answer)) => {
                let is_granted = answer.as_ref().is_ok_and(Answer::is_done);
                let vote = if is_granted {
                    Vote::Granted
                } else {
                    Vote::Refused
                };
                votes.note(self.index, vote);
            }
            (PendingReply::Release { .. }, Some(Ok(Answer::Ours(_)))) => {}
            (PendingReply::Release { may_overtake, .. }, Some(Ok(_))) if !may_overtake => {}
            (PendingReply::Release { promise, .. }, _) => self.undo(promise),
        }
    }

    /// Lets the io thread repeat a release until it is confirmed, unless nothing was acquired here.
    pub(crate) fn undo(&self, promise: PendingRelease) {
        let votes = promise.votes.as_ref();
        let nothing = [Vote::NotAsked, Vote::Refused];
        if votes.is_none_or(|votes| !nothing.contains(&votes.vote(self.index))) {
            self.send(MemberTask::Undo(promise));
        }
    }
}

pub(crate) fn is_no_script(answer: &Result<Answer, ServerError>) -> bool {
    matches!(answer, Err(error) if matches!(meaning(error), Meaning::NoScript))
}
