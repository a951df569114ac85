//! The state of the server, the messages on their way, the clients' views, and the promises.

/// A holder id: a client and the number of its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id {
    pub client: usize,
    pub entry: u8,
}

/// All higher ages count as this one.
pub(super) const OLD: i8 = 6;

#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How many permits each client wants, and of how many.
    pub wants: [i8; 3],
    pub permits: [i8; 3],
    /// How many ticks permits last after a renewal, and after a grant or a refresh of a place.
    pub ttl: i8,
    pub grant: i8,
    /// How often each client enters.
    pub entries: u8,
    /// How often each client refreshes and renews, in runs that are not prompt.
    pub calls: u8,
    /// Whether everything arrives before the next tick.
    pub is_prompt: bool,
    /// How many ticks permits may be unused while a client waits for them, in prompt runs.
    pub max_stall: i8,
    pub flaw: Option<Flaw>,
}

crate::flawed!();

impl Rules {
    /// How many permits the owner of an id wants.
    pub(super) fn want(&self, id: Id) -> i8 {
        self.wants[id.client]
    }
}

/// A deliberate flaw, which the search must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// A release subtracts from the counter whether or not the holder is there.
    ReleaseCountsBlindly,
    /// A renewal adds a holder that is gone.
    RenewalRestores,
    /// An enter takes what is free although others wait.
    NewcomerOvertakes,
    /// A grant goes to the first waiter that fits.
    WhoeverFitsGoesFirst,
    /// A script grants to one waiter only.
    GrantsOnce,
    /// A client that leaves the queue grants to nobody.
    LeavesSilently,
    /// A grant that comes by message counts from the message.
    ValidFromTheMessage,
    /// A client enters again under the id that it used before.
    IdUsedTwice,
    /// An enter that the network runs again queues the id that has permits.
    SecondRunIsQueued,
    /// An enter that the network runs again replies that the id has permits, and grants to nobody.
    SecondRunGrantsNothing,
}

/// A broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Broken {
    /// A client considers permits held, and the server does not.
    HeldByNobody,
    /// More permits are in use than there are, or are out by the counter.
    TooManyInUse,
    /// The counter is not the sum of the permits that are out.
    Counter,
    /// A grant went past a living earlier waiter.
    Overtaken,
    /// A script ended although the first living waiter fits.
    FittingWaiterLeft,
    /// A release or an undo took permits that are in use.
    TakenInUse,
    /// An id has permits and a place.
    HolderQueued,
    /// Permits were unused for too long.
    Stalled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Command {
    Enter(Id),
    Refresh(Id),
    Renew(Id),
    Leave(Id),
}

impl Command {
    pub(super) fn id(self) -> Id {
        let (Self::Enter(id) | Self::Refresh(id) | Self::Renew(id) | Self::Leave(id)) = self;
        id
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Found {
    Granted,
    Waits,
    /// The network ran the enter twice: the id had permits before.
    RanBefore,
    Gone,
}

/// A command, and what it found.
pub type Reply = (Command, Found);

/// A client's view of its call. Ages count from the sending of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Call {
    #[default]
    Out,
    Entering(Id, i8),
    /// The age of the last proof of its place, and that of a refresh without a reply.
    Waiting(Id, i8, Option<i8>),
    /// Renews a grant that may have lapsed; the age of the renewal, `OLD` before it is sent.
    Confirming(Id, i8),
    /// How long the permits are valid, and the age of a renewal without a reply.
    Holding(Id, i8, Option<i8>),
    Leaving(Id),
    Dead,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client {
    pub call: Call,
    pub entries: u8,
    pub calls: u8,
    /// In prompt runs: has refreshed or renewed since the last tick.
    pub is_fresh: bool,
}

/// A holder on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Member {
    pub id: Id,
    /// In how many ticks its permits end.
    pub left: i8,
    /// A grant that was not renewed.
    pub is_provisional: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    pub members: Vec<Member>,
    /// How many permits are out, by the counter.
    pub out: i8,
    /// The waiters in order, each with the age of its last refresh.
    pub queue: Vec<(Id, i8)>,
    /// The commands on their way, in order on each connection.
    pub connections: Vec<Vec<Command>>,
    pub replies: Vec<Reply>,
    /// The grants that are published and not received.
    pub messages: Vec<Id>,
    pub clients: Vec<Client>,
    /// How many more things can be lost, how many commands can run twice, and how many clients can
    /// die.
    pub losses: u8,
    pub repeats: u8,
    pub deaths: u8,
    pub stall: i8,
    pub broken: Option<Broken>,
}

impl State {
    /// Returns whether the client waits for the reply to this command.
    fn expects(&self, command: Command) -> bool {
        let call = self.clients[command.id().client].call;
        match (command, call) {
            (Command::Enter(id), Call::Entering(own, _))
            | (Command::Refresh(id), Call::Waiting(own, _, Some(_)))
            | (Command::Renew(id), Call::Confirming(own, _) | Call::Holding(own, _, Some(_)))
            | (Command::Leave(id), Call::Leaving(own)) => id == own,
            _ => false,
        }
    }

    /// Returns the same state without what makes no difference.
    pub(super) fn normalized(mut self, rules: &Rules) -> Self {
        self.connections.retain(|commands| !commands.is_empty());
        self.connections.sort();
        let replies = std::mem::take(&mut self.replies);
        self.replies = replies
            .into_iter()
            .filter(|(command, _)| self.expects(*command))
            .collect();
        self.replies.sort();
        self.replies.dedup();
        let clients = &self.clients;
        self.messages.retain(|id| {
            let call = clients[id.client].call;
            matches!(call, Call::Entering(own, _) | Call::Waiting(own, ..) if own == *id)
                || rules.has(Flaw::IdUsedTwice)
        });
        self.messages.sort();
        self.messages.dedup();
        self.members.sort();
        self
    }

    pub(super) fn is_member(&self, id: Id) -> bool {
        self.members.iter().any(|member| member.id == id)
    }

    /// Returns whether a command is on its way, or its reply.
    pub(super) fn is_open(&self, command: Command) -> bool {
        let is_reply = |reply: &Reply| reply.0 == command;
        self.is_sent(command) || self.replies.iter().any(is_reply)
    }

    pub(super) fn is_sent(&self, command: Command) -> bool {
        self.connections.iter().flatten().any(|it| *it == command)
    }

    /// Returns a promise that is broken in this state.
    pub(super) fn broken(&self, rules: &Rules) -> Option<Broken> {
        if self.broken.is_some() {
            return self.broken;
        }
        let mut in_use = 0;
        for client in &self.clients {
            if let Call::Holding(id, 1.., _) = client.call {
                in_use += rules.want(id);
                let mut members = self.members.iter();
                if !members.any(|member| member.id == id && member.left > 0) {
                    return Some(Broken::HeldByNobody);
                }
            }
        }
        // Prompt runs measure what that costs.
        let is_queued = |id: Id| self.queue.iter().any(|place| place.0 == id);
        if !rules.is_prompt && self.members.iter().any(|it| is_queued(it.id)) {
            return Some(Broken::HolderQueued);
        }
        let most = rules.permits.into_iter().max().unwrap_or(0);
        let sum: i8 = self.members.iter().map(|it| rules.want(it.id)).sum();
        if in_use > most || sum > most {
            Some(Broken::TooManyInUse)
        } else if sum != self.out {
            Some(Broken::Counter)
        } else if rules.is_prompt && self.stall > rules.max_stall {
            Some(Broken::Stalled)
        } else {
            None
        }
    }
}
