//! A watch: a call elsewhere that waits until a name may be free, and asks for it by itself.
//!
//! ```text
//! watch ──a release, the first messages, the end of a lease of this client──▶ news: it may be free
//!   └──the client is closed──▶ news: closed
//! ```

use std::sync::Arc;

use crate::kernel::failure::Failure;
use crate::kernel::waiter::{Outcome, WaiterCell};
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

impl Watching {
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
}

/// Returns a watch for the entry of a lock, and for the call that watches it.
pub(super) fn watch(lock: &Arc<dyn Primitive>, wakes: bool) -> (Watch, Watching) {
    let cell = Arc::new(WaiterCell::new());
    let watch = Watch {
        cell: Arc::clone(&cell),
        lock: Arc::clone(lock),
        wakes,
    };
    let watching = Watching {
        lock: Arc::clone(lock),
        wakes,
        cell,
    };
    (watch, watching)
}
