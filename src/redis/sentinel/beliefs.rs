//! What a client believes about the master, by what the sentinels have said so far. No I/O.

use std::time::Duration;

use crate::clock::Instant;
use crate::redis::members::{Choice, Claim, Known, choose, majority_epoch};
use crate::url::HostPort;

/// How long an address that was tried in vain is tried only after all others.
const FAILED_FOR: Duration = Duration::from_secs(10);

/// How long most sentinels must have named lower epochs than before, until the client accepts that
/// they were set up again. A failover reaches all sentinels much sooner.
const RESET_AFTER: Duration = Duration::from_secs(10);

/// How long a sentinel must have disagreed before this is reported. After a failover some sentinels
/// need this long to learn of it.
const DISSENT_AFTER: Duration = Duration::from_secs(3);

/// The time between two questions to all sentinels.
const ASK_EVERY: Duration = Duration::from_secs(10);

/// The time between two questions while the sentinels disagree, or too few of them answer.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(2);

/// How long an answer counts that came too late for its question: until the next question, which it
/// would miss again.
const LATE_FOR: Duration = Duration::from_secs(12);

/// What one sentinel says about the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) address: HostPort,
    pub(crate) epoch: Option<u64>,
    /// The sentinel's own id. `None` if the user may not ask for it.
    pub(crate) id: Option<Vec<u8>>,
}

/// A sentinel that names another master.
struct Dissent {
    address: HostPort,
    since: Instant,
    is_reported: bool,
}

pub(crate) struct Beliefs {
    known: Option<Known<HostPort>>,
    /// The highest epoch that more than half of the sentinels have named.
    floor: Option<u64>,
    /// Since when most sentinels have named lower epochs only.
    lower_since: Option<Instant>,
    /// The addresses that were tried in vain, and when.
    failed: Vec<(HostPort, Instant)>,
    /// The last id of the sentinel behind each configured name.
    ids: Vec<Option<Vec<u8>>>,
    dissents: Vec<Option<Dissent>>,
    /// The last answer of the sentinel behind each configured name, and when it came.
    last: Vec<Option<(Report, Instant)>>,
    /// When all sentinels must be asked again.
    ask_at: Instant,
    /// They must be asked at once: what was asked last may be out of date.
    must_ask: bool,
    /// How many times another address was taken, or one that did not serve served again.
    pub(crate) changes: u64,
}

impl Beliefs {
    /// Returns the beliefs before anything is known, with this number of configured names.
    pub(crate) fn none(names: usize) -> Self {
        Self {
            known: None,
            floor: None,
            lower_since: None,
            failed: Vec::new(),
            ids: vec![None; names],
            dissents: (0..names).map(|_| None).collect(),
            last: vec![None; names],
            ask_at: Instant::START,
            must_ask: false,
            changes: 0,
        }
    }

    pub(crate) fn known(&self) -> Option<&Known<HostPort>> {
        self.known.as_ref()
    }

    /// Returns the known address if it serves, as far as is known.
    pub(crate) fn serving(&self) -> Option<&HostPort> {
        let known = self.known.as_ref().filter(|known| known.serves)?;
        Some(&known.address)
    }

    /// Returns the known address, whether it serves or not, unless most sentinels have left it.
    pub(crate) fn not_replaced(&self) -> Option<&HostPort> {
        let known = self.known.as_ref();
        let known = known.filter(|known| known.serves || known.epoch >= self.floor)?;
        Some(&known.address)
    }

    /// Records an answer; returns whether it is another one than before. It may be too late for its
    /// question, so all are then asked again at once.
    pub(crate) fn heard(&mut self, name: usize, report: &Report, now: Instant) -> bool {
        let Some(last) = self.last.get_mut(name) else {
            return false;
        };
        let is_news = last.as_ref().is_none_or(|(last, _)| last != report);
        self.must_ask |= is_news;
        *last = Some((report.clone(), now));
        is_news
    }

