//! One command for many pending releases of a lock: which it takes, and what its end means.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::bounds::{Bound, at_most};
use crate::kernel::command::{Command, What};
use crate::kernel::fault::Fault;
use crate::kernel::groups::{GroupNo, joins_after, pause, pause_unanswered};
use crate::kernel::pending::{IdNews, PendingReleases, name_of, note_answered};
use crate::kernel::undo::{Counts, PendingRelease, Proof};
use crate::mutant::{Mutant, is_on};
use crate::protocol::answer::{Answer, Undone};
use crate::protocol::primitive::Primitive;

/// The most holder ids in one command: about 16 KiB of them.
const MOST_IDS: usize = 256;

/// The releases that one command carries.
#[derive(Debug)]
pub(crate) struct Batch {
    group: GroupNo,
    sent: Instant,
    releases: Vec<(u64, HolderId)>,
}

/// The results of a command for many releases.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    /// The lock, if something was removed: it may be free.
    pub(crate) freed: Option<Arc<dyn Primitive>>,
    /// The releases that have their first answer, and whether they have released something, or may
    /// have by an earlier try.
    pub(crate) answered: Vec<(HolderId, bool)>,
}

impl PendingReleases {
    /// Returns the commands to send at `now`; removes the releases whose time is over.
    pub(crate) fn take_due(&mut self, now: Instant) -> Vec<(Command, Batch)> {
        self.expire(now);
        let mut commands = Vec::new();
        while let Some((_, group)) = self.groups.first().filter(|(at, _)| *at <= now) {
            let serials = self.due_together(group, now);
            commands.extend(self.take(group, &serials, now));
        }
        commands
    }

    /// Adds a release and returns its command, to be sent at once: behind its acquiring command, on
    /// the same pipeline. `None` if its release is in flight already.
    pub(crate) fn push_now(
        &mut self,
        release: PendingRelease,
        now: Instant,
    ) -> Option<(Command, Batch)> {
        let (lock, id) = (Arc::clone(&release.lock), release.id.clone());
        self.push(release, now);
        let group = self.groups.find(&lock)?;
        let serial = self.serial(&id, group)?;
        self.pending.get(&serial).filter(|it| it.due.is_some())?;
        let last = self.groups.get(group)?.last;
        let taken = self.take(group, &[serial], now);
        // Later releases of the lock need not wait because of this one.
        self.groups.set_last(group, last);
        taken
    }

    /// Returns the releases of a due group that are due, or close enough to be sent with them.
    fn due_together(&self, group: GroupNo, now: Instant) -> Vec<u64> {
        let order = self.groups.get(group).map(|group| &group.order);
        let joins = |due: Instant, serial: &u64| {
            self.pending.get(serial).is_some_and(|pending| {
                let pause = pause(pending.began.until(now));
                due <= now.after(joins_after(pause))
            })
        };
        let order = order.into_iter().flatten();
        let serials = order.take_while(|(due, serial)| joins(*due, serial));
        let serials = serials.map(|(_, serial)| *serial);
        serials.take(at_most(Bound::Ids, MOST_IDS)).collect()
    }

    pub(super) fn take(
        &mut self,
        group: GroupNo,
        serials: &[u64],
        now: Instant,
    ) -> Option<(Command, Batch)> {
        let mut releases = Vec::with_capacity(serials.len());
        for &serial in serials {
            if let Some(pending) = self.pending.get_mut(&serial) {
                pending.tried = now;
                releases.push((serial, pending.release.id.clone()));
                self.schedule(serial, None);
            }
        }
        self.groups.set_last(group, Some(now));
        let of_lock = self.groups.get(group).filter(|_| !releases.is_empty())?;
        let ids = releases.iter().map(|(_, id)| id.clone()).collect();
        let command = Command::new(&of_lock.lock, What::Undo { ids });
        let batch = Batch {
            group,
            sent: now,
            releases,
        };
        Some((command, batch))
    }

    /// Records the end of a batch.
    pub(crate) fn settle(
        &mut self,
        batch: &Batch,
        end: Result<Answer, Fault>,
        now: Instant,
    ) -> Settled {
        let mut answered = Vec::new();
        let group = self.groups.get(batch.group);
        let lock = group.map(|group| Arc::clone(&group.lock));
        let has_removed = matches!(&end, Ok(Answer::Undone(it)) if !it.removed.is_empty());
        match end {
            Ok(Answer::Undone(undone)) => {
                answered = self.settle_undone(batch, &undone, now);
            }
            end => {
                let may_have_run = end.err().is_none_or(|fault| fault.may_have_run());
                for (serial, _) in &batch.releases {
                    if !may_have_run && is_on(Mutant::UnwrittenReleaseIsDone) {
                        self.remove(*serial);
                        continue;
                    }
                    let Some(pending) = self.pending.get_mut(serial) else {
                        continue;
                    };
                    pending.may_have_run |= may_have_run;
                    // The end of the client may have cut off the connection that was being made.
                    let is_first = !std::mem::replace(&mut pending.has_failed, true);
                    let pause = if self.is_closing && !may_have_run && is_first {
                        Duration::ZERO
                    } else {
                        pause_unanswered(pending.began.until(now))
                    };
                    let news = pending.news.take();
                    self.schedule(*serial, Some(now.after(pause)));
                    if news == Some(IdNews::HasEnded) {
                        self.needs(*serial, Proof::AnyAnswer);
                    }
                }
            }
        }
        self.groups.plan(batch.group);
        Settled {
            freed: lock.filter(|_| has_removed),
            answered,
        }
    }

    /// Returns the releases with their first answers.
    fn settle_undone(
        &mut self,
        batch: &Batch,
        undone: &Undone,
        now: Instant,
    ) -> Vec<(HolderId, bool)> {
        let mut answered = Vec::new();
        let has_moved = self.has_moved_since(batch.sent);
        for (n, (serial, _)) in batch.releases.iter().enumerate() {
            let was_removed = undone.removed.contains(&n);
            let Some(pending) = self.pending.get_mut(serial) else {
                continue;
            };
            let is_first = !std::mem::replace(&mut pending.was_answered, true);
            if is_first {
                let release = &pending.release;
                let was_released = was_removed || pending.may_have_run;
                self.awaited -= usize::from(pending.is_awaited);
                if release.counts == Counts::AtShutdown {
                    self.tally.count(was_released);
                }
                note_answered(&mut self.unanswered, &name_of(release));
                answered.push((release.id.clone(), was_released));
            }
            let news = pending.news.take().filter(|_| !was_removed);
            if news.is_some() || has_moved {
                self.schedule(*serial, Some(Instant::START));
                if let Some(news) = news {
                    self.learn(*serial, news);
                }
                continue;
            }
            let any = is_on(Mutant::KeySeenIsAnyAnswer);
            if was_removed || any || pending.release.ends_by == Proof::AnyAnswer {
                let mut recent = pending.release.clone();
                recent.ends_by = Proof::AnyAnswer;
                if recent.counts == Counts::AtShutdown {
                    recent.counts = Counts::Lease;
                }
                self.ended.note(&recent.id, now);
                self.ended.note_recent(recent, now);
                self.remove(*serial);
            } else {
                let pause = pause(pending.began.until(pending.tried));
                let due = pending.tried.after(pause);
                self.schedule(*serial, Some(due));
            }
        }
        if let Some(id) = undone.other.as_deref().and_then(HolderId::parse)
            // A reply that contradicts itself must not send the same ids over and over.
            && batch.releases.iter().all(|(_, sent)| *sent != id)
            && let Some(serial) = self.serial(&id, batch.group)
        {
            self.send_next(serial);
        }
        answered
    }
}
