//! What a call for a set waits for if its names have no queues: a message that says that a name may
//! be free. Nobody asks for the name meanwhile.

use std::sync::Arc;

use crate::clock::Instant;
use crate::kernel::context::Context;
use crate::kernel::entry::LockEntry;
use crate::kernel::table::entry_name;
use crate::kernel::waiter::{Failure, Outcome, WaiterCell};
use crate::protocol::primitive::Primitive;

/// A call for a set that was refused because of a name, in the entry of the name.
#[derive(Debug)]
pub(super) struct Watch {
    cell: Arc<WaiterCell>,
    /// The lock of this name.
    pub(super) lock: Arc<dyn Primitive>,
    /// Messages wake the call.
    pub(super) wakes: bool,
}

/// The name that last refused a call for a set.
pub(super) struct Watching {
    /// Its index.
    pub(super) name: usize,
    pub(super) lock: Arc<dyn Primitive>,
    /// Its messages wake the call.
    pub(super) wakes: bool,
    pub(super) cell: Arc<WaiterCell>,
    /// When the call asks again if no message comes.
    pub(super) until: Instant,
}

impl Watching {
    pub(super) fn begin(
        name: usize,
        lock: &Arc<dyn Primitive>,
        wakes: bool,
        cx: &mut Context<'_>,
    ) -> Self {
        let cell = Arc::new(WaiterCell::new());
        cx.with_entry(lock, |entry, cx| {
            entry.watches.push(Watch {
                cell: Arc::clone(&cell),
                lock: Arc::clone(lock),
                wakes,
            });
            if cx.kernel.is_closed() {
                entry.end_watches(&Failure::Closed, cx);
            }
        });
        Self {
            name,
            lock: Arc::clone(lock),
            wakes,
            cell,
            until: cx.now,
        }
    }

    /// Returns whether the name may be free, or the client is closed.
    pub(super) fn has_news(&self) -> bool {
        self.cell.outcome.lock().is_some()
    }

    pub(super) fn end(self, cx: &mut Context<'_>) {
        cx.with_existing(&entry_name(&*self.lock), |entry, _| {
            (entry.watches).retain(|watch| !Arc::ptr_eq(&watch.cell, &self.cell));
        });
    }
}

impl LockEntry {
    /// The name may be free, or the client is closed: calls for sets go on.
    pub(super) fn end_watches(&self, failure: &Failure, cx: &mut Context<'_>) {
        let is_closed = matches!(failure, Failure::Closed);
        let ended = self.watches.iter().filter(|it| it.wakes || is_closed);
        for watch in ended {
            *watch.cell.outcome.lock() = Some(Outcome::Failed(failure.clone()));
            cx.fx.wake.push(Arc::clone(&watch.cell));
        }
    }
}
