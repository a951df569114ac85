//! The bounds of a search, its deliberate flaws, and the promises.

/// How many clients there are at most.
pub(super) const CLIENTS: usize = 3;

/// How many ids each client has.
pub(super) const IDS: usize = 2;

/// How many ticks a place lasts after a refresh, and a grant to it.
pub(super) const GRANT: u8 = 3;

/// All higher ages count as this one.
pub(super) const OLD: u8 = 6;

#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub clients: usize,
    /// How often each client enters.
    pub entries: u8,
    /// How often each client refreshes and renews, in runs that are not prompt.
    pub calls: u8,
    pub ttl: u8,
    /// Whether everything arrives before the next tick.
    pub is_prompt: bool,
    /// How many ticks the lock may be free while a client waits, in prompt runs.
    pub max_stall: u8,
    pub flaw: Option<Flaw>,
}

impl Rules {
    pub fn with(self, flaw: Flaw) -> Self {
        Self {
            flaw: Some(flaw),
            ..self
        }
    }

    pub(super) fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }
}

/// A deliberate flaw, which the search must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// A grant is published to find out whether anybody listens.
    CountsByPublishing,
    /// A grant that comes by message counts from the message.
    ValidFromTheMessage,
    /// A granted place stays in the queue.
    GrantedPlaceStays,
    /// A client enters again under the id that it used before.
    IdUsedTwice,
    /// A grant goes to the first living place.
    PassesNobodyOver,
    /// A place that was passed over and refreshed is passed over again.
    NoTurnAfterARefresh,
    /// A place that was passed over and refreshed counts as reached for ever.
    TurnIsKept,
    /// A place that is passed over leaves the queue.
    PassedPlaceLeaves,
    /// A refresh of a free lock grants it to the client that asks.
    AskerGoesFirst,
    /// The place of a client that is about to listen for the first time is passed over.
    NewPlaceIsPassedOver,
}

/// A broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Broken {
    /// A client considers the lock held, and the server does not.
    Exclusion,
    /// An id holds the lock and is still queued.
    GrantedTwice,
    /// A release or an undo took a lease or a place that is in use.
    TakenInUse,
    /// A grant went to a place although an earlier one was living and reached.
    Overtaken,
    /// A living place was passed over in more than one interval between refreshes, and its client
    /// did not listen in between.
    PassedOver,
    /// A grant went to a killed client that had listened at its last refresh.
    KilledGranted,
    /// The place of a client that is about to listen was passed over.
    NewPassedOver,
    /// A place that was refreshed in time is gone.
    PlaceLost,
    /// The lock was free for too long.
    Stalled,
}
