//! A lease whose commands go unanswered: an exhaustive search for a holder without its key, and for a key left behind.
//!
//! One lease on one server. In every state whatever may happen next is tried: the client renews, extends, gives up on an
//! answer, hands the lease on or releases it; the server runs any command that was sent; commands and answers are lost;
//! time passes. Nothing is bound to happen, so a command may run at any time or never, and an answer may come at any time.
//!
//! Time is ticks of one clock. A key lasts from when the server runs a command, validity from when the client sent it, and
//! both end with the same tick: the tightest case. A command that was sent before the release runs within the longest
//! expiry that was asked for, or never: without a limit to delays no number of repetitions would do. An acquire and its undo
//! are not in the model.

use std::collections::{HashMap, VecDeque};

/// What the lock was set to, in ticks.
const TTL: u8 = 3;
const SHORTER: u8 = 1;
const LONGER: u8 = 5;

/// How many renewals and extends are sent.
const CALLS: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Command {
    Renew(u8),
    Extend(u8),
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Surely held for so many ticks; lost at zero.
    Held(u8),
    /// The release is repeated for so many ticks more, and was first sent so many ticks ago.
    Releasing(u8, u8),
    /// Nobody repeats the release any more.
    Over,
}

/// A renewal or extend whose answer the client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Asking {
    call: u8,
    command: Command,
    /// How long the lease is held from now on if the command has run.
    validity: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// How long the key lasts on the server; zero once it is gone.
    key: u8,
    /// Sent and not run, each with its call's number.
    net: Vec<(u8, Command)>,
    /// Calls that have run, and whether they found the key; their answers are on the way.
    answers: Vec<(u8, bool)>,
    phase: Phase,
    was_handed_on: bool,
    ttl: u8,
    at_most: u8,
    longest: u8,
    asking: Option<Asking>,
    calls: u8,
}

/// A mistake on purpose, which the search must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    /// An extend without an answer does not limit later renewals.
    ShorterIsForgotten,
    /// The release is repeated for the ttl, or for the longest expiry that was asked for.
    RepeatedForTheTtl,
    RepeatedForTheLongest,
    /// The lease is handed on whatever Redis may have.
    HandedOnAnyway,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Promise {
    /// A client that says it holds the lock has the key.
    HeldIsTrue,
    /// Once the release is repeated no more, the key is gone.
    NothingIsLeft,
    /// The holder that a lease was handed to has a key of the ttl that it asked for.
    HandedOnAsAskedFor,
}

impl Promise {
    const ALL: [Self; 3] = [
        Self::HeldIsTrue,
        Self::NothingIsLeft,
        Self::HandedOnAsAskedFor,
    ];

    fn is_kept(self, state: &State) -> bool {
        let is_held = matches!(state.phase, Phase::Held(1..));
        match self {
            Self::HeldIsTrue => !is_held || state.key > 0,
            Self::NothingIsLeft => state.phase != Phase::Over || state.key == 0,
            Self::HandedOnAsAskedFor => !(is_held && state.was_handed_on) || state.key <= TTL,
        }
    }
}

impl State {
    const START: Self = Self {
        key: TTL,
        net: Vec::new(),
        answers: Vec::new(),
        phase: Phase::Held(TTL),
        was_handed_on: false,
        ttl: TTL,
        at_most: u8::MAX,
        longest: TTL,
        asking: None,
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
        if matches!(next.phase, Phase::Releasing(_, ago) if ago > next.longest) {
            next.net.retain(|sent| sent.1 == Command::Release);
        }
        if let Some(asking) = &mut next.asking {
            asking.validity = asking.validity.saturating_sub(1);
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
            Command::Extend(ttl) => ttl,
            Command::Release => 0,
        };
        if next.asking.is_some_and(|asking| asking.call == call) {
            next.answers.push((call, is_found));
        }
        next
    }

    /// The client reads the answer to what it asks.
    fn read(&self, found: bool) -> Option<Self> {
        let mut next = self.clone();
        next.answers.clear();
        let asking = next.asking.take()?;
        if let (Command::Extend(ttl), true) = (asking.command, found) {
            next.ttl = ttl;
        }
        if let Phase::Held(left @ 1..) = next.phase {
            next.phase = Phase::Held(match found {
                true => left.max(asking.validity),
                false => 0,
            });
        }
        Some(next)
    }

    /// The client waits no longer for an answer.
    fn give_up(&self, flaw: Option<Flaw>) -> Option<Self> {
        let mut next = self.clone();
        next.answers.clear();
        let asking = next.asking.take()?;
        if let Command::Extend(ttl) = asking.command
            && flaw != Some(Flaw::ShorterIsForgotten)
        {
            next.at_most = next.at_most.min(ttl);
        }
        Some(next)
    }

