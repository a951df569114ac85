//! The protocol and its environment: all possible next steps of a state.

use super::promise::Step;
use super::state::{ATTEMPTS, Attempt, Phase, Progress, SERVERS, State};

const MAJORITY: usize = 2;

/// The bounds of a search.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Attempts to take the lock, each with its own id and independent of the others.
    pub attempts: usize,
    /// Every attempt may propose any token from 1 to this one.
    pub tokens: u8,
    /// The ttl of keys, in ticks. All share one clock; within a tick, any number of other steps may
    /// happen.
    pub ttl: u8,
    pub renewing: bool,
    /// The number of tokens that a grant reserves. With 2, the lease can be handed off once, under
    /// the second token.
    pub block: u8,
    /// How often a key expires early on some server.
    pub early: u8,
    /// How often some server restarts empty.
    pub restarts: u8,
    /// Whether leases heal: each renews twice, and a server that has lost its key joins again. Then
    /// servers restart one at a time: each lease has its key at all others, and each has granted
    /// to the last holder, or has been joined since.
    pub joins: bool,
    /// Whether releases to one of the servers are messages on connections. The servers keep or
    /// delete keys independently, so one is enough. The others may delete the key of an attempt
    /// that is over at any time, which is more than connections allow.
    pub connections: bool,
}

/// A mistake in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The second attempt, which follows the first, counts grants to the first as votes.
    VotesOverTwoIds,
    /// An attempt asks the servers that refused again with a higher token, and counts all its
    /// grants.
    VotesOverTwoTokens,
    CounterNotKept,
    BlockNotKept,
    EqualTokenGranted,
    /// One server that renews is enough, as a majority of the servers that have answered.
    RenewedByTheAnswering,
    ValidFromTheAnswer,
    RenewedFromTheAnswer,
    /// A server that joins sets its counter to the tokens of the lease, although it is higher.
    JoinLowersTheCounter,
    /// It raises its counter to the first token of the lease only.
    JoinBringsTheFirstToken,
    /// A release that found nothing is final once the answer to the acquire is read, even if that
    /// answer was read after the release was sent.
    ReleaseJudgedWhenAnswered,
    /// Any answer to a release is final.
    AnyAnswerEndsRelease,
}

#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    pub bounds: Bounds,
    pub flaw: Option<Flaw>,
}

impl Protocol {
    pub(super) fn start(&self) -> State {
        let bounds = self.bounds;
        let highest = bounds.tokens + bounds.block - 1;
        let is_small = bounds.attempts <= ATTEMPTS && highest < 8 && bounds.ttl < 4;
        assert!(
            is_small && bounds.early < 4 && bounds.restarts < 4,
            "the bounds exceed the bits of a packed state"
        );
        let mut start = State {
            early: bounds.early,
            restarts: bounds.restarts,
            ..State::default()
        };
        start.servers[0].has_connections = bounds.connections;
        start
    }

