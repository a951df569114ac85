//! The judge of a campaign: finds the promises that a run has broken, from the times at which its
//! users held what.
//!
//! It knows no lock and no server. Times are ns of the clock that all processes share.

use std::collections::BTreeMap;

use super::{LIMIT, PERMITS, READ};

support::tests![
    two_holders_at_once_are_found,
    reader_beside_a_writer_is_found,
    permits_over_the_limit_are_found,
    older_token_is_found,
    reader_with_a_token_before_the_last_writer_is_found,
    only_one_ttl_after_a_loss_of_data_is_excused
];

/// One hold of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeldPeriod {
    pub(super) kind: String,
    pub(super) name: String,
    /// 1, or the number of permits.
    pub(super) units: u32,
    pub(super) token: u64,
    /// When the call began.
    pub(super) asked: u64,
    /// When it had returned.
    pub(super) got: u64,
    /// The last time at which its guard was certain to hold; `got` if it never was.
    pub(super) until: u64,
}

/// A period in which data was lost, and one ttl after it.
pub(super) type Excused = (u64, u64);

impl HeldPeriod {
    /// Writes a line for the parent.
    pub(super) fn line(&self) -> String {
        let Self { kind, name, .. } = self;
        let numbers = [self.token, self.asked, self.got, self.until];
        let [token, asked, got, until] = numbers;
        format!("{kind} {name} {} {token} {asked} {got} {until}", self.units)
    }

    pub(super) fn parse(line: &str) -> Option<Self> {
        let [kind, name, units, numbers @ ..] = &line.split(' ').collect::<Vec<_>>()[..] else {
            return None;
        };
        let numbers: Vec<u64> = numbers.iter().map_while(|n| n.parse().ok()).collect();
        let [token, asked, got, until] = numbers[..] else {
            return None;
        };
        Some(Self {
            kind: (*kind).to_owned(),
            name: (*name).to_owned(),
            units: units.parse().ok()?,
            token,
            asked,
            got,
            until,
        })
    }

    fn reads(&self) -> bool {
        self.kind == READ
    }

    /// Returns the periods in which it certainly held, without those that are excused.
    fn periods(&self, excused: &[Excused]) -> Vec<(u64, u64)> {
        let (mut from, mut periods) = (self.got, Vec::new());
        for (begin, end) in excused {
            if *begin > from {
                periods.push((from, self.until.min(*begin)));
            }
            from = from.max(*end);
        }
        periods.push((from, self.until));
        periods.retain(|(from, to)| from < to);
        periods
    }

    fn is_judged(&self, excused: &[Excused]) -> bool {
        self.until > self.got && !is_in(self.got, excused)
    }
}

fn is_in(at: u64, excused: &[Excused]) -> bool {
    excused
        .iter()
        .any(|(begin, end)| (*begin..*end).contains(&at))
}

/// Returns a sentence for each promise that the holds break. The excused periods are in order.
pub(super) fn violations(holds: &[HeldPeriod], excused: &[Excused]) -> Vec<String> {
    let mut names = BTreeMap::<_, Vec<&HeldPeriod>>::new();
    for hold in holds {
        let of_permits = hold.kind == PERMITS;
        names
            .entry((of_permits, &hold.name))
            .or_default()
            .push(hold);
    }
    let of_one = names.into_iter().flat_map(|((of_permits, _), holds)| {
        if of_permits {
            return over_the_limit(&holds, excused);
        }
        let mut found = not_alone(&holds, excused);
        found.extend(older_tokens(&holds, excused));
        found
    });
    of_one.collect()
}

/// Finds holds of a lock that overlap, of which at least one does not read.
fn not_alone(holds: &[&HeldPeriod], excused: &[Excused]) -> Vec<String> {
    let of = |hold: &&'_ HeldPeriod| hold.periods(excused);
    let periods = holds.iter().enumerate();
    let periods = periods.flat_map(|(n, hold)| of(hold).into_iter().map(move |it| (it, n)));
    let mut periods: Vec<((u64, u64), usize)> = periods.collect();
    periods.sort_unstable();
    // The ends of the last hold so far, and of the last that does not read.
    let (mut last, mut last_alone) = ((0, 0), (0, 0));
    let mut found = Vec::new();
    for ((from, to), n) in periods {
        let hold = holds[n];
        let (end, other) = if hold.reads() { last_alone } else { last };
        if end > from {
            found.push(format!("held at once: {:?} and {hold:?}", holds[other]));
        }
        last = last.max((to, n));
        if !hold.reads() {
            last_alone = last_alone.max((to, n));
        }
    }
    found
}

/// Finds permits that brought those in use over the limit.
fn over_the_limit(holds: &[&HeldPeriod], excused: &[Excused]) -> Vec<String> {
    let mut steps = Vec::new();
    for hold in holds {
        for (from, to) in hold.periods(excused) {
            steps.push((from, i64::from(hold.units)));
            steps.push((to, -i64::from(hold.units)));
        }
    }
    // At the same instant, permits come back before others are taken.
    steps.sort_unstable();
    let (mut used, mut found) = (0, Vec::new());
    for (at, step) in steps {
        used += step;
        if step > 0 && used > i64::from(LIMIT) {
            let of = holds.iter().filter(|it| (it.got..it.until).contains(&at));
            let of: Vec<_> = of.collect();
            found.push(format!("{used} permits of {LIMIT} in use: {of:?}"));
        }
    }
    found
}

