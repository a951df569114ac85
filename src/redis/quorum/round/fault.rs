//! The fault of a round without an outcome, made from the faults of its servers.

use crate::cause::Refusal;
use crate::error::Cause;
use crate::protocol::verb::Verb;
use crate::redis::fault::Fault;
use crate::redis::quorum::round::Round;
use crate::redis::quorum::votes::Majority;

impl Round<'_> {
    /// Returns why the round has no outcome.
    pub(super) fn fault(&self) -> Fault {
        let size = self.members.size;
        let mut rejections = self.faults.iter().filter_map(|(_, fault)| match fault {
            Fault::Rejected(error) => Some(error),
            _ => None,
        });
        if rejections.clone().count() > size.all - size.needed
            && let Some(error) = rejections.next()
        {
            return Fault::Rejected(error.clone());
        }
        let cause = match self.refusal() {
            Some(refusal) => Cause::text(self.text()).with_refusal(refusal),
            None => Cause::text(self.text()),
        };
        let cause = match self.violation_by_too_many() {
            Some(violation) => cause.with_kind_of(violation),
            // A shortage in this process is the reason for all servers.
            None if self.sent.is_none() => self.shortage().cloned().unwrap_or(cause),
            None => cause,
        };
        match self.verb {
            // `NotRun` even if it was sent: the round or the engine undoes what it acquired.
            Verb::Acquire(_) => Fault::NotRun(cause),
            _ if self.sent.is_none() => Fault::NotRun(cause),
            _ => Fault::Unknown(cause),
        }
    }

    /// Returns the first refusal that may pass if too few servers without one are left for a
    /// majority.
    fn refusal(&self) -> Option<&Refusal> {
        let causes = self.faults.iter().filter_map(|(_, fault)| fault.cause());
        let mut refusals = causes.filter_map(Cause::refusal);
        let is_enough = refusals.clone().count() > self.members.size.spare();
        refusals.next().filter(|_| is_enough)
    }

    /// Returns the shortage in this process that kept the round from connecting to a server.
    pub(super) fn shortage(&self) -> Option<&Cause> {
        let mut causes = self.faults.iter().filter_map(|(_, fault)| fault.cause());
        causes.find(|cause| cause.shortage().is_some())
    }

    fn text(&self) -> String {
        let Majority { all, needed, .. } = self.members.size;
        let answers = self.answers;
        let why = if self.is_in_own_way && self.has_answers() {
            "an earlier call of this client is still being undone".into()
        } else if answers == 0 && !self.was_sent() && self.faults.len() <= self.members.size.spare()
        {
            "no time was left to ask the servers".into()
        } else if self.has_answers() {
            format!("{answers} of {all} servers answered, and do not agree")
        } else {
            format!("{answers} of {all} servers answered, {needed} needed")
        };
        match self.causes() {
            causes if causes.is_empty() => why,
            causes => format!("{why}: {causes}"),
        }
    }

    /// Returns the causes of all faults, each once with the servers that it concerns.
    fn causes(&self) -> String {
        let mut causes: Vec<(String, Vec<&str>)> = Vec::new();
        for (server, fault) in &self.faults {
            let words = fault.without_server();
            match causes.iter_mut().find(|(cause, _)| *cause == words) {
                Some((_, servers)) => servers.push(server.label()),
                None => causes.push((words, vec![server.label()])),
            }
        }
        let causes = causes.iter();
        let causes = causes.map(|(cause, servers)| format!("{cause} ({})", servers.join(", ")));
        causes.collect::<Vec<_>>().join("; ")
    }

    /// Returns a violation of the protocol if too few servers without one are left for a majority.
    ///
    /// The violation says that a peer is not Redis if too few servers are left that may be Redis.
    /// Otherwise it is a malformed reply.
    fn violation_by_too_many(&self) -> Option<&Cause> {
        let spare = self.members.size.spare();
        let causes = || self.faults.iter().filter_map(|(_, fault)| fault.cause());
        let not_redis = causes().filter(|cause| cause.is_not_redis()).nth(spare);
        let malformed = || causes().filter(|cause| cause.is_malformed());
        not_redis.or_else(|| {
            let mut is_malformed = malformed().filter(|cause| !cause.is_not_redis());
            is_malformed.next().filter(|_| malformed().count() > spare)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Instant;
    use crate::config::Config;
    use crate::redis::quorum::Quorum;
    use crate::url::Address;
    use crate::violation::{Violation, ViolationKind};

    fn three() -> Quorum {
        let at = |port| Address::parse(&format!("redis://127.0.0.1:{port}")).unwrap();
        let addresses = [1, 2, 3].map(at).to_vec();
        Quorum::new(addresses, "quorum of three".into(), &Config::default())
    }

    fn round(quorum: &Quorum) -> Round<'_> {
        Round::new(&quorum.members, None, Instant::now(), None)
    }

    #[test]
    fn too_few_answers_are_reported_before_a_pending_undo() {
        let quorum = three();
        let mut round = round(&quorum);
        round.is_in_own_way = true;
        round.answers = 1;
        let text = round.text();
        assert!(text.contains("1 of 3 servers answered, 2 needed"), "{text}");
        round.answers = 2;
        let text = round.text();
        assert!(text.contains("still being undone"), "{text}");
    }

    #[test]
    fn peer_is_called_not_redis_only_if_too_few_others_may_be() {
        let quorum = three();
        let cause = |kind| Cause::from(redis::RedisError::from(Violation::new(kind, b"x")));
        let (malformed, not_resp) = (ViolationKind::Malformed, ViolationKind::NotResp);
        for (kinds, is_not_redis) in [
            ([malformed, not_resp], false),
            ([not_resp, malformed], false),
            ([not_resp, not_resp], true),
        ] {
            let mut round = round(&quorum);
            for (server, kind) in quorum.members.servers.iter().zip(kinds) {
                round.note_fault(server, Fault::Unknown(cause(kind)));
            }
            let violation = round.violation_by_too_many().unwrap();
            assert_eq!(violation.is_not_redis(), is_not_redis, "{kinds:?}");
        }
        assert!(round(&quorum).violation_by_too_many().is_none());
    }
}
