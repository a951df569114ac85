//! The reports of the nodes about the owners of slots, and which of them were refuted. No I/O.

use std::collections::{HashMap, HashSet};

use crate::redis::cluster::slots::SlotLayout;
use crate::url::HostPort;

/// If more nodes than this have reported, all are forgotten. Most of them are gone then: each
/// restart of a node may change its address.
const MOST_NODES: usize = 1_000;

/// The layout that a node reported.
pub(super) struct NodeReport {
    pub(super) node: HostPort,
    pub(super) layout: SlotLayout,
}

/// The owners that each node named last.
#[derive(Clone, Default)]
pub(super) struct Reports {
    named: HashMap<HostPort, HashSet<HostPort>>,
    /// The nodes, each with an owner that it named and that could not be reached.
    refuted: HashSet<(HostPort, HostPort)>,
    /// The owners that cannot be reached now.
    failing: Vec<HostPort>,
}

impl Reports {
    /// Refutes what nodes said of the owners that fail. `fails` is `None` for an owner that is not
    /// in use: what was refuted stays so.
    pub(super) fn refute(&mut self, fails: impl Fn(&HostPort) -> Option<bool>) {
        self.refuted
            .retain(|(_, owner)| fails(owner) != Some(false));
        self.failing.clear();
        for (node, owners) in &self.named {
            for owner in owners.iter().filter(|owner| fails(owner) == Some(true)) {
                self.refuted.insert((node.clone(), owner.clone()));
                if !self.failing.contains(owner) {
                    self.failing.push(owner.clone());
                }
            }
        }
    }

    pub(super) fn is_refuted(&self, node: &HostPort, owner: &HostPort) -> bool {
        // Nearly always empty; the addresses are then not copied.
        !self.refuted.is_empty() && self.refuted.contains(&(node.clone(), owner.clone()))
    }

    /// Returns whether these reports are enough, although most nodes have not answered: there were
    /// reports before, and these may replace each owner that fails. Those that were refuted cannot.
    pub(super) fn suffice(&self, reports: &[&NodeReport]) -> bool {
        let may_replace = |owner: &HostPort| {
            reports.iter().any(|NodeReport { node, layout }| {
                let is_named = layout.masters.iter().any(|(_, named)| named == owner);
                !(is_named && self.is_refuted(node, owner))
            })
        };
        !self.named.is_empty() && !reports.is_empty() && self.failing.iter().all(may_replace)
    }

    /// Records what the nodes reported.
    pub(super) fn note(&mut self, reports: Vec<NodeReport>) {
        if self.named.len() > MOST_NODES {
            self.named.clear();
        }
        for NodeReport { node, layout } in reports {
            let owners = layout.masters.into_iter().map(|(_, owner)| owner);
            self.named.insert(node, owners.collect());
        }
        let named = &self.named;
        let says = |node: &HostPort, owner: &HostPort| {
            named.get(node).is_some_and(|owners| owners.contains(owner))
        };
        self.refuted.retain(|(node, owner)| says(node, owner));
    }
}
