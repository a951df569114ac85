//! The holders of a lease, one after another: what each brings to it.

use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use crate::clock::Instant;
use crate::config::{OnLost, OnRenew};

/// The holder that takes a lease, and for how long it may hold it.
#[derive(Clone, Copy)]
pub(crate) struct Taker<'a> {
    pub(crate) holder: &'a Holder,
    pub(crate) max_hold: Duration,
}

/// The facts of a holding that are recorded at its end.
pub(crate) struct Facts {
    /// When it began; `None` if nobody has held the lease.
    pub(crate) since: Option<Instant>,
    pub(crate) trace_id: Option<Arc<str>>,
    /// The ttl that renewals set.
    pub(crate) ttl_ms: u64,
}

/// The settings that a holder brings to a lease: they are installed when its thread takes that.
#[derive(Clone, Default)]
pub(crate) struct Holder {
    /// The most hand-offs in a row that this holder allows.
    pub(crate) handoffs: u32,
    /// For how long the lease lingers after the end of the holding.
    pub(crate) linger: Duration,
    /// The thread that acquires it, for warnings in debug builds.
    pub(crate) thread: Option<ThreadId>,
    /// `None` if it is empty.
    pub(crate) reports: Option<Box<Reports>>,
}

/// The callbacks of a holder, and its trace id for log records.
#[derive(Clone, Default)]
pub(crate) struct Reports {
    pub(crate) trace_id: Option<Arc<str>>,
    pub(crate) on_lost: Option<Arc<OnLost>>,
    pub(crate) on_renew: Option<Arc<OnRenew>>,
}

impl Reports {
    pub(crate) fn has_callbacks(&self) -> bool {
        self.on_lost.is_some() || self.on_renew.is_some()
    }
}

impl Holder {
    pub(crate) fn trace_id(&self) -> Option<&Arc<str>> {
        self.reports.as_ref()?.trace_id.as_ref()
    }

    pub(crate) fn on_lost(&self) -> Option<&Arc<OnLost>> {
        self.reports.as_ref()?.on_lost.as_ref()
    }

    pub(crate) fn on_renew(&self) -> Option<&Arc<OnRenew>> {
        self.reports.as_ref()?.on_renew.as_ref()
    }

    /// Returns whether it may own a user's closure.
    pub(crate) fn has_callbacks(&self) -> bool {
        self.reports.as_ref().is_some_and(|it| it.has_callbacks())
    }
}