    fn ask(&self, command: Command) -> Option<Self> {
        let mut next = self.clone();
        let Phase::Held(left @ 1..) = next.phase else {
            return None;
        };
        if next.asking.is_some() || next.calls == CALLS {
            return None;
        }
        let ttl = match command {
            Command::Renew(ttl) => ttl,
            Command::Extend(ttl) => {
                next.phase = Phase::Held(left.min(ttl));
                next.longest = next.longest.max(ttl);
                ttl
            }
            Command::Release => return None,
        };
        next.asking = Some(Asking {
            call: next.calls,
            command,
            validity: ttl.min(next.at_most),
        });
        next.send(next.calls, command);
        next.calls += 1;
        Some(next)
    }

    fn send(&mut self, call: u8, command: Command) {
        self.net.push((call, command));
        self.net.sort_unstable();
    }

    fn hand_on(&self, flaw: Option<Flaw>) -> Option<Self> {
        let fits = self.longest <= TTL || flaw == Some(Flaw::HandedOnAnyway);
        let is_extending = matches!(
            self.asking,
            Some(Asking {
                command: Command::Extend(_),
                ..
            })
        );
        let is_held = matches!(self.phase, Phase::Held(1..));
        (is_held && self.ttl == TTL && fits && !is_extending && !self.was_handed_on).then(|| {
            let mut next = self.clone();
            next.was_handed_on = true;
            next
        })
    }

    /// The holder lets go, of what it holds or has lost; or the release is sent once more.
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
        next.asking = None;
        next.answers.clear();
        if !next.net.iter().any(|sent| sent.1 == Command::Release) {
            next.send(u8::MAX, Command::Release);
        }
        Some(next)
    }

    fn each_next(&self, flaw: Option<Flaw>) -> Vec<(String, Self)> {
        if self.key == 0 && !matches!(self.phase, Phase::Held(1..)) {
            // No command of this lease makes the key again.
            return Vec::new();
        }
        let mut all = vec![("a tick".to_owned(), self.tick())];
        for n in 0..self.net.len() {
            all.push((format!("runs {:?}", self.net[n]), self.run(n)));
            let mut lost = self.clone();
            all.push((format!("loses {:?}", lost.net.remove(n)), lost));
        }
        let mut may = |what: &str, next: Option<Self>| {
            all.extend(next.map(|next| (what.to_owned(), next)));
        };
        for (_, found) in &self.answers {
            may("reads the answer", self.read(*found));
        }
        may("gives up on the answer", self.give_up(flaw));
        may("renews", self.ask(Command::Renew(self.ttl)));
        if !self.was_handed_on {
            may("shortens", self.ask(Command::Extend(SHORTER)));
            may("lengthens", self.ask(Command::Extend(LONGER)));
        }
        may("hands on", self.hand_on(flaw));
        may("releases", self.release(flaw));
        all
    }
}

/// How many states there are, or the shortest way to a promise that is broken.
fn search(flaw: Option<Flaw>) -> Result<usize, (Promise, Vec<String>)> {
    let mut before: HashMap<State, Option<(State, String)>> = HashMap::new();
    before.insert(State::START, None);
    let mut open = VecDeque::from([State::START]);
    while let Some(state) = open.pop_front() {
        if let Some(broken) = Promise::ALL.iter().find(|promise| !promise.is_kept(&state)) {
            let mut way = vec![format!("{state:?}")];
            let mut at = &before[&state];
            while let Some((earlier, step)) = at {
                way.push(step.clone());
                at = &before[earlier];
            }
            way.reverse();
            return Err((*broken, way));
        }
        for (step, next) in state.each_next(flaw) {
            if !before.contains_key(&next) {
                before.insert(next.clone(), Some((state.clone(), step)));
                open.push_back(next);
            }
        }
    }
    Ok(before.len())
}

#[track_caller]
fn is_seen(flaw: Flaw, promise: Promise) {
    let (broken, way) = search(Some(flaw)).expect_err("the flaw breaks a promise");
    println!("{way:#?}");
    assert_eq!(broken, promise);
}

#[test]
fn held_is_true_and_nothing_is_left_whatever_goes_unanswered() {
    match search(None) {
        Ok(states) => assert!(states > 10_000, "{states} states show little"),
        Err((promise, way)) => panic!("{promise:?} is broken by {way:#?}"),
    }
}

#[test]
fn an_unanswered_extend_that_shortens_must_limit_later_renewals() {
    is_seen(Flaw::ShorterIsForgotten, Promise::HeldIsTrue);
}

#[test]
fn a_release_must_be_repeated_for_longer_than_the_ttl() {
    is_seen(Flaw::RepeatedForTheTtl, Promise::NothingIsLeft);
}

/// The extend may run in the key's last moment, after the release began.
#[test]
fn a_release_must_be_repeated_for_longer_than_the_longest_expiry() {
    is_seen(Flaw::RepeatedForTheLongest, Promise::NothingIsLeft);
}

#[test]
fn a_key_that_may_outlast_the_ttl_must_not_be_handed_on() {
    is_seen(Flaw::HandedOnAnyway, Promise::HandedOnAsAskedFor);
}