    /// Adds the last answers of the sentinels that have not answered in time, by name. A sentinel
    /// that is far away may be late for every question.
    pub(crate) fn with_late(
        &self,
        mut reports: Vec<(usize, Report)>,
        now: Instant,
    ) -> Vec<(usize, Report)> {
        for (name, last) in self.last.iter().enumerate() {
            if let Some((report, at)) = last
                && at.until(now) < LATE_FOR
                && reports.iter().all(|(other, _)| *other != name)
            {
                reports.push((name, report.clone()));
            }
        }
        reports.sort_by_key(|(name, _)| *name);
        reports
    }

    /// Decides by the reports of the sentinels, each with the number of its name, what to do at
    /// `now`.
    pub(crate) fn weigh(&mut self, reports: &[(usize, Report)], now: Instant) -> Choice<HostPort> {
        for (name, report) in reports {
            if let Some(id) = self.ids.get_mut(*name) {
                id.clone_from(&report.id);
            }
        }
        let claims = self.claims(reports);
        let members = (0..self.ids.len()).filter(|name| self.member(*name) == *name);
        let members = members.count();
        self.note_epochs(&claims, members, now);
        self.failed.retain(|(_, at)| at.until(now) < FAILED_FOR);
        let has_failed = |claim: &Claim<HostPort>| {
            self.failed
                .iter()
                .any(|(failed, _)| *failed == claim.address)
        };
        let known = self.known.as_ref();
        let choice = choose(&claims, members, known, self.floor, has_failed);
        let believed = choice.candidates.first().or_else(|| self.serving());
        let agreeing = claims
            .iter()
            .filter(|claim| Some(&claim.address) == believed);
        let agreeing = agreeing.count();
        let is_odd = agreeing < claims.len() || agreeing * 2 <= members;
        self.ask_at = now.after(if is_odd { ASK_AGAIN_AFTER } else { ASK_EVERY });
        choice
    }

    /// Returns the claims, one for each sentinel, although several names may lead to it.
    fn claims(&self, reports: &[(usize, Report)]) -> Vec<Claim<HostPort>> {
        let mut claims: Vec<Claim<HostPort>> = Vec::new();
        for (name, report) in reports {
            let claim = Claim {
                member: self.member(*name),
                address: report.address.clone(),
                epoch: report.epoch,
            };
            match claims.iter_mut().find(|other| other.member == claim.member) {
                Some(other) if other.epoch < claim.epoch => *other = claim,
                Some(_) => {}
                None => claims.push(claim),
            }
        }
        claims
    }

    /// Returns the first name of the sentinel behind this one.
    fn member(&self, name: usize) -> usize {
        let id = self.ids.get(name).and_then(Option::as_ref);
        let first = id.and_then(|id| self.ids.iter().position(|other| other.as_ref() == Some(id)));
        first.unwrap_or(name)
    }

    /// Records the epochs that the sentinels name.
    fn note_epochs(&mut self, claims: &[Claim<HostPort>], members: usize, now: Instant) {
        let known_epoch = self.known.as_ref().and_then(|known| known.epoch);
        let highest = self.floor.max(known_epoch);
        let is_lower = |claim: &Claim<_>| claim.epoch.is_some() && claim.epoch < highest;
        if !claims.iter().all(is_lower) {
            self.lower_since = None;
        } else if claims.len() * 2 > members {
            let since = *self.lower_since.get_or_insert(now);
            if since.until(now) >= RESET_AFTER {
                // The sentinels were set up again, and count from zero.
                self.lower_since = None;
                self.floor = None;
                if let Some(known) = &mut self.known {
                    known.epoch = None;
                }
            }
        }
        self.floor = self.floor.max(majority_epoch(claims, members));
        if let Some(known) = &mut self.known {
            let own = claims.iter().filter(|claim| claim.address == known.address);
            known.epoch = own.map(|claim| claim.epoch).fold(known.epoch, Option::max);
        }
    }

