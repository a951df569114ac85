//! A model of a lease with unanswered commands, searched exhaustively for broken promises.
//!
//! The model has one lease on one server. From every state, the search takes every possible step:
//! the client renews, sets a ttl, stops waiting for a reply, hands the lease off or releases it;
//! the server runs any command that was sent; a command is lost; time passes. No step is forced, so
//! a command or a reply may arrive late or never.
//!
//! Time is counted in ticks of one clock. A key's expiry counts from when the server runs a
//! command, and validity counts from when the client sends it. The margin that is taken off the
//! ttl for clocks that run at other rates is not in the model: if a command runs in the tick in
//! which it was sent, both end with the same tick. The simulation has such clocks
//! (`src/sim/plan.rs`).
//!
//! A command that the client no longer waits for runs within the longest requested expiry, or
//! never. That time counts from the release, or from when the client stopped waiting. Without such
//! a bound, no number of repeated releases would suffice. An acquire and its undo are not in the
//! model.

use models::{Counterexample, Model, count_states};

/// The ttl, and the changed ttls, in ticks.
const TTL: u8 = 3;
const SHORTER: u8 = 1;
const LONGER: u8 = 5;

/// The largest number of renewals and changes of ttl.
const CALLS: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Command {
    Renew(u8),
    SetTtl(u8),
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Certainly held for this many ticks; lost at zero.
    Held(u8),
    /// The first number: for how many more ticks the release is repeated. The second: how many
    /// ticks ago it was first sent.
    Releasing(u8, u8),
    /// The release is no longer repeated.
    Over,
}

/// A renewal or change of ttl whose reply the client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Request {
    call: u8,
    command: Command,
    /// The remaining validity of the lease if the command has run.
    validity: u8,
    /// No command sent before can still run.
    is_alone: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// The key's remaining time on the server; zero once it is gone.
    key: u8,
    /// Commands sent but not run, with their calls' numbers.
    net: Vec<(u8, Command)>,
    /// Replies on their way: the call's number, and whether the command found the key.
    replies: Vec<(u8, bool)>,
    phase: Phase,
    was_handed_off: bool,
    ttl: u8,
    /// The shortest ttl that was set without a reply: no later request counts for longer.
    renewal_limit: u8,
    /// The longest expiry that a command has set or may still set.
    longest: u8,
    /// A command that the client stopped waiting for may still run for this many ticks.
    unsettled: u8,
    request: Option<Request>,
    calls: u8,
}