    pub(super) fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// Calls `then` with each possible next step of `state`, and the state that it leads to.
    pub(super) fn each_next(&self, state: &State, mut then: impl FnMut(Step, State)) {
        let mut take = |step, change: &dyn Fn(&mut State)| {
            let mut next = *state;
            change(&mut next);
            self.tidy(&mut next);
            then(step, next);
        };
        take(Step::Tick, &|next| self.tick(next));
        // Attempts begin in the order of their numbers: they are interchangeable.
        let begun = state.attempts.iter().filter(|a| a.phase != Phase::Idle);
        let begun = begun.count();
        let waits_for_first =
            begun == 1 && self.has(Flaw::VotesOverTwoIds) && state.attempts[0].phase != Phase::Over;
        if begun < self.bounds.attempts && !waits_for_first {
            for token in 1..=self.bounds.tokens {
                take(Step::Asks { id: begun, token }, &|next| {
                    self.ask(next, begun, token);
                });
            }
        }
        for (id, attempt) in state.attempts.iter().enumerate().take(begun) {
            self.each_of_client(state, id, attempt, &mut take);
        }
        for (server, now) in state.servers.iter().enumerate() {
            for id in 0..begun {
                let token = state.attempts[id].token;
                // A refusal has the effect of a lost message, so there is no step for it.
                if now.acquire[id] == Progress::Sent
                    && now.holder.is_none()
                    && self.is_enough(token, now.counter)
                {
                    take(Step::Grants { server, id }, &|next| {
                        self.grant(next, server, id)
                    });
                }
                let is_owner = now.holder == Some(id);
                if now.renew[id] == Progress::Sent && is_owner {
                    take(Step::Renews { server, id }, &|next| {
                        next.servers[server].renew[id] = Progress::Yes;
                        next.servers[server].left = self.bounds.ttl;
                    });
                }
                if now.join[id] == Progress::Sent && now.holder.is_none() {
                    take(Step::Joins { server, id }, &|next| {
                        self.join(next, server, id)
                    });
                }
                if now.has_connections {
                    self.each_of_releases(state, server, id, &mut take);
                } else if is_owner && state.attempts[id].phase == Phase::Over {
                    take(Step::Deletes { server, id }, &|next| {
                        next.servers[server].holder = None;
                    });
                }
            }
            self.each_of_faults(state, server, &mut take);
        }
    }

    fn each_of_faults(
        &self,
        state: &State,
        server: usize,
        take: &mut impl FnMut(Step, &dyn Fn(&mut State)),
    ) {
        if state.early > 0 && state.servers[server].holder.is_some() {
            take(Step::ExpiresEarly { server }, &|next| {
                next.early -= 1;
                next.servers[server].holder = None;
            });
        }
        if state.restarts > 0 && (!self.bounds.joins || may_restart(state, server)) {
            take(Step::RestartsEmpty { server }, &|next| {
                next.restarts -= 1;
                next.servers[server].holder = None;
                next.servers[server].counter = 0;
                next.servers[server].has_last = false;
            });
        }
    }

    fn each_of_client(
        &self,
        state: &State,
        id: usize,
        attempt: &Attempt,
        take: &mut impl FnMut(Step, &dyn Fn(&mut State)),
    ) {
        match attempt.phase {
            Phase::Idle | Phase::Over => {}
            Phase::Asking => self.each_of_asking(state, id, attempt, take),
            Phase::Holding => self.each_of_holding(state, id, attempt, take),
        }
    }

    fn each_of_asking(
        &self,
        state: &State,
        id: usize,
        attempt: &Attempt,
        take: &mut impl FnMut(Step, &dyn Fn(&mut State)),
    ) {
        take(Step::GivesUp { id }, &|next| {
            next.attempts[id].phase = Phase::Over;
        });
        let token = attempt.token;
        if self.votes(state, id) >= MAJORITY {
            take(Step::Holds { id, token }, &|next| {
                next.attempts[id].phase = Phase::Holding;
                next.held |= 1 << token;
                next.last = self.bounds.joins.then_some(id);
                for server in &mut next.servers {
                    server.has_last = self.bounds.joins && server.acquire[id] == Progress::Yes;
                }
                if self.has(Flaw::ValidFromTheAnswer) {
                    next.attempts[id].left = self.bounds.ttl;
                }
            });
        }
        if self.has(Flaw::VotesOverTwoTokens) && token < self.bounds.tokens {
            let token = token + 1;
            take(Step::AsksHigher { id, token }, &|next| {
                next.attempts[id].token = token;
                for server in &mut next.servers {
                    if server.acquire[id] == Progress::No {
                        server.acquire[id] = Progress::Sent;
                    }
                }
            });
        }
    }