    /// Records that the server at `address` answered as a master, or, with `serves` false, that
    /// most sentinels name it although it did not. Returns whether the master has moved.
    pub(crate) fn take(&mut self, address: &HostPort, epoch: Option<u64>, serves: bool) -> bool {
        if serves {
            self.failed.retain(|(failed, _)| failed != address);
        }
        if let Some(known) = self
            .known
            .as_mut()
            .filter(|known| known.address == *address)
        {
            self.changes += u64::from(serves && !known.serves);
            known.serves = serves;
            known.epoch = known.epoch.max(epoch);
            return false;
        }
        self.changes += 1;
        let has_moved = self.known.is_some();
        self.known = Some(Known {
            address: address.clone(),
            epoch,
            serves,
        });
        has_moved
    }

    /// Records that a connection to `address` failed, or that it is no master.
    pub(crate) fn failed(&mut self, address: &HostPort, now: Instant) {
        self.failed.retain(|(failed, _)| failed != address);
        self.failed.push((address.clone(), now));
        if let Some(known) = self
            .known
            .as_mut()
            .filter(|known| known.address == *address)
        {
            known.serves = false;
        }
    }

    /// Records that the known master may have been replaced.
    pub(crate) fn suspect(&mut self) {
        if let Some(known) = &mut self.known {
            known.serves = false;
        }
    }

    /// Returns when all sentinels must be asked again.
    pub(crate) fn ask_at(&self) -> Instant {
        if self.must_ask {
            Instant::START
        } else {
            self.ask_at
        }
    }

    /// Returns whether all sentinels must be asked now. The caller must then ask.
    pub(crate) fn is_ask_due(&mut self, now: Instant) -> bool {
        let is_due = std::mem::take(&mut self.must_ask) || now >= self.ask_at;
        if is_due {
            self.ask_at = now.after(ASK_EVERY);
        }
        is_due
    }

    /// Has all sentinels asked again at once.
    pub(crate) fn ask_again(&mut self) {
        self.must_ask = true;
    }

    /// Returns the names of the sentinels to report: each has named another master than `address`
    /// for a while, and was not reported for that one yet.
    pub(crate) fn dissenters(
        &mut self,
        reports: &[(usize, Report)],
        address: &HostPort,
        now: Instant,
    ) -> Vec<(usize, HostPort)> {
        let mut dissenters = Vec::new();
        for (name, report) in reports {
            let Some(dissent) = self.dissents.get_mut(*name) else {
                continue;
            };
            if report.address == *address {
                *dissent = None;
                continue;
            }
            let same = dissent
                .take()
                .filter(|dissent| dissent.address == report.address);
            let dissent = dissent.insert(same.unwrap_or_else(|| Dissent {
                address: report.address.clone(),
                since: now,
                is_reported: false,
            }));
            if !dissent.is_reported && dissent.since.until(now) >= DISSENT_AFTER {
                dissent.is_reported = true;
                dissenters.push((*name, report.address.clone()));
            }
        }
        dissenters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::START.after(Duration::from_secs(seconds))
    }

    fn address(host: &str) -> HostPort {
        (host.into(), 6379)
    }

    /// Returns the reports of the names, as `(host, epoch, id)`. A name without a host is silent.
    fn reports(said: &[(&str, Option<u64>, &str)]) -> Vec<(usize, Report)> {
        let all = said
            .iter()
            .enumerate()
            .filter(|(_, said)| !said.0.is_empty());
        all.map(|(name, (host, epoch, id))| {
            let report = Report {
                address: address(host),
                epoch: *epoch,
                id: Some(id.as_bytes().to_vec()).filter(|id| !id.is_empty()),
            };
            (name, report)
        })
        .collect()
    }

    fn candidates(
        beliefs: &mut Beliefs,
        said: &[(&str, Option<u64>, &str)],
        now: u64,
    ) -> Vec<String> {
        let choice = beliefs.weigh(&reports(said), at(now));
        choice
            .candidates
            .into_iter()
            .map(|(host, _)| host)
            .collect()
    }