/// A step, and the command that runs or is lost in it, with the number of its call.
type Step = (&'static str, Option<(u8, Command)>);

/// A deliberate flaw, which the search must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    /// An unanswered change of ttl does not limit later renewals.
    ShorterIsForgotten,
    /// The release is repeated for the ttl only.
    RepeatedForTheTtl,
    /// The release is repeated for the longest requested expiry only.
    RepeatedForTheLongest,
    /// The lease is handed off although its key may outlast the ttl.
    HandedOffAnyway,
    /// An answered change of ttl lowers the longest expiry although an earlier command may run
    /// after it.
    LongestFallsAtOnce,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Promise {
    /// The key exists while the client considers the lock held.
    HeldIsTrue,
    /// The key is gone when the release is no longer repeated.
    NothingIsLeft,
    /// The key of a lease that was handed off lasts no longer than the new holder's ttl.
    HandedOffKeyFitsTtl,
}

impl Promise {
    const ALL: [Self; 3] = [
        Self::HeldIsTrue,
        Self::NothingIsLeft,
        Self::HandedOffKeyFitsTtl,
    ];

    fn is_kept(self, state: &State) -> bool {
        let is_held = matches!(state.phase, Phase::Held(1..));
        match self {
            Self::HeldIsTrue => !is_held || state.key > 0,
            Self::NothingIsLeft => state.phase != Phase::Over || state.key == 0,
            Self::HandedOffKeyFitsTtl => !(is_held && state.was_handed_off) || state.key <= TTL,
        }
    }
}

impl State {
    const START: Self = Self {
        key: TTL,
        net: Vec::new(),
        replies: Vec::new(),
        phase: Phase::Held(TTL),
        was_handed_off: false,
        ttl: TTL,
        renewal_limit: u8::MAX,
        longest: TTL,
        unsettled: 0,
        request: None,
        calls: 0,
    };

    fn tick(&self) -> Self {
        let mut next = self.clone();
        next.key = next.key.saturating_sub(1);
        next.phase = match next.phase {
            Phase::Held(left) => Phase::Held(left.saturating_sub(1)),
            Phase::Releasing(0 | 1, _) | Phase::Over => Phase::Over,
            Phase::Releasing(left, ago) => Phase::Releasing(left - 1, ago + 1),
        };
        // Commands sent before the release can no longer run.
        if matches!(next.phase, Phase::Releasing(_, ago) if ago > next.longest) {
            next.net.retain(|sent| sent.1 == Command::Release);
        }
        // Commands that the client stopped waiting for can no longer run.
        if next.unsettled == 1 && matches!(next.phase, Phase::Held(_)) {
            let request = next.request.map(|request| request.call);
            next.net.retain(|sent| Some(sent.0) == request);
        }
        next.unsettled = next.unsettled.saturating_sub(1);
        if let Some(request) = &mut next.request {
            request.validity = request.validity.saturating_sub(1);
        }
        next
    }

    /// The server runs the n-th of the commands that were sent.
    fn run(&self, n: usize) -> Self {
        let mut next = self.clone();
        let (call, command) = next.net.remove(n);
        let is_found = next.key > 0;
        next.key = match command {
            _ if !is_found => 0,
            Command::Renew(ttl) => next.key.max(ttl),
            Command::SetTtl(ttl) => ttl,
            Command::Release => 0,
        };
        if next.request.is_some_and(|request| request.call == call) {
            next.replies.push((call, is_found));
        }
        next
    }

    /// The client reads the reply to its request.
    fn read(&self, found: bool, flaw: Option<Flaw>) -> Option<Self> {
        let mut next = self.clone();
        next.replies.clear();
        let request = next.request.take()?;
        if let (Command::SetTtl(ttl), true) = (request.command, found) {
            next.ttl = ttl;
            if request.is_alone || flaw == Some(Flaw::LongestFallsAtOnce) {
                next.longest = ttl;
            }
        }
        if let Phase::Held(left @ 1..) = next.phase {
            next.phase = Phase::Held(if found { left.max(request.validity) } else { 0 });
        }
        Some(next)
    }

    /// The client stops waiting for the reply.
    fn stop_waiting(&self, flaw: Option<Flaw>) -> Option<Self> {
        let mut next = self.clone();
        next.replies.clear();
        let request = next.request.take()?;
        if let Command::SetTtl(ttl) = request.command
            && flaw != Some(Flaw::ShorterIsForgotten)
        {
            next.renewal_limit = next.renewal_limit.min(ttl);
        }
        next.unsettled = next.unsettled.max(next.longest);
        Some(next)
    }

    fn send_request(&self, command: Command) -> Option<Self> {
        let mut next = self.clone();
        let Phase::Held(left @ 1..) = next.phase else {
            return None;
        };
        if next.request.is_some() || next.calls == CALLS {
            return None;
        }
        let ttl = match command {
            Command::Renew(ttl) => ttl,
            Command::SetTtl(ttl) => {
                next.phase = Phase::Held(left.min(ttl));
                next.longest = next.longest.max(ttl);
                ttl
            }
            Command::Release => return None,
        };
        next.request = Some(Request {
            call: next.calls,
            command,
            validity: ttl.min(next.renewal_limit),
            is_alone: next.unsettled == 0,
        });
        next.send(next.calls, command);
        next.calls += 1;
        Some(next)
    }

    fn send(&mut self, call: u8, command: Command) {
        self.net.push((call, command));
        self.net.sort_unstable();
    }

    fn hand_off(&self, flaw: Option<Flaw>) -> Option<Self> {
        let fits = self.longest <= TTL || flaw == Some(Flaw::HandedOffAnyway);
        let is_setting_ttl = matches!(
            self.request,
            Some(Request {
                command: Command::SetTtl(_),
                ..
            })
        );
        let is_held = matches!(self.phase, Phase::Held(1..));
        (is_held && self.ttl == TTL && fits && !is_setting_ttl && !self.was_handed_off).then(|| {
            let mut next = self.clone();
            next.was_handed_off = true;
            next
        })
    }

    /// The holder releases a held or lost lease, or the release is repeated.
    fn release(&self, flaw: Option<Flaw>) -> Option<Self> {
        let mut next = self.clone();
        next.phase = match next.phase {
            Phase::Held(_) => {
                let left = match flaw {
                    Some(Flaw::RepeatedForTheTtl) => next.ttl,
                    Some(Flaw::RepeatedForTheLongest) => next.longest,
                    _ => 2 * next.longest,
                };
                Phase::Releasing(left, 0)
            }
            releasing @ Phase::Releasing(..) => releasing,
            Phase::Over => return None,
        };
        next.request = None;
        next.replies.clear();
        if !next.net.iter().any(|sent| sent.1 == Command::Release) {
            next.send(u8::MAX, Command::Release);
        }
        Some(next)
    }

    fn each_next(&self, flaw: Option<Flaw>) -> Vec<(Step, Self)> {
        if self.key == 0 && !matches!(self.phase, Phase::Held(1..)) {
            // No command of this lease creates the key again.
            return Vec::new();
        }
        let mut all = vec![(("a tick", None), self.tick())];
        for n in 0..self.net.len() {
            let command = Some(self.net[n]);
            all.push((("runs", command), self.run(n)));
            let mut lost = self.clone();
            lost.net.remove(n);
            all.push((("loses", command), lost));
        }
        let mut may = |name, next: Option<Self>| {
            all.extend(next.map(|next| ((name, None), next)));
        };
        for (_, found) in &self.replies {
            may("reads the reply", self.read(*found, flaw));
        }
        may("stops waiting for the reply", self.stop_waiting(flaw));
        may("renews", self.send_request(Command::Renew(self.ttl)));
        if !self.was_handed_off {
            may("shortens", self.send_request(Command::SetTtl(SHORTER)));
            may("lengthens", self.send_request(Command::SetTtl(LONGER)));
            may(
                "sets the ttl again",
                self.send_request(Command::SetTtl(TTL)),
            );
        }
        may("hands off", self.hand_off(flaw));
        may("releases", self.release(flaw));
        all
    }
}

/// The protocol, with a flaw or without one.
struct Protocol(Option<Flaw>);

impl Model for Protocol {
    type State = State;
    type Step = Step;
    type Broken = Promise;

    const FEWEST: usize = 10_000;

    fn each_next(&self, state: &State, mut take: impl FnMut(Step, State)) {
        for (step, next) in state.each_next(self.0) {
            take(step, next);
        }
    }

    fn broken(&self, state: &State) -> Option<Promise> {
        Promise::ALL
            .into_iter()
            .find(|promise| !promise.is_kept(state))
    }
}

/// Returns the number of states; or a broken promise, and the shortest sequence of steps to it.
fn search(flaw: Option<Flaw>) -> Result<usize, Counterexample<Protocol>> {
    count_states(&Protocol(flaw), State::START)
}

#[track_caller]
fn assert_found(flaw: Flaw, promise: Promise) {
    models::assert_found(search(Some(flaw)).map(drop), promise);
}

#[test]
fn protocol_without_a_flaw_keeps_every_promise() {
    if let Err((promise, steps)) = search(None) {
        panic!("{promise:?} is broken by {steps:#?}");
    }
}

#[test]
fn unanswered_shortening_set_ttl_must_limit_later_renewals() {
    assert_found(Flaw::ShorterIsForgotten, Promise::HeldIsTrue);
}

#[test]
fn release_must_be_repeated_for_longer_than_the_ttl() {
    assert_found(Flaw::RepeatedForTheTtl, Promise::NothingIsLeft);
}

/// A change of ttl may run just before the key expires, after the first release was sent.
#[test]
fn release_must_be_repeated_for_longer_than_the_longest_expiry() {
    assert_found(Flaw::RepeatedForTheLongest, Promise::NothingIsLeft);
}

#[test]
fn key_that_may_outlast_the_ttl_must_not_be_handed_off() {
    assert_found(Flaw::HandedOffAnyway, Promise::HandedOffKeyFitsTtl);
}

#[test]
fn longest_expiry_must_not_fall_while_a_longer_set_ttl_may_run() {
    assert_found(Flaw::LongestFallsAtOnce, Promise::HandedOffKeyFitsTtl);
}