    fn each_of_holding(
        &self,
        state: &State,
        id: usize,
        attempt: &Attempt,
        take: &mut impl FnMut(Step, &dyn Fn(&mut State)),
    ) {
        take(Step::Releases { id }, &|next| {
            next.attempts[id].phase = Phase::Over;
        });
        if self.bounds.block > 1 && !attempt.is_handed_off {
            let token = attempt.token + 1;
            take(Step::HandsOn { id, token }, &|next| {
                next.attempts[id].is_handed_off = true;
                next.held |= 1 << token;
            });
        }
        if attempt.renewals > 0 && attempt.renewed_left == 0 {
            take(Step::AsksToRenew { id }, &|next| {
                next.attempts[id].renewals -= 1;
                next.attempts[id].renewed_left = self.bounds.ttl;
                for server in &mut next.servers {
                    server.renew[id] = Progress::Sent;
                }
            });
        }
        let yes = state
            .servers
            .iter()
            .filter(|s| s.renew[id] == Progress::Yes);
        let yes = yes.count();
        if yes >= MAJORITY || yes == 1 && self.has(Flaw::RenewedByTheAnswering) {
            take(Step::HoldsOn { id }, &|next| {
                let attempt = &mut next.attempts[id];
                attempt.left = match self.flaw {
                    Some(Flaw::RenewedFromTheAnswer) => self.bounds.ttl,
                    _ => attempt.left.max(attempt.renewed_left),
                };
                attempt.renewed_left = 0;
                // A server that has the key refuses: the client need not know which do.
                for server in &mut next.servers {
                    if self.bounds.joins && server.renew[id] != Progress::Yes {
                        server.join[id] = Progress::Sent;
                    }
                }
            });
        }
    }

    fn is_enough(&self, token: u8, counter: u8) -> bool {
        token > counter || self.has(Flaw::EqualTokenGranted) && token == counter
    }

    fn ask(&self, next: &mut State, id: usize, token: u8) {
        next.attempts[id] = Attempt {
            phase: Phase::Asking,
            token,
            left: self.bounds.ttl,
            renewals: match self.bounds {
                Bounds { joins: true, .. } => 2,
                Bounds { renewing, .. } => renewing.into(),
            },
            floor: if self.forgets_nothing() {
                0
            } else {
                next.highest_held()
            },
            ..Attempt::default()
        };
        for server in &mut next.servers {
            server.acquire[id] = Progress::Sent;
        }
    }

    fn grant(&self, next: &mut State, server: usize, id: usize) {
        let token = next.attempts[id].token;
        let is_last = next.last == Some(id);
        let server = &mut next.servers[server];
        server.has_last |= is_last;
        server.acquire[id] = Progress::Yes;
        server.holder = Some(id);
        server.left = self.bounds.ttl;
        if self.has(Flaw::CounterNotKept) {
            return;
        }
        let is_whole = !self.has(Flaw::BlockNotKept);
        server.counter = if is_whole {
            token + self.bounds.block - 1
        } else {
            token
        };
    }

    fn join(&self, next: &mut State, server: usize, id: usize) {
        let token = next.attempts[id].token;
        let is_last = next.last == Some(id);
        let server = &mut next.servers[server];
        server.join[id] = Progress::No;
        server.holder = Some(id);
        server.left = self.bounds.ttl;
        server.has_last |= is_last;
        let last = token + self.bounds.block - 1;
        server.counter = match self.flaw {
            Some(Flaw::JoinLowersTheCounter) => last,
            Some(Flaw::JoinBringsTheFirstToken) => server.counter.max(token),
            _ => server.counter.max(last),
        };
    }

    /// Returns the number of servers that have granted.
    ///
    /// The instant at which the client reads a single answer does not matter, so there is no step
    /// for it. A lost answer is covered by a majority that is never found.
    fn votes(&self, state: &State, id: usize) -> usize {
        let with_first = self.has(Flaw::VotesOverTwoIds) && id == 1;
        let votes = state.servers.iter().filter(|server| {
            server.acquire[id] == Progress::Yes || with_first && server.acquire[0] == Progress::Yes
        });
        votes.count()
    }

