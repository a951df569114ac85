//! The bounds of a search, its deliberate flaws, and the promises.

/// How many names, clients, and ids of each client there are.
pub(super) const NAMES: usize = 3;
pub const CLIENTS: usize = 5;
pub(super) const IDS: usize = 2;

/// The names that a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wants {
    Nothing,
    /// These names as a set.
    Set([bool; NAMES]),
    /// One name, by a place in its queue.
    Name(usize),
    /// The first name, and the second while it holds the first.
    Nested(usize, usize),
}

#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub wants: [Wants; CLIENTS],
    /// Whether a set asks at any time. Otherwise it asks only when it is granted a name.
    pub refreshes: bool,
    /// Whether a set that keeps names may reach the cap.
    pub has_cap: bool,
    /// Whether clients ask once only.
    pub once: bool,
    pub flaw: Option<Flaw>,
}

crate::flawed!();

/// A deliberate flaw, which the search must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// A set that is refused passes its names on and queues by two further scripts.
    AsksInThreeScripts,
    /// A set keeps no names.
    KeepsNothing,
    /// A set keeps whatever it has while it waits for another name.
    KeepsAnyName,
    /// The script does not check that the names that the set counts as its own still are.
    TrustsTheSet,
    /// An undo ends with the first name that it frees.
    UndoesOneName,
}

/// A broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A client considers a name held, and the server does not.
    Exclusion,
    /// A release or an undo took a lease that is in use.
    TakenInUse,
    /// Nothing is on its way, and a name or a place belongs to no call.
    LeftOver,
    /// A client waits, and nothing can happen any more.
    Deadlock,
    /// Clients act for ever, and none of them acquires anything.
    GoesRound,
    /// Others acquire names for ever while the first client waits.
    Starves,
}
