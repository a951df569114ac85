//! What one write of the io thread holds a part of.

use crate::lease::undos::{Batch, Undos};
use crate::protocol::kind::Key;
use crate::protocol::script::Call;
use crate::replicas::Replicas;
use crate::runtime::Shared;
use crate::runtime::endpoint::Site;
use crate::runtime::io::renewal_round::Paper;
use crate::runtime::io::shared_stats::Parcel;

pub(in crate::runtime) enum Item {
    Renew(Paper),
    Undo(Batch),
    Tally(Parcel),
}

impl Item {
    pub(in crate::runtime) fn replicas(&self) -> Option<Replicas> {
        match self {
            Self::Renew(paper) => paper.ballot.hold.replicas,
            Self::Undo(_) | Self::Tally(_) => None,
        }
    }

    /// What it costs in a write, where a renewal of one name costs one.
    pub(in crate::runtime) fn weight(&self) -> usize {
        match self {
            Self::Renew(paper) => paper.keys.names.len(),
            Self::Undo(batch) => batch.weight(),
            Self::Tally(_) => 1,
        }
    }

    fn key(&self) -> Option<Key<'_>> {
        match self {
            Self::Renew(paper) => Some(paper.keys.key(0)),
            Self::Undo(batch) => Some(batch.keys.key(0)),
            Self::Tally(_) => None,
        }
    }

    pub(in crate::runtime) fn call(&self) -> Call<'_> {
        match self {
            Self::Renew(Paper { ballot, keys }) => {
                let hold = &ballot.hold;
                keys.renew(&hold.id, ballot.ask.ttl, false)
                    .acknowledged_by(hold.replicas)
            }
            Self::Undo(batch) => batch.call(),
            Self::Tally(parcel) => parcel.call(),
        }
    }
}

/// Hands on what is kept by another server now.
pub(in crate::runtime) fn send_on(
    shared: &Shared,
    site: &Site,
    undos: &mut Undos,
    items: &mut Vec<Item>,
) {
    let is_elsewhere = |key: Key<'_>| !shared.is_home(site, key);
    for item in items.extract_if(.., |item| item.key().is_some_and(is_elsewhere)) {
        let homes = item.key().map(|key| shared.homes(key).0);
        // Only a cluster has names that move, and there each has one home.
        let Some(home) = homes.and_then(|homes| homes.into_iter().next()) else {
            continue;
        };
        match item {
            Item::Renew(paper) => home.renew(shared, vec![paper]),
            Item::Undo(batch) => {
                let undos = undos.give_away(&batch);
                undos.into_iter().for_each(|undo| home.io.undo(undo));
            }
            Item::Tally(_) => {}
        }
    }
}
