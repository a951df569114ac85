//! The fault of a round without an outcome, made from the faults of its servers.

use crate::cause::Refusal;
use crate::clock::Instant;
use crate::error::Cause;
use crate::kernel::fault::Fault;
use crate::majority::Majority;
use crate::quorum::round::Undecided;
use crate::redis::quorum::Quorum;

impl Quorum {
    /// Returns why a round has no outcome.
    pub(crate) fn undecided(&self, round: &Undecided<'_>) -> Fault {
        let faults = || round.faults.iter().map(|(_, fault)| fault);
        let is_rejection = |fault: &&Fault| matches!(fault, Fault::Rejected(_));
        if faults().filter(is_rejection).count() > round.size.spare()
            && let Some(rejection) = faults().find(is_rejection)
        {
            return rejection.clone();
        }
        let cause = match refusal(round) {
            Some(refusal) => Cause::text(self.text(round)).with_refusal(refusal),
            None => Cause::text(self.text(round)),
        };
        let cause = match violation_by_too_many(round) {
            Some(violation) => cause.with_kind_of(violation),
            // A shortage in this process is the reason for all servers.
            None if !round.was_sent || has_shortage_of_too_many(round) => {
                shortage(round).cloned().unwrap_or(cause)
            }
            None => cause,
        };
        round.fault(cause)
    }

    /// Returns why a call ends while its round is open: what has answered since `since`.
    pub(crate) fn no_outcome(&self, since: Instant) -> Cause {
        let servers = self.servers.iter();
        let answers = servers.filter(|server| server.health.has_answered_since(since));
        let (answers, Majority { all, needed }) = (answers.count(), self.size);
        Cause::silence(if answers >= needed {
            format!("{answers} of {all} servers answered, and do not agree")
        } else {
            format!("{answers} of {all} servers answered, {needed} needed")
        })
    }

    fn text(&self, round: &Undecided<'_>) -> String {
        let (all, needed, answers) = (round.size.all, round.size.needed, round.answers);
        let has_answers = answers >= needed;
        let why = if round.is_in_own_way && has_answers {
            "an earlier call of this client is still being undone".into()
        } else if answers == 0 && !round.was_sent && round.faults.len() <= round.size.spare() {
            "no time was left to ask the servers".into()
        } else if has_answers {
            format!("{answers} of {all} servers answered, and do not agree")
        } else {
            format!("{answers} of {all} servers answered, {needed} needed")
        };
        match self.causes(round) {
            causes if causes.is_empty() => why,
            causes => format!("{why}: {causes}"),
        }
    }

    /// Returns the causes of all faults, each once with the servers that it concerns.
    fn causes(&self, round: &Undecided<'_>) -> String {
        let mut causes: Vec<(String, Vec<&str>)> = Vec::new();
        for (server, fault) in round.faults {
            let (words, label) = (fault.without_server(), self.servers[*server].label());
            match causes.iter_mut().find(|(cause, _)| *cause == words) {
                Some((_, servers)) => servers.push(label),
                None => causes.push((words, vec![label])),
            }
        }
        let causes = causes.iter();
        let causes = causes.map(|(cause, servers)| format!("{cause} ({})", servers.join(", ")));
        causes.collect::<Vec<_>>().join("; ")
    }
}

/// Returns the first refusal that may pass if too few servers without one are left for a majority.
fn refusal<'a>(round: &Undecided<'a>) -> Option<&'a Refusal> {
    let mut refusals = causes(round).filter_map(Cause::refusal);
    let count = causes(round).filter_map(Cause::refusal).count();
    refusals.next().filter(|_| count > round.size.spare())
}

/// Returns the shortage in this process that kept the round from connecting to a server.
pub(super) fn shortage<'a>(round: &Undecided<'a>) -> Option<&'a Cause> {
    causes(round).find(|cause| cause.shortage().is_some())
}

/// Returns whether too few servers are left because of a shortage in this process.
fn has_shortage_of_too_many(round: &Undecided<'_>) -> bool {
    let shortages = causes(round).filter(|cause| cause.shortage().is_some());
    shortages.count() > round.size.spare()
}

/// Returns a violation of the protocol if too few servers without one are left for a majority.
///
/// The violation says that a peer is not Redis if too few servers are left that may be Redis.
/// Otherwise it is a malformed reply.
fn violation_by_too_many<'a>(round: &Undecided<'a>) -> Option<&'a Cause> {
    let spare = round.size.spare();
    let not_redis = causes(round)
        .filter(|cause| cause.is_not_redis())
        .nth(spare);
    let malformed = || causes(round).filter(|cause| cause.is_malformed());
    not_redis.or_else(|| {
        let mut is_malformed = malformed().filter(|cause| !cause.is_not_redis());
        is_malformed.next().filter(|_| malformed().count() > spare)
    })
}

fn causes<'a>(round: &Undecided<'a>) -> impl Iterator<Item = &'a Cause> + use<'a> {
    round.faults.iter().filter_map(|(_, fault)| fault.cause())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::majority::Majority;
    use crate::url::Address;
    use crate::violation::{Violation, ViolationKind};

    fn three() -> Quorum {
        let at = |port| Address::parse(&format!("redis://127.0.0.1:{port}")).unwrap();
        let addresses = [1, 2, 3].map(at).to_vec();
        Quorum::new(addresses, "quorum of three".into(), &Config::default())
    }

    fn round(faults: &[(usize, Fault)]) -> Undecided<'_> {
        Undecided {
            size: Majority::of(3),
            faults,
            answers: 0,
            is_in_own_way: false,
            was_sent: true,
            is_proposal: true,
        }
    }

    #[test]
    fn too_few_answers_are_reported_before_a_pending_undo() {
        let quorum = three();
        let round = |answers| Undecided {
            answers,
            is_in_own_way: true,
            ..round(&[])
        };
        let text = quorum.text(&round(1));
        assert!(text.contains("1 of 3 servers answered, 2 needed"), "{text}");
        let text = quorum.text(&round(2));
        assert!(text.contains("still being undone"), "{text}");
    }

    #[test]
    fn peer_is_called_not_redis_only_if_too_few_others_may_be() {
        let cause = |kind| Cause::from(redis::RedisError::from(Violation::new(kind, b"x")));
        let (malformed, not_resp) = (ViolationKind::Malformed, ViolationKind::NotResp);
        for (kinds, is_not_redis) in [
            ([malformed, not_resp], false),
            ([not_resp, malformed], false),
            ([not_resp, not_resp], true),
        ] {
            let faults = kinds.map(|kind| Fault::Unknown(cause(kind)));
            let faults: Vec<_> = faults.into_iter().enumerate().collect();
            let violation = violation_by_too_many(&round(&faults)).unwrap();
            assert_eq!(violation.is_not_redis(), is_not_redis, "{kinds:?}");
        }
        assert!(violation_by_too_many(&round(&[])).is_none());
    }
}