    fn known(names: usize, host: &str, epoch: Option<u64>) -> Beliefs {
        let mut beliefs = Beliefs::none(names);
        assert!(!beliefs.take(&address(host), epoch, true));
        beliefs
    }

    #[test]
    fn several_names_of_one_sentinel_count_once() {
        let mut beliefs = known(3, "good", None);
        let said = [("bad", None, "a"), ("bad", None, "a"), ("good", None, "b")];
        assert!(candidates(&mut beliefs, &said, 1).is_empty());
        // Without the right to ask for the id, they count as they are configured.
        let said = said.map(|(host, epoch, _)| (host, epoch, ""));
        assert_eq!(candidates(&mut beliefs, &said, 2), ["bad"]);
        // One sentinel is its own majority, however many names it has.
        let mut beliefs = known(2, "good", None);
        let said = [("new", None, "a"), ("new", None, "a")];
        assert_eq!(candidates(&mut beliefs, &said, 1), ["new"]);
        // The other name of the sentinel is not asked in time.
        let mut beliefs = known(2, "good", None);
        candidates(&mut beliefs, &[("good", None, "a"), ("good", None, "a")], 1);
        assert_eq!(candidates(&mut beliefs, &[("new", None, "a")], 2), ["new"]);
    }

    #[test]
    fn an_address_that_failed_is_tried_again_after_a_while() {
        let mut beliefs = known(3, "good", Some(5));
        let said = [
            ("new", Some(6), "a"),
            ("good", Some(5), "b"),
            ("good", Some(5), "c"),
        ];
        assert_eq!(candidates(&mut beliefs, &said, 0), ["new"]);
        beliefs.failed(&address("new"), at(0));
        assert!(candidates(&mut beliefs, &said, 9).is_empty());
        assert_eq!(candidates(&mut beliefs, &said, 10), ["new"]);
    }

    /// As after `SENTINEL REMOVE` and `SENTINEL MONITOR` at each sentinel.
    #[test]
    fn lower_epochs_of_most_sentinels_count_once_they_have_lasted() {
        let mut beliefs = known(3, "good", Some(5));
        let [set_up, lagging] = [Some(0), Some(5)];
        let said = [
            ("new", set_up, "a"),
            ("new", set_up, "b"),
            ("new", set_up, "c"),
        ];
        assert!(candidates(&mut beliefs, &said, 1).is_empty());
        let mut one_knows = said;
        one_knows[2] = ("good", lagging, "c");
        assert!(candidates(&mut beliefs, &one_knows, 9).is_empty());
        assert!(candidates(&mut beliefs, &said, 11).is_empty());
        assert!(candidates(&mut beliefs, &said[..1], 21).is_empty());
        assert_eq!(candidates(&mut beliefs, &said, 21), ["new"]);
    }

    /// One sentinel alone cannot bring back an old master while the new one is down.
    #[test]
    fn an_epoch_that_most_sentinels_have_left_is_not_followed_when_the_master_is_down() {
        let mut beliefs = known(3, "good", Some(5));
        let said = [
            ("old", Some(1), "a"),
            ("good", Some(5), "b"),
            ("good", Some(5), "c"),
        ];
        assert!(candidates(&mut beliefs, &said, 0).is_empty());
        beliefs.failed(&address("good"), at(1));
        for (now, said) in [(1, &said[..]), (2, &said[..1]), (60, &said[..1])] {
            assert!(!candidates(&mut beliefs, said, now).contains(&"old".into()));
        }
        // That epoch came from one sentinel alone.
        let mut beliefs = known(3, "wrong", Some(9));
        beliefs.failed(&address("wrong"), at(0));
        let said = [
            ("good", Some(5), "a"),
            ("good", Some(5), "b"),
            ("wrong", Some(9), "c"),
        ];
        assert_eq!(candidates(&mut beliefs, &said, 1), ["good", "wrong"]);
    }

