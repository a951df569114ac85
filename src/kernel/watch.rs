//! A watch: a call elsewhere that waits until a name may be free, and asks for it by itself.
//!
//! ```text
//! watch ──a release, the first messages, the end of a lease of this client──▶ news: it may be free
//!   └──the client is closed──▶ news: closed
//! ```

use std::sync::Arc;

use crate::clock::Instant;
use crate::kernel::Kernel;
use crate::kernel::context::Context;
use crate::kernel::effects::Effects;
use crate::kernel::entry::LockEntry;
use crate::kernel::table::entry_name;
use crate::kernel::waiter::{Failure, Outcome, WaiterCell};
use crate::parker::Parker;
use crate::protocol::primitive::Primitive;

/// A watching call, in the entry of the name.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) cell: Arc<WaiterCell>,
    /// The lock of this name.
    pub(super) lock: Arc<dyn Primitive>,
    /// Messages wake the call.
    pub(super) wakes: bool,
}

/// The watch of a call on a name. While it lasts, the client remembers what Redis says of the name.
#[derive(Debug)]
pub(crate) struct Watching {
    pub(crate) lock: Arc<dyn Primitive>,
    /// Messages wake the call.
    pub(crate) wakes: bool,
    pub(super) cell: Arc<WaiterCell>,
}

/// The reason why a watching call no longer sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    MayBeFree,
    Closed,
}

impl Kernel {
    /// Begins to watch a name. Messages wake the call only if it says so; the end of the client
    /// always does.
    pub(crate) fn watch(
        &self,
        lock: &Arc<dyn Primitive>,
        wakes: bool,
        now: Instant,
        fx: &mut Effects,
    ) -> Watching {
        Watching::begin(lock, wakes, &mut self.at(now, fx))
    }

    pub(crate) fn end_watch(&self, watching: Watching, now: Instant, fx: &mut Effects) {
        watching.end(&mut self.at(now, fx));
    }

    /// Returns whether the messages of a watched name arrive.
    pub(crate) fn is_live(&self, watching: &Watching) -> bool {
        let name = entry_name(&*watching.lock);
        let shard = self.table.shard(name).lock();
        shard.get(name).is_some_and(|entry| entry.is_listening)
    }

    /// Returns why a call that began at `start` fails, as far as a watched name is concerned, and
    /// since when it does: now or earlier, if Redis says nothing for too long.
    pub(crate) fn failure_at(
        &self,
        watching: &Watching,
        start: Instant,
    ) -> Option<(Failure, Instant)> {
        let name = entry_name(&*watching.lock);
        let shard = self.table.shard(name).lock();
        let entry = shard.get(name).filter(|entry| entry.last.has_failed())?;
        let at = entry.gives_up_at(start, self.limits.unreachable_for);
        Some((entry.failure(start), at))
    }
}

impl Watching {
    pub(super) fn begin(lock: &Arc<dyn Primitive>, wakes: bool, cx: &mut Context<'_>) -> Self {
        let cell = Arc::new(WaiterCell::new());
        cx.with_entry(lock, |entry, cx| {
            entry.extras().watches.push(Watch {
                cell: Arc::clone(&cell),
                lock: Arc::clone(lock),
                wakes,
            });
            if cx.kernel.is_closed() {
                entry.end_watches(&Failure::Closed, cx);
            }
        });
        Self {
            lock: Arc::clone(lock),
            wakes,
            cell,
        }
    }

    /// Returns the parker that the thread of the call sleeps on.
    pub(crate) fn parker(&self) -> &Parker {
        &self.cell.parker
    }

    /// Returns whether the name may be free, or the client is closed.
    pub(crate) fn has_news(&self) -> bool {
        self.cell.outcome.lock().is_some()
    }

    /// Takes out the news.
    pub(crate) fn take_news(&self) -> Option<News> {
        let outcome = self.cell.outcome.lock().take()?;
        Some(match outcome {
            Outcome::Failed(Failure::Closed) => News::Closed,
            _ => News::MayBeFree,
        })
    }

    pub(super) fn end(self, cx: &mut Context<'_>) {
        cx.with_existing(entry_name(&*self.lock), |entry, _| {
            let watches = &mut entry.extras().watches;
            watches.retain(|watch| !Arc::ptr_eq(&watch.cell, &self.cell));
        });
    }
}

impl LockEntry {
    /// The name may be free, or the client is closed: the calls that watch it go on.
    pub(super) fn end_watches(&self, failure: &Failure, cx: &mut Context<'_>) {
        let is_closed = matches!(failure, Failure::Closed);
        let ended = self.watches().iter().filter(|it| it.wakes || is_closed);
        for watch in ended {
            *watch.cell.outcome.lock() = Some(Outcome::Failed(failure.clone()));
            cx.fx.wake.push(Arc::clone(&watch.cell));
        }
    }
}