/// Finds holds whose token is not newer than that of a hold before: a resource that remembers the
/// newest would reject them. A reader may share the token of a writer before it.
///
/// A hold is before another whose call returned later with a lease that certainly lasted until
/// then. The server holds one of the two leases at a time, so it granted the later one later,
/// whichever call began first.
fn older_tokens(holds: &[&HeldPeriod], excused: &[Excused]) -> Vec<String> {
    let mut by_got = holds.to_vec();
    by_got.sort_by_key(|hold| hold.got);
    let mut earlier = by_got.clone().into_iter().peekable();
    let (mut newest, mut newest_written) = (None::<&HeldPeriod>, None::<&HeldPeriod>);
    let mut found = Vec::new();
    for hold in by_got {
        while let Some(before) = earlier.next_if(|before| before.got < hold.got) {
            newest = newest.into_iter().chain([before]).max_by_key(|it| it.token);
            // A server that loses data may lose the last writer's token with it.
            if !before.reads() && !is_in(before.got, excused) {
                let written = newest_written.into_iter().chain([before]);
                newest_written = written.max_by_key(|it| it.token);
            }
        }
        let is_older = |before: &&HeldPeriod| {
            if hold.reads() {
                hold.token < before.token
            } else {
                hold.token <= before.token
            }
        };
        let before = if hold.reads() { newest_written } else { newest };
        if let Some(before) = before.filter(is_older).filter(|_| hold.is_judged(excused)) {
            found.push(format!("older token: {hold:?} after {before:?}"));
        }
    }
    found
}

fn hold(kind: &str, token: u64, [asked, got, until]: [u64; 3]) -> HeldPeriod {
    HeldPeriod {
        kind: kind.to_owned(),
        name: "a".to_owned(),
        units: 2,
        token,
        asked,
        got,
        until,
    }
}

/// Asserts that the holds break promises `count` times, and that each report begins with `what`.
#[track_caller]
fn assert_found(holds: &[HeldPeriod], excused: &[Excused], count: usize, what: &str) {
    let lines = holds.iter().map(|hold| HeldPeriod::parse(&hold.line()));
    assert_eq!(lines.collect::<Option<Vec<_>>>().as_deref(), Some(holds));
    let found = violations(holds, excused);
    assert_eq!(found.len(), count, "{found:?}");
    assert!(found.iter().all(|it| it.starts_with(what)), "{found:?}");
}

fn two_holders_at_once_are_found() {
    let first = hold("mutex", 1, [0, 10, 20]);
    for (got, count) in [(19, 1), (20, 0), (21, 0)] {
        let second = hold("set", 2, [got, got, 30]);
        assert_found(&[second, first.clone()], &[], count, "held at once");
    }
    // A call that lost the lock while it was granted never held it.
    let lost = hold("fair", 2, [12, 15, 15]);
    assert_found(&[first, lost], &[], 0, "");
}

fn reader_beside_a_writer_is_found() {
    let readers = [hold(READ, 1, [0, 10, 40]), hold(READ, 1, [0, 12, 20])];
    assert_found(&readers, &[], 0, "");
    let [long, short] = readers;
    let writer = hold("write", 2, [13, 30, 50]);
    assert_found(&[long, short, writer], &[], 1, "held at once");
}

fn permits_over_the_limit_are_found() {
    let first = hold(PERMITS, 1, [0, 10, 20]);
    for (got, count) in [(19, 1), (20, 0)] {
        let second = hold(PERMITS, 2, [11, got, 30]);
        assert_found(&[first.clone(), second], &[], count, "4 permits of 3");
    }
    let lock = hold("mutex", 3, [0, 10, 20]);
    assert_found(&[first, lock], &[], 0, "");
}

fn older_token_is_found() {
    let first = hold("mutex", 7, [0, 10, 20]);
    for (token, count) in [(6, 1), (7, 1), (8, 0)] {
        let second = hold("write", token, [20, 30, 40]);
        assert_found(&[first.clone(), second], &[], count, "older token");
    }
    // The first lease had ended before the second was granted, whenever its call began.
    let second = hold("write", 6, [9, 30, 40]);
    assert_found(&[first.clone(), second], &[], 1, "older token");
    // A lease that has ended by the time when its call returns may be older than the other.
    let ended = hold("write", 6, [9, 30, 30]);
    assert_found(&[first, ended], &[], 0, "");
}

fn reader_with_a_token_before_the_last_writer_is_found() {
    let writer = hold("write", 7, [0, 10, 20]);
    for (token, count) in [(6, 1), (7, 0)] {
        let reader = hold(READ, token, [20, 30, 40]);
        assert_found(&[writer.clone(), reader], &[], count, "older token");
    }
}

fn only_one_ttl_after_a_loss_of_data_is_excused() {
    let holds = [hold("mutex", 8, [0, 10, 60]), hold("fair", 9, [20, 30, 70])];
    for (excused, count) in [((30, 60), 0), ((31, 60), 1), ((30, 59), 1)] {
        assert_found(&holds, &[(0, 5), excused], count, "held at once");
    }
    let permits = holds.map(|it| hold(PERMITS, it.token, [it.asked, it.got, it.until]));
    for (excused, count) in [((30, 60), 0), ((31, 60), 1), ((30, 59), 1)] {
        assert_found(&permits, &[(0, 5), excused], count, "4 permits of 3");
    }
    let tokens = [
        hold("mutex", 9, [0, 10, 20]),
        hold("mutex", 8, [21, 30, 40]),
    ];
    assert_found(&tokens, &[(25, 31)], 0, "");
    assert_found(&tokens, &[(12, 29)], 1, "older token");
}
