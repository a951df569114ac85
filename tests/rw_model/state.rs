//! A state of the model, and the promises that hold in each.

/// The side of the lock that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Wants {
    Read,
    Write,
}

/// A deliberate mistake in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Readers are in their set alone.
    NoMark,
    MarkEndsEarly,
    KeepsOldReaders,
    MarkStays,
    ReleasesOneForm,
    /// A downgraded guard says that it writes until the reply.
    LateReader,
    TokenNotKept,
}

#[derive(Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) wants: &'static [Wants],
    /// How often each client acquires.
    pub(crate) tries: u8,
    /// How many renewals and downgrades each client sends.
    pub(crate) calls: u8,
    pub(crate) downgrades: bool,
    pub(crate) flaw: Option<Flaw>,
}

impl Rules {
    pub(crate) fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }
}

/// A broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Broken {
    WriterBeside,
    BesideForeign,
    /// A guard says that it holds what it does not hold on the server.
    NotOnServer,
    /// A reader whose mark was deleted got a reply that it holds the lock.
    Revived,
    EmptyMark,
    /// A release left the lease.
    LeftBehind,
    /// A release or an undo removed a lease that was in use.
    TookLease,
    /// "Not yours", though nobody else touched the lock.
    NotYours,
    Token,
}

/// A lease: client, and the number of its attempt.
pub(crate) type Id = (u8, u8);

pub(crate) const TTL: i8 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Free,
    /// Each with the ticks left.
    Writer(Id, i8),
    Mark(i8),
    Foreign(i8),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Command {
    Acquire(Id, Wants),
    /// The number of the call, and whether it makes a writer a reader.
    Renew(Id, u8, bool),
    Release(Id),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Reply {
    /// With the token; `None` if refused.
    Acquired(Id, Option<u8>),
    Renewed(Id, u8, bool),
    Released(Id),
}

/// A renewal without a reply yet: its number, its age in ticks, and its mode.
pub(crate) type Pending = (u8, i8, bool);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Idle,
    /// The id, and for how many ticks.
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

#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) phase: Phase,
    pub(crate) tries: u8,
    pub(crate) calls: u8,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) key: Key,
    /// Each with the ticks left.
    pub(crate) readers: Vec<(Id, i8)>,
    pub(crate) fence: u8,
    /// Commands under way, in order for each connection.
    pub(crate) connections: Vec<Vec<Command>>,
    pub(crate) replies: Vec<Reply>,
    pub(crate) clients: Vec<Client>,
    /// How many events of each kind may still happen.
    pub(crate) losses: u8,
    pub(crate) foreign_locks: u8,
    pub(crate) deletions: u8,
    /// Somebody deleted a key of ours.
    pub(crate) was_deleted: bool,
    /// Another program has locked.
    pub(crate) was_foreign: bool,
    /// Readers whose mark was deleted and whose lock another then had.
    pub(crate) displaced: Vec<Id>,
    /// The highest tokens of writers and of readers.
    pub(crate) tokens: [u8; 2],
    pub(crate) broken: Option<Broken>,
}

impl State {
    pub(crate) fn new(rules: &Rules) -> Self {
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
    pub(crate) fn normalized(mut self) -> Self {
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

    pub(crate) fn is_reader(&self, id: Id) -> bool {
        self.readers.iter().any(|reader| reader.0 == id)
    }

    pub(crate) fn check(&self) -> Result<(), Broken> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        let held = self.clients.iter().filter_map(|client| match client.phase {
            Phase::Held { id, as_what, .. } => Some((id, as_what)),
            _ => None,
        });
        let held: Vec<(Id, Wants)> = held.collect();
        let writers = held.iter().filter(|holder| holder.1 == Wants::Write);
        let writers = writers.count();
        let is_mark = matches!(self.key, Key::Mark(_));
        // After a deletion, others can hold until the lease is found lost.
        if !self.was_deleted {
            if writers > 0 && held.len() > 1 {
                return Err(Broken::WriterBeside);
            }
            if matches!(self.key, Key::Foreign(_)) && !held.is_empty() {
                return Err(Broken::BesideForeign);
            }
            let is_there = |(id, as_what): &(Id, Wants)| match self.key {
                Key::Writer(own, _) => own == *id,
                Key::Mark(_) => {
                    let mut readers = self.readers.iter();
                    *as_what == Wants::Read && readers.any(|it| it.0 == *id && it.1 > 0)
                }
                _ => false,
            };
            match held.iter().find(|holder| !is_there(holder)) {
                Some((_, Wants::Write)) if is_mark => return Err(Broken::WriterBeside),
                Some(_) => return Err(Broken::NotOnServer),
                None => {}
            }
        }
        let is_quiet = self.connections.is_empty() && self.replies.is_empty();
        let all_idle = self
            .clients
            .iter()
            .all(|client| client.phase == Phase::Idle);
        match is_quiet && all_idle && is_mark && self.readers.is_empty() {
            true => Err(Broken::EmptyMark),
            false => Ok(()),
        }
    }
}
