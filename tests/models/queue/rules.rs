//! The bounds of a search, its deliberate flaws, and the promises.

/// How many clients there are at most.
pub(super) const CLIENTS: usize = 3;

/// How many ids each client has.
pub(super) const IDS: usize = 2;

/// How many ticks a place lasts after a refresh. A grant to it ends at the same time, unless it is
/// renewed.
pub(super) const GRANT: u8 = 3;

/// The highest age of a command of a client, in ticks: all higher ages count as this one.
pub(super) const OLD: u8 = 6;

#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub clients: usize,
    /// How often each client enters.
    pub entries: u8,
    /// How often each client refreshes and renews, in runs that are not prompt.
    pub calls: u8,
    /// How many ticks a lease lasts after an acquire or a renewal.
    pub ttl: u8,
    /// Whether clients without a place first try to acquire the lock.
    pub tries_first: bool,
    /// Whether grants draw fencing tokens. Then ids must not be used again.
    pub has_tokens: bool,
    /// Whether everything arrives before the next tick.
    pub is_prompt: bool,
    /// How many ticks the lock may be free while a client waits, in prompt runs.
    pub max_stall: u8,
    pub flaw: Option<Flaw>,
}

crate::flawed!();

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
    /// A client tries to acquire the lock for a thread while it has a place for another.
    PlacedClientTries,
    /// A client whose release did not pass the lock on tries to acquire it.
    TriesBeforeOthers,
    /// A grant repeats the last token that was drawn.
    GrantDrawsNoToken,
    /// The fence records only the first token of a block that was drawn.
    BlockIsNotKept,
    /// A client uses a block of the size that it wants now, not of the size that it was granted.
    TakesWhatItWantsNow,
    /// A client treats the token in the reply to a refresh as the first of the block that it wants.
    RefreshGivesABlock,
    /// An enter that the network runs again queues the id that holds the lock.
    SecondRunIsQueued,
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
    /// A client was granted the lock twice in a row although a place of another was reached.
    TwoTurns,
    /// A token was used that is not above all tokens used before; after a deletion, one that was
    /// used before.
    Token,
    /// The lock was free for too long.
    Stalled,
}