    #[test]
    fn sentinels_are_asked_more_often_while_they_disagree() {
        let mut beliefs = known(3, "good", Some(5));
        assert!(beliefs.is_ask_due(at(0)) && !beliefs.is_ask_due(at(9)));
        let agreed = [
            ("good", Some(5), "a"),
            ("good", Some(5), "b"),
            ("good", Some(5), "c"),
        ];
        let mut disagreed = agreed;
        disagreed[0] = ("old", Some(1), "a");
        for (said, after) in [(&agreed[..], 10), (&disagreed, 2), (&agreed[..1], 2)] {
            candidates(&mut beliefs, said, 100);
            assert!(!beliefs.is_ask_due(at(100 + after - 1)), "{said:?}");
            assert!(beliefs.is_ask_due(at(100 + after)), "{said:?}");
        }
        // An announcement that arrives while the sentinels are asked is not forgotten.
        beliefs.ask_again();
        candidates(&mut beliefs, &agreed, 100);
        assert!(beliefs.is_ask_due(at(100)) && !beliefs.is_ask_due(at(100)));
    }

    #[test]
    fn a_sentinel_that_disagrees_for_a_while_is_reported_once() {
        let mut beliefs = known(2, "good", None);
        let good = address("good");
        let disagree = reports(&[("old", None, "a"), ("good", None, "b")]);
        let mut dissenters = |reports: &[(usize, Report)], now| {
            let dissenters = beliefs.dissenters(reports, &good, at(now));
            dissenters
                .into_iter()
                .map(|(name, _)| name)
                .collect::<Vec<_>>()
        };
        assert!(dissenters(&disagree, 0).is_empty());
        assert_eq!(dissenters(&disagree, 4), [0]);
        assert!(dissenters(&disagree, 8).is_empty());
        assert!(dissenters(&reports(&[("good", None, "a")]), 9).is_empty());
        assert!(dissenters(&disagree, 10).is_empty());
        assert_eq!(dissenters(&disagree, 14), [0]);
    }

    #[test]
    fn an_address_counts_as_moved_once() {
        let mut beliefs = known(1, "a", None);
        assert!(beliefs.take(&address("b"), None, true));
        assert!(!beliefs.take(&address("b"), Some(2), true));
        assert!(beliefs.take(&address("a"), None, false));
        assert_eq!(beliefs.serving(), None);
    }

    /// A thread that asked before may have chosen another address, because this one did not serve.
    #[test]
    fn an_address_that_serves_again_is_a_change() {
        let mut beliefs = known(1, "a", None);
        let before = beliefs.changes;
        beliefs.take(&address("a"), None, true);
        assert_eq!(beliefs.changes, before);
        beliefs.failed(&address("a"), at(1));
        beliefs.take(&address("a"), None, true);
        assert_eq!(beliefs.changes, before + 1);
    }

    #[test]
    fn an_address_that_most_sentinels_have_left_is_no_last_resort() {
        let mut beliefs = known(3, "old", Some(5));
        beliefs.failed(&address("old"), at(0));
        candidates(&mut beliefs, &[("old", Some(5), "a")], 1);
        assert_eq!(beliefs.not_replaced(), Some(&address("old")));
        let said = [("new", Some(6), "a"), ("new", Some(6), "b")];
        assert_eq!(candidates(&mut beliefs, &said, 2), ["new"]);
        assert_eq!(beliefs.not_replaced(), None);
    }

    #[test]
    fn an_answer_that_came_too_late_counts_at_the_next_question() {
        let mut beliefs = known(3, "old", Some(5));
        let said = [("old", Some(5), "a"), ("new", Some(6), "b")];
        let reports = reports(&said);
        beliefs.heard(1, &reports[1].1, at(1));
        let with_late = |seconds| beliefs.with_late(reports[..1].to_vec(), at(seconds));
        assert_eq!(with_late(11), reports);
        assert_eq!(with_late(13), reports[..1]);
        beliefs.weigh(&reports, at(1));
        assert!(beliefs.is_ask_due(at(1)), "it was not heard before");
        beliefs.heard(1, &reports[1].1, at(2));
        assert!(!beliefs.is_ask_due(at(2)));
    }
}
