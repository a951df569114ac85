//! A state of the model, and the promises that hold in each.

/// The side of the lock that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Wants {
    Read,
    Write,
}

/// A deliberate mistake in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The lock key has no flag: only their set shows the readers.
    NoFlag,
    /// The flag ends when the first reader's lease does.
    FlagEndsEarly,
    /// A new flag counts the readers of an earlier one.
    KeepsOldReaders,
    /// The flag stays after the last reader.
    FlagStays,
    /// A release looks for a writer only.
    ReleasesOneForm,
    /// A downgraded guard says that it writes until the reply.
    LateReader,
    /// A reader does not store the first token.
    TokenNotKept,
}

#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub wants: &'static [Wants],
    /// How often each client acquires.
    pub tries: u8,
    /// How many renewals and downgrades each client sends.
    pub calls: u8,
    pub downgrades: bool,
    pub flaw: Option<Flaw>,
}

crate::flawed!();

/// A broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Broken {
    /// A writer holds the lock, and so does another client.
    WriterBeside,
    /// A client considers the lock held while another program has it.
    BesideForeign,
    /// A guard says that it holds what it does not hold on the server.
    NotOnServer,
    /// A reader whose flag was deleted got a reply that it holds the lock.
    Revived,
    /// Nothing is on its way, and the flag stays without a reader.
    EmptyFlag,
    /// A release left the lease.
    LeftBehind,
    /// A release or an undo removed a lease that was in use.
    TookLease,
    /// A renewal found no lease, though nobody else touched the lock.
    NotYours,
    /// A holder's token is too low.
    Token,
}

/// A lease: client, and the number of its attempt.
pub type Id = (u8, u8);

pub(super) const TTL: i8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    Free,
    /// This and the next two have the ticks left.
    Writer(Id, i8),
    Flag(i8),
    Foreign(i8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Command {
    Acquire(Id, Wants),
    /// The number of the call, and whether it makes a writer a reader.
    Renew(Id, u8, bool),
    Release(Id),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reply {
    /// With the token; `None` if refused.
    Acquired(Id, Option<u8>),
    Renewed(Id, u8, bool),
    Released(Id),
}

/// A renewal without a reply yet: its number, its age in ticks, and its mode.
pub(super) type Pending = (u8, i8, bool);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Idle,
    /// The id, and the age of the acquire in ticks.
    Asking(Id, i8),
    Held {
        id: Id,
        /// Ticks of validity left.
        left: i8,
        as_what: Wants,
        pending: Option<Pending>,
    },
    Leaving(Id),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    pub phase: Phase,
    pub tries: u8,
    pub calls: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub key: Key,
    /// Each with the ticks left.
    pub readers: Vec<(Id, i8)>,
    pub fence: u8,
    /// Commands under way, in order for each connection.
    pub connections: Vec<Vec<Command>>,
    pub replies: Vec<Reply>,
    pub clients: Vec<Client>,
    /// How many events of each kind may still happen: losses, commands that run twice, and locks
    /// and deletions by other programs.
    pub losses: u8,
    pub repeats: u8,
    pub foreign_locks: u8,
    pub deletions: u8,
    /// Somebody deleted one of our keys.
    pub was_deleted: bool,
    /// Another program has locked.
    pub was_foreign: bool,
    /// Readers whose flag was deleted and whose lock another then had.
    pub displaced: Vec<Id>,
    /// The highest tokens of writers and of readers.
    pub tokens: [u8; 2],
    pub broken: Option<Broken>,
}

impl State {
    pub fn new(rules: &Rules) -> Self {
        let client = Client {
            phase: Phase::Idle,
            tries: 0,
            calls: 0,
        };
        Self {
            key: Key::Free,
            readers: Vec::new(),
            fence: 0,
            connections: Vec::new(),
            replies: Vec::new(),
            clients: vec![client; rules.wants.len()],
            losses: 0,
            repeats: 0,
            foreign_locks: 0,
            deletions: 0,
            was_deleted: false,
            was_foreign: false,
            displaced: Vec::new(),
            tokens: [0; 2],
            broken: None,
        }
    }

    /// Removes what makes no difference any more, so that equal states are found equal.
    pub(super) fn normalized(mut self) -> Self {
        self.connections.retain(|commands| !commands.is_empty());
        self.connections.sort();
        let clients = &self.clients;
        self.replies.retain(|reply| match *reply {
            Reply::Acquired(id, _) => {
                matches!(clients[id.0 as usize].phase, Phase::Asking(own, _) if own == id)
            }
            Reply::Renewed(id, call, _) => matches!(
                clients[id.0 as usize].phase,
                Phase::Held { id: own, pending: Some((sent, ..)), .. } if own == id && sent == call
            ),
            Reply::Released(id) => clients[id.0 as usize].phase == Phase::Leaving(id),
        });
        self.replies.sort();
        self.replies.dedup();
        self.readers.sort();
        self
    }

    pub(super) fn is_reader(&self, id: Id) -> bool {
        self.readers.iter().any(|reader| reader.0 == id)
    }

    /// Records the readers whose lock another now has.
    pub(super) fn displace_readers(&mut self) {
        let readers = self.readers.iter().filter(|reader| reader.1 > 0);
        self.displaced.extend(readers.map(|reader| reader.0));
    }

    /// Returns a promise that this state breaks.
    pub(super) fn broken(&self) -> Option<Broken> {
        if self.broken.is_some() {
            return self.broken;
        }
        // After a deletion, others can hold until the lease is found lost.
        if !self.was_deleted
            && let Some(broken) = self.broken_by_holders()
        {
            return Some(broken);
        }
        let is_quiet = self.connections.is_empty() && self.replies.is_empty();
        let is_idle = |client: &Client| client.phase == Phase::Idle;
        let is_left = matches!(self.key, Key::Flag(_)) && self.readers.is_empty();
        let is_over = is_quiet && self.clients.iter().all(is_idle);
        (is_over && is_left).then_some(Broken::EmptyFlag)
    }

    /// Compares what the clients consider held with the keys.
    fn broken_by_holders(&self) -> Option<Broken> {
        let held = self.clients.iter().filter_map(|client| match client.phase {
            Phase::Held { id, as_what, .. } => Some((id, as_what)),
            _ => None,
        });
        let held: Vec<(Id, Wants)> = held.collect();
        let writes = |holder: &(Id, Wants)| holder.1 == Wants::Write;
        if held.iter().any(writes) && held.len() > 1 {
            return Some(Broken::WriterBeside);
        }
        if matches!(self.key, Key::Foreign(_)) && !held.is_empty() {
            return Some(Broken::BesideForeign);
        }
        let is_there = |(id, as_what): &(Id, Wants)| match self.key {
            Key::Writer(own, _) => own == *id,
            Key::Flag(_) => {
                let mut readers = self.readers.iter();
                *as_what == Wants::Read && readers.any(|it| it.0 == *id && it.1 > 0)
            }
            _ => false,
        };
        let is_flag = matches!(self.key, Key::Flag(_));
        match held.iter().find(|holder| !is_there(holder)) {
            Some((_, Wants::Write)) if is_flag => Some(Broken::WriterBeside),
            Some(_) => Some(Broken::NotOnServer),
            None => None,
        }
    }
}
