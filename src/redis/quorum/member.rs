//! What a server is as one of a quorum: how fast it is, whether it is left aside, and its lines.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;
use redis::ServerError;

use crate::clock::Instant;
use crate::error::{Meaning, meaning};
use crate::protocol::kind::KeyState;
use crate::protocol::script::Reply;
use crate::redis::quorum::pipelined_connection::{PendingReply, PipelinedConnection};
use crate::redis::undoable::{PendingRelease, Vote};

/// With so many answers unread a line is read empty by the server's own io thread. They must fit
/// into the sockets' buffers, and be few enough to cost little beside the calls they are of.
const MOST_OWED: usize = 64;

/// What a server's io thread is to do for the quorum.
pub(crate) enum MemberTask {
    /// A release, until it is sure.
    Undo(PendingRelease),
    /// To read what is unread.
    Drain(Box<PipelinedConnection>),
    /// To read what callers have left unread, after a while.
    Tidy,
    /// To find out when the server answers again.
    Probe,
}

pub(crate) struct Member {
    /// Which of the quorum's servers it is.
    pub(crate) index: usize,
    /// How long its answers took lately, in ns.
    pace: AtomicU64,
    /// Its io thread is about to read what callers have left unread.
    is_untidy: AtomicBool,
    /// It has not answered, and is not waited for until it does.
    aside: AtomicBool,
    /// So many are kept for later calls, and more only until they are read empty.
    most_lines: usize,
    /// Those that nobody uses, the one used last at the end.
    lines: Mutex<Vec<PipelinedConnection>>,
    closed: AtomicBool,
    errands: Sender<MemberTask>,
    /// What lies before the io thread.
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
        // The receiver is in self, so there is somebody to send to.
        let _ = self.errands.send(errand);
    }

    pub(crate) fn is_aside(&self) -> bool {
        self.aside.load(Ordering::SeqCst)
    }

    /// Waits for it no more until it has answered a probe.
    pub(crate) fn mark_down(&self) {
        if !self.aside.swap(true, Ordering::SeqCst) {
            self.forget_lines();
            self.send(MemberTask::Probe);
        }
    }

    /// It has answered, in that time.
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

    /// An answer came after `took`, of which it was waited for during `waited`.
    pub(crate) fn answered_after(&self, took: Duration, waited: Duration) {
        let (pace, nanos) = (self.pace(), took.as_nanos() as u64);
        // One that was there before it was waited for says only that the server was no slower.
        let was_waited_for = waited * 8 >= took;
        let pace = match nanos {
            _ if pace == 0 => nanos,
            // One that has turned slow is asked last from now on.
            _ if was_waited_for && nanos > pace.saturating_mul(2) => nanos,
            _ if was_waited_for || nanos < pace => pace - pace / 8 + nanos / 8,
            _ => return,
        };
        self.pace.store(pace, Ordering::Relaxed);
    }

    /// A call was decided without its answer, which is left on a line that was kept.
    pub(crate) fn is_unread(&self) {
        if !self.is_untidy.swap(true, Ordering::SeqCst) {
            self.send(MemberTask::Tidy);
        }
    }

    /// Reads what callers have left, each line within `patience`. False if one did not come.
    pub(crate) fn tidy(&self, patience: Duration) -> bool {
        // First: what is left from here on is seen to by the next time.
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

    /// A line that is at hand. One with too much unread is read empty first, for later calls.
    pub(crate) fn take_line(&self) -> Option<PipelinedConnection> {
        let line = self.lines.lock().pop()?;
        if line.pending() < MOST_OWED {
            return Some(line);
        }
        self.send(MemberTask::Drain(Box::new(line)));
        self.lines.lock().pop_if(|line| line.pending() < MOST_OWED)
    }

    /// Keeps a line for the next call.
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

    /// The other end is gone, or says nothing: what else leads there is no better.
    fn forget_lines(&self) {
        let lines = std::mem::take(&mut *self.lines.lock());
        for line in lines {
            self.settle_all(line);
        }
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let lines = std::mem::take(&mut *self.lines.lock());
        // Closing takes a system call each: not under the lock.
        drop(lines);
    }

    /// Reads what is unread on `line`, all of it within `patience`. False if it is of no more use.
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

    /// Sees to what was unread on a line that is of no more use.
    pub(crate) fn settle_all(&self, line: PipelinedConnection) {
        for owed in line.abandon(None) {
            self.settle(owed, None);
        }
    }

    /// Sees to an answer that nobody waits for; `None` where it will never come.
    pub(crate) fn settle(&self, owed: PendingReply, answer: Option<&Result<Reply, ServerError>>) {
        match owed {
            PendingReply::Nothing => {}
            PendingReply::Acquire(votes) => match answer {
                Some(Ok(reply)) => {
                    let vote = if reply.is_done() {
                        Vote::Granted
                    } else {
                        Vote::Refused
                    };
                    votes.note(self.index, vote);
                }
                Some(Err(_)) => votes.note(self.index, Vote::Refused),
                None => {}
            },
            PendingReply::Release {
                promise,
                may_overtake,
            } => {
                let found = match answer {
                    Some(Ok(reply)) => KeyState::read(reply),
                    _ => None,
                };
                match found {
                    Some(KeyState::Ours) => {}
                    Some(_) if !may_overtake => {}
                    _ => self.undo(promise),
                }
            }
        }
    }

    /// Has a release repeated until it is sure, where that is not so already.
    pub(crate) fn undo(&self, promise: PendingRelease) {
        let votes = promise.votes.as_ref();
        let nothing = [Vote::NotAsked, Vote::Refused];
        if votes.is_none_or(|votes| !nothing.contains(&votes.vote(self.index))) {
            self.send(MemberTask::Undo(promise));
        }
    }
}

pub(crate) fn is_no_script(answer: &Result<Reply, ServerError>) -> bool {
    matches!(answer, Err(error) if matches!(meaning(error), Meaning::NoScript))
}
