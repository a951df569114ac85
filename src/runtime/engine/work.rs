//! The commands that the engine sends.

use std::sync::Arc;

use crate::clock::Instant;
use crate::lease::releases::ReleaseBatch;
use crate::lease::status::LeaseStatus;
use crate::protocol::keys::Keys;
use crate::protocol::probe::Probe;
use crate::protocol::script::Call;
use crate::protocol::slot::slot;
use crate::redis::{Job, Request};
use crate::replicas::Replicas;
use crate::runtime::endpoint::Endpoint;
use crate::runtime::engine::renewal_round::RenewalPart;
use crate::runtime::engine::shared_stats::StatsDelta;

pub(in crate::runtime) enum Work {
    Renew(RenewalPart),
    /// Releases, and the index of the server of a quorum, or zero.
    Release(usize, ReleaseBatch),
    AddStats(StatsDelta),
    /// A message that the subscriber must receive within a second; when it was due.
    ProbeSubscriber(Arc<Endpoint>, Instant),
    /// A command on a key: only that is redirected, and so reports the slot's new owner. A master
    /// that was demoted by a planned failover still delivers all messages.
    AskOwner(Keys),
    /// Whether the server of a quorum that is marked down accepts writes again; its index.
    ProbeMember(usize, Probe),
}

/// A command, and how it is sent to the nodes of a cluster.
pub(in crate::runtime) struct Command {
    pub(in crate::runtime) work: Work,
    /// ASKING goes before it: the node is importing the slot.
    pub(in crate::runtime) is_asking: bool,
    /// How often the script was replaced by one that needs fewer keys.
    fewer_keys: u32,
    /// How many redirects in a row it has followed.
    pub(in crate::runtime) hops: u32,
    /// How often it was sent again because its slot was being moved.
    pub(in crate::runtime) tries: u32,
    /// When it follows no redirect any more.
    pub(in crate::runtime) until: Instant,
}

impl Command {
    pub(in crate::runtime) fn new(work: Work, until: Instant) -> Self {
        Self {
            work,
            is_asking: false,
            fewer_keys: 0,
            hops: 0,
            tries: 0,
            until,
        }
    }

    /// Returns the replicas that must acknowledge the command.
    pub(in crate::runtime) fn replicas(&self) -> Option<Replicas> {
        match &self.work {
            Work::Renew(part) => part.round.hold.replicas,
            _ => None,
        }
    }

    /// Returns the slot of its keys; `None` for a command of one server.
    pub(in crate::runtime) fn slot(&self) -> Option<u16> {
        match self.request() {
            Request::Call(call) => call.keys[0].first().map(|key| slot(key)),
            Request::Publish { .. } => None,
        }
    }

    /// Replaces the script by one that does the same with fewer keys; returns false if there is
    /// none.
    pub(in crate::runtime) fn use_fewer_keys(&mut self) -> bool {
        let has_fewer = match self.request() {
            Request::Call(call) => fewer_keys(call).is_some(),
            Request::Publish { .. } => false,
        };
        self.fewer_keys += u32::from(has_fewer);
        has_fewer
    }
}

/// Returns the call without the keys that may not exist while a slot is being moved.
fn fewer_keys(call: Call<'_>) -> Option<Call<'_>> {
    call.without_queue().or_else(|| call.without_readers())
}

impl Job for Command {
    fn request(&self) -> Request<'_> {
        let call = match &self.work {
            Work::Renew(RenewalPart { round, keys }) => {
                let hold = &round.hold;
                keys.renew(&hold.id, round.request.ttl, false)
                    .acknowledged_by(hold.replicas)
            }
            Work::Release(_, batch) => batch.call(),
            Work::AddStats(delta) => delta.call(),
            Work::AskOwner(keys) => keys.inspect(),
            Work::ProbeMember(_, probe) => probe.call(),
            Work::ProbeSubscriber(endpoint, _) => return endpoint.subscriber.probe(),
        };
        let call = (0..self.fewer_keys).fold(call, |call, _| fewer_keys(call).unwrap_or(call));
        Request::Call(call.asking(self.is_asking))
    }

    /// A lease that was lost or released meanwhile must not be extended by another ttl.
    fn is_over(&self, now: Instant) -> bool {
        let Work::Renew(part) = &self.work else {
            return false;
        };
        !matches!(part.round.hold.status(now), LeaseStatus::Held(_))
    }
}
