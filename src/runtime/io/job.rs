//! The commands that the background threads of an endpoint send, several in one write.

use crate::lease::releases::{ReleaseBatch, Releases};
use crate::protocol::keys::Key;
use crate::protocol::script::Call;
use crate::replicas::Replicas;
use crate::runtime::endpoint::Endpoint;
use crate::runtime::io::renewal_round::RenewalPart;
use crate::runtime::io::shared_stats::StatsDelta;
use crate::runtime::state::Runtime;

pub(in crate::runtime) enum IoJob {
    Renew(RenewalPart),
    Release(ReleaseBatch),
    AddStats(StatsDelta),
}

impl IoJob {
    /// Returns the replicas that must acknowledge the command.
    pub(in crate::runtime) fn replicas(&self) -> Option<Replicas> {
        match self {
            Self::Renew(part) => part.round.hold.replicas,
            Self::Release(_) | Self::AddStats(_) => None,
        }
    }

    /// Returns the cost of the command in a write. A renewal of one name costs 1.
    pub(in crate::runtime) fn weight(&self) -> usize {
        match self {
            Self::Renew(part) => part.keys.names.len(),
            Self::Release(batch) => batch.weight(),
            Self::AddStats(_) => 1,
        }
    }

    /// Returns the key that decides which server gets the command; `None` for statistics, which are
    /// not forwarded.
    fn key(&self) -> Option<Key<'_>> {
        match self {
            Self::Renew(part) => Some(part.keys.key(0)),
            Self::Release(batch) => Some(batch.keys.key(0)),
            Self::AddStats(_) => None,
        }
    }

    pub(in crate::runtime) fn call(&self) -> Call<'_> {
        match self {
            Self::Renew(RenewalPart { round, keys }) => {
                let hold = &round.hold;
                keys.renew(&hold.id, round.request.ttl, false)
                    .acknowledged_by(hold.replicas)
            }
            Self::Release(batch) => batch.call(),
            Self::AddStats(delta) => delta.call(),
        }
    }
}

/// Removes the jobs whose keys another server now owns, and queues them at that server.
pub(in crate::runtime) fn forward_moved(
    runtime: &Runtime,
    endpoint: &Endpoint,
    releases: &mut Releases,
    jobs: &mut Vec<IoJob>,
) {
    let is_elsewhere = |key: Key<'_>| !runtime.deployment.owns(&endpoint.server, key);
    for job in jobs.extract_if(.., |job| job.key().is_some_and(is_elsewhere)) {
        let owners = job.key().map(|key| runtime.endpoints_of(key).0);
        // Keys move only in a cluster, where each has one owner.
        let Some(owner) = owners.and_then(|owners| owners.into_iter().next()) else {
            continue;
        };
        match job {
            IoJob::Renew(part) => runtime.renew_at(&owner, vec![part]),
            IoJob::Release(batch) => {
                for release in releases.remove_batch(&batch) {
                    runtime.release_at(&owner, release);
                }
            }
            IoJob::AddStats(_) => {}
        }
    }
}
