//! What one write of the io thread holds a part of.

use crate::lease::undos::{Batch, Undos};
use crate::protocol::kind::Key;
use crate::protocol::script::Call;
use crate::replicas::Replicas;
use crate::runtime::endpoint::Endpoint;
use crate::runtime::io::renewal_round::RenewalPart;
use crate::runtime::io::shared_stats::StatsDelta;
use crate::runtime::state::Runtime;

pub(in crate::runtime) enum IoJob {
    Renew(RenewalPart),
    Undo(Batch),
    LeaseVotes(StatsDelta),
}

impl IoJob {
    pub(in crate::runtime) fn replicas(&self) -> Option<Replicas> {
        match self {
            Self::Renew(paper) => paper.ballot.hold.replicas,
            Self::Undo(_) | Self::LeaseVotes(_) => None,
        }
    }

    /// What it costs in a write, where a renewal of one name costs one.
    pub(in crate::runtime) fn weight(&self) -> usize {
        match self {
            Self::Renew(paper) => paper.keys.names.len(),
            Self::Undo(batch) => batch.weight(),
            Self::LeaseVotes(_) => 1,
        }
    }

    fn key(&self) -> Option<Key<'_>> {
        match self {
            Self::Renew(paper) => Some(paper.keys.key(0)),
            Self::Undo(batch) => Some(batch.keys.key(0)),
            Self::LeaseVotes(_) => None,
        }
    }

    pub(in crate::runtime) fn call(&self) -> Call<'_> {
        match self {
            Self::Renew(RenewalPart { ballot, keys }) => {
                let hold = &ballot.hold;
                keys.renew(&hold.id, ballot.ask.ttl, false)
                    .acknowledged_by(hold.replicas)
            }
            Self::Undo(batch) => batch.call(),
            Self::LeaseVotes(parcel) => parcel.call(),
        }
    }
}

/// Hands on what is kept by another server now.
pub(in crate::runtime) fn send_on(
    runtime: &Runtime,
    endpoint: &Endpoint,
    undos: &mut Undos,
    items: &mut Vec<IoJob>,
) {
    let is_elsewhere = |key: Key<'_>| !runtime.owns(endpoint, key);
    for item in items.extract_if(.., |item| item.key().is_some_and(is_elsewhere)) {
        let endpoints_of = item.key().map(|key| runtime.endpoints_of(key).0);
        // Only a cluster has names that move, and there each has one home.
        let Some(owner_of) = endpoints_of.and_then(|endpoints_of| endpoints_of.into_iter().next())
        else {
            continue;
        };
        match item {
            IoJob::Renew(paper) => runtime.renew_at(&owner_of, vec![paper]),
            IoJob::Undo(batch) => {
                let undos = undos.give_away(&batch);
                undos.into_iter().for_each(|undo| owner_of.io.undo(undo));
            }
            IoJob::LeaseVotes(_) => {}
        }
    }
}