    fn tick(&self, next: &mut State) {
        for server in &mut next.servers {
            server.left = server.left.saturating_sub(1);
            if server.left == 0 {
                server.holder = None;
            }
        }
        for attempt in &mut next.attempts {
            attempt.left = attempt.left.saturating_sub(1);
            attempt.renewed_left = attempt.renewed_left.saturating_sub(1);
            let is_late = match attempt.phase {
                Phase::Asking => !self.has(Flaw::ValidFromTheAnswer),
                Phase::Holding => true,
                Phase::Idle | Phase::Over => false,
            };
            if is_late && attempt.left == 0 {
                attempt.phase = Phase::Over;
            }
        }
    }

    fn forgets_nothing(&self) -> bool {
        self.bounds.early == 0 && self.bounds.restarts == 0
    }

    /// Drops parts of the state without further effect, so that states that differ only in them are
    /// one.
    fn tidy(&self, next: &mut State) {
        if self.forgets_nothing() && next.held != 0 {
            next.held = 1 << next.highest_held();
        }
        for id in 0..ATTEMPTS {
            let attempt = &mut next.attempts[id];
            let is_over = attempt.phase == Phase::Over;
            let keeps_votes = attempt.phase == Phase::Asking
                || is_over && id == 0 && self.has(Flaw::VotesOverTwoIds);
            let awaits_renewal = attempt.phase == Phase::Holding && attempt.renewed_left > 0;
            let mut may_be_granted = false;
            for server in &mut next.servers {
                // Without a restart, counters only rise.
                let never = next.restarts == 0 && !self.is_enough(attempt.token, server.counter);
                match server.acquire[id] {
                    Progress::Yes if !keeps_votes && !server.has_connections => {
                        server.acquire[id] = Progress::No;
                    }
                    Progress::Sent if never => server.acquire[id] = Progress::No,
                    _ => {}
                }
                let is_sent = server.acquire[id] == Progress::Sent;
                let never = !is_sent && server.holder != Some(id);
                match server.renew[id] {
                    Progress::Yes if !awaits_renewal => server.renew[id] = Progress::No,
                    Progress::Sent if never => server.renew[id] = Progress::No,
                    _ => {}
                }
                if is_over && server.join[id] == Progress::Sent && attempt.token == 0 {
                    server.join[id] = Progress::No;
                }
                if is_over && server.has_connections {
                    server.forget_what_is_gone(id);
                }
                may_be_granted |= is_sent || server.join[id] == Progress::Sent;
            }
            if attempt.phase != Phase::Asking {
                attempt.floor = 0;
            }
            if is_over {
                *attempt = Attempt {
                    phase: Phase::Over,
                    token: if may_be_granted { attempt.token } else { 0 },
                    ..Attempt::default()
                };
            }
        }
        for server in &mut next.servers {
            if server.holder.is_none() {
                server.left = 0;
            }
        }
    }
}

/// Returns whether a server may lose its data: no lease is lost with it.
fn may_restart(state: &State, server: usize) -> bool {
    let others = || (0..SERVERS).filter(move |other| *other != server);
    let mut attempts = state.attempts.iter().enumerate();
    let is_known = state.last.is_none() || others().all(|other| state.servers[other].has_last);
    is_known
        && attempts.all(|(id, attempt)| match attempt.phase {
            Phase::Idle | Phase::Over => true,
            // It may count on the key here.
            Phase::Asking => state.servers[server].acquire[id] != Progress::Yes,
            Phase::Holding => {
                let counts_here = state.servers[server].renew[id] == Progress::Yes;
                let has_it = |other: usize| {
                    let other = &state.servers[other];
                    other.holder == Some(id) && other.left >= attempt.left
                };
                (attempt.renewed_left == 0 || !counts_here) && others().all(has_it)
            }
        })
}
