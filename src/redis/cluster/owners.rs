//! The known owner of each slot, as nodes report and redirect. No I/O.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::protocol::keys::Key;
use crate::protocol::slot::SLOTS;
use crate::redis::cluster::reports::{NodeReport, Reports};
use crate::redis::cluster::slots::SlotLayout;
use crate::redis::members::{Claim, Known, choose};
use crate::redis::server::Server;
use crate::url::HostPort;

/// Nodes learn of a moved slot from each other within about this time. Until then, a node's answer
/// may be older than a redirect we have seen.
const GOSSIP: Duration = Duration::from_secs(2);

/// The slots whose owner has changed. It may have none: if owners became known, or servers retired.
pub(crate) struct Moved(Vec<bool>);

impl Moved {
    fn none() -> Self {
        Self(vec![false; usize::from(SLOTS)])
    }

    fn note(&mut self, slot: u16) {
        if let Some(is_moved) = self.0.get_mut(usize::from(slot)) {
            *is_moved = true;
        }
    }

    pub(crate) fn has_any(&self) -> bool {
        self.0.contains(&true)
    }

    pub(crate) fn has(&self, key: Key<'_>) -> bool {
        self.0.get(usize::from(key.slot())) == Some(&true)
    }
}

/// Makes the server at an address.
type MakeServer<'a> = &'a dyn Fn(&HostPort) -> Arc<Server>;

pub(super) struct Owners {
    by_slot: Vec<Option<Arc<Server>>>,
    servers: HashMap<HostPort, Arc<Server>>,
    /// The replicas in the last layouts that nodes reported.
    replicas: Vec<HostPort>,
    reports: Reports,
    /// Recent redirects, by slot.
    redirects: HashMap<u16, (HostPort, Instant)>,
}

/// The changes that a layout made.
#[derive(Default)]
pub(super) struct Change {
    pub(super) moved: Option<Moved>,
    /// The servers that own no slot any more.
    pub(super) retired: Vec<Arc<Server>>,
    /// Most nodes do not know of a move yet.
    pub(super) is_behind: bool,
    /// The nodes disagree about a slot, and none of the owners that they name has a majority.
    pub(super) is_split: bool,
}

impl Owners {
    pub(super) fn none() -> Self {
        Self {
            by_slot: vec![None; usize::from(SLOTS)],
            servers: HashMap::new(),
            replicas: Vec::new(),
            reports: Reports::default(),
            redirects: HashMap::new(),
        }
    }

    pub(super) fn owner_of(&self, slot: u16) -> Option<&Arc<Server>> {
        self.by_slot.get(usize::from(slot))?.as_ref()
    }

    /// Returns a slot that the server owns.
    pub(super) fn slot_of(&self, server: &Arc<Server>) -> Option<u16> {
        let is_its = |owner: &Option<Arc<Server>>| {
            owner
                .as_ref()
                .is_some_and(|owner| Arc::ptr_eq(owner, server))
        };
        u16::try_from(self.by_slot.iter().position(is_its)?).ok()
    }

    /// Every known master that owns a slot, and the nodes that ASK redirects have named.
    pub(super) fn masters(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.servers.values()
    }

    /// Returns all known nodes in the order in which they are asked: the masters that work, the
    /// replicas and these `seeds`, and the masters that fail.
    pub(super) fn nodes(&self, seeds: impl Iterator<Item = HostPort>) -> [Vec<HostPort>; 3] {
        let is_failing = |(_, server): &(&HostPort, &Arc<Server>)| server.health.is_failing();
        let (failing, working): (Vec<_>, Vec<_>) = self.servers.iter().partition(is_failing);
        let addresses = |servers: Vec<(&HostPort, _)>| {
            let mut addresses: Vec<HostPort> = servers
                .into_iter()
                .map(|(address, _)| address.clone())
                .collect();
            addresses.sort();
            addresses
        };
        let mut others: Vec<HostPort> = self.replicas.iter().cloned().chain(seeds).collect();
        others.retain(|address| !self.servers.contains_key(address));
        others.sort();
        others.dedup();
        [addresses(working), others, addresses(failing)]
    }

    /// Prepares for another question to the nodes: an owner that cannot be reached is not taken
    /// again from the nodes that have named it. Returns what is needed to tell whether the answers
    /// are enough.
    pub(super) fn begin_refresh(&mut self) -> Reports {
        let servers = &self.servers;
        self.reports.refute(|owner| {
            let server = servers.get(owner)?;
            Some(server.health.is_failing())
        });
        self.reports.clone()
    }

    pub(super) fn host_of(&self, server: &Arc<Server>) -> Option<&str> {
        let mut servers = self.servers.iter();
        let own = servers.find(|(_, known)| Arc::ptr_eq(known, server));
        own.map(|((host, _), _)| host.as_str())
    }

    /// Returns the server at `address`; makes it if there is none yet.
    pub(super) fn at(&mut self, address: &HostPort, make: MakeServer<'_>) -> Arc<Server> {
        if let Some(server) = self.servers.get(address) {
            return Arc::clone(server);
        }
        let server = make(address);
        self.servers.insert(address.clone(), Arc::clone(&server));
        server
    }

    /// Records a redirect at `now`: `slot` is at `address`. Returns the server there, and the slot
    /// as moved if another server was its owner.
    pub(super) fn redirected(
        &mut self,
        slot: u16,
        address: HostPort,
        now: Instant,
        make: MakeServer<'_>,
    ) -> (Arc<Server>, Option<Moved>) {
        let server = self.at(&address, make);
        self.redirects.insert(slot, (address, now));
        let mut moved = None;
        self.assign(slot, &server, &mut moved);
        (server, moved)
    }

    /// Applies the layouts that nodes reported when asked at `asked`. `members` is the number of
    /// nodes that count, of which a majority replaces an owner that works.
    ///
    /// What most of them say of each slot counts. A node may be out of date, and while slots move,
    /// the layouts of nodes that are not may differ.
    pub(super) fn learn(
        &mut self,
        reports: Vec<NodeReport>,
        members: usize,
        asked: Instant,
        make: MakeServer<'_>,
    ) -> Change {
        self.forget_old_redirects(asked);
        let mut change = Change::default();
        let redirects = self.redirects.clone();
        let (owners, is_split) = self.chosen_owners(&reports, members);
        change.is_split = is_split;
        for (slots, address) in owners {
            let chosen = self.at(&address, make);
            for slot in slots {
                let redirect = redirects.get(&slot);
                let server = redirect.map(|(address, _)| self.at(address, make));
                let server = server.as_ref().unwrap_or(&chosen);
                // The nodes do not know of this move yet; other slots may have moved with it.
                change.is_behind |= !Arc::ptr_eq(server, &chosen);
                self.assign(slot, server, &mut change.moved);
            }
        }
        change.retired = self.retire();
        if !change.retired.is_empty() {
            // Followers must stop using a retired server even if all its slots moved earlier.
            change.moved.get_or_insert_with(Moved::none);
        }
        let replicas = reports.iter().flat_map(|report| &report.layout.replicas);
        self.replicas = replicas.cloned().collect();
        self.replicas.sort();
        self.replicas.dedup();
        self.reports.note(reports);
        change
    }

    /// Returns the owners of the slots for which nodes name one, and whether nodes disagree about a
    /// slot without a majority. A slot without a reported owner stays: its last owner redirects
    /// calls if necessary.
    fn chosen_owners(
        &self,
        reports: &[NodeReport],
        members: usize,
    ) -> (Vec<(RangeInclusive<u16>, HostPort)>, bool) {
        let layouts = || reports.iter().map(|report| &report.layout);
        let named: Vec<Vec<Option<&HostPort>>> = layouts().map(SlotLayout::by_slot).collect();
        let starts: HashSet<u16> = layouts().flat_map(SlotLayout::starts).collect();
        let addresses = self.servers.iter();
        let addresses: HashMap<*const Server, &HostPort> = addresses
            .map(|(address, server)| (Arc::as_ptr(server), address))
            .collect();
        let mut owners: Vec<(RangeInclusive<u16>, HostPort)> = Vec::new();
        let (mut last, mut chosen, mut is_split) = (None, None, false);
        for slot in 0..SLOTS {
            let owner = self.owner_of(slot);
            let known = owner.map(Arc::as_ptr);
            // Most slots have the same owner and the same claims as the slot before.
            if slot == 0 || last != known || starts.contains(&slot) {
                let claims = named.iter().enumerate().filter_map(|(member, owners)| {
                    Some(Claim {
                        member,
                        address: owners.get(usize::from(slot)).copied().flatten()?,
                        epoch: None,
                    })
                });
                let known = owner.and_then(|server| {
                    Some(Known {
                        address: *addresses.get(&Arc::as_ptr(server))?,
                        epoch: None,
                        serves: !server.health.is_failing(),
                    })
                });
                let claims: Vec<_> = claims.collect();
                chosen = self.choose_owner(reports, &claims, members, known.as_ref());
                let votes = claims.iter().filter(|claim| Some(claim.address) == chosen);
                let votes = votes.count();
                is_split |= votes < claims.len() && votes * 2 <= members;
            }
            last = known;
            match (chosen, owners.last_mut()) {
                (Some(owner), Some((slots, last))) if last == owner && *slots.end() + 1 == slot => {
                    *slots = *slots.start()..=slot;
                }
                (Some(owner), _) => owners.push((slot..=slot, owner.clone())),
                (None, _) => {}
            }
        }
        (owners, is_split)
    }

    /// Returns the owner of a slot by these claims.
    fn choose_owner<'a>(
        &self,
        reports: &[NodeReport],
        claims: &[Claim<&'a HostPort>],
        members: usize,
        known: Option<&Known<&'a HostPort>>,
    ) -> Option<&'a HostPort> {
        let is_refuted = |claim: &Claim<&HostPort>| {
            let report = reports.get(claim.member);
            report.is_some_and(|report| self.reports.is_refuted(&report.node, claim.address))
        };
        let candidates = choose(claims, members, known, None, is_refuted).candidates;
        let first = *candidates
            .first()
            .or_else(|| known.map(|known| &known.address))?;
        let mut supporting = claims.iter().filter(|claim| claim.address == first);
        match known {
            Some(known) if supporting.all(is_refuted) => Some(known.address),
            _ => Some(first),
        }
    }

    /// Forgets old redirects and those to failing servers: the layout decides about their slots
    /// again.
    fn forget_old_redirects(&mut self, asked: Instant) {
        let servers = &self.servers;
        self.redirects.retain(|_, (address, at)| {
            let has_failed = servers
                .get(address)
                .is_some_and(|server| server.health.is_failing());
            at.until(asked) < GOSSIP && !has_failed
        });
    }

    /// Makes `server` the owner of `slot`, and notes in `moved` if it replaces another server.
    fn assign(&mut self, slot: u16, server: &Arc<Server>, moved: &mut Option<Moved>) {
        if let Some(owner) = self.by_slot.get_mut(usize::from(slot))
            && owner
                .as_ref()
                .is_none_or(|owner| !Arc::ptr_eq(owner, server))
        {
            // A call that waits may be subscribed at the stand-in for an unknown owner.
            let moved = moved.get_or_insert_with(Moved::none);
            if owner.replace(Arc::clone(server)).is_some() {
                moved.note(slot);
            }
        }
    }

    /// Removes and returns the servers that own no slot any more.
    fn retire(&mut self) -> Vec<Arc<Server>> {
        let owners = self.by_slot.iter().flatten().map(Arc::as_ptr);
        let owners: HashSet<*const Server> = owners.collect();
        let retired = self
            .servers
            .extract_if(|_, server| !owners.contains(&Arc::as_ptr(server)));
        retired.map(|(_, server)| server).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::redis::conn::connector::Connector;
    use crate::url::Target;

    fn server((host, port): &HostPort) -> Arc<Server> {
        let Ok(Target::Cluster(nodes)) = Target::parse("redis+cluster://127.0.0.1:1") else {
            unreachable!("the URL is valid");
        };
        let config = Config::default();
        let connector = Connector::to_server(nodes.data.at(host, *port), None, &config);
        Arc::new(Server::new(connector, &config, None))
    }

    fn at(port: u16) -> HostPort {
        ("127.0.0.1".into(), port)
    }

    /// Returns the report of the node at this port, which names one owner of all slots.
    fn report(node: u16, owner: u16) -> NodeReport {
        NodeReport {
            node: at(node),
            layout: SlotLayout {
                masters: vec![(0..=SLOTS - 1, at(owner))],
                replicas: Vec::new(),
            },
        }
    }

    fn learn(owners: &mut Owners, reports: Vec<NodeReport>, asked: Instant) -> Change {
        let members = reports.len();
        owners.learn(reports, members, asked, &server)
    }

    fn port_of(owners: &Owners, slot: u16) -> u16 {
        let owner = owners.owner_of(slot).expect("it is known");
        let mut servers = owners.servers.iter();
        let own = servers.find(|(_, server)| Arc::ptr_eq(server, owner));
        own.expect("it is in use").0.1
    }

    fn fail(owners: &Owners, port: u16) {
        owners.servers[&at(port)].health.failed(None, true);
    }

    /// The slot was moved there and back, or the redirect came from a node of another cluster that
    /// now has the address of a node of this one.
    #[test]
    fn slot_returns_to_the_owner_that_nodes_report_when_a_redirect_is_old() {
        let mut owners = Owners::none();
        let asked = Instant::START.after(Duration::from_secs(1));
        learn(&mut owners, vec![report(1, 1)], asked);
        let owner = Arc::clone(owners.owner_of(7).unwrap());
        let (elsewhere, moved) = owners.redirected(7, ("127.0.0.1".into(), 2), asked, &server);
        assert!(moved.is_some());
        for (after, expected) in [(GOSSIP / 2, &elsewhere), (GOSSIP, &owner)] {
            learn(&mut owners, vec![report(1, 1)], asked.after(after));
            assert!(
                Arc::ptr_eq(owners.owner_of(7).unwrap(), expected),
                "{after:?}"
            );
        }
        assert_eq!(owners.masters().count(), 1, "the other one is retired");
    }

    #[test]
    fn node_that_gets_no_slot_after_an_ask_is_retired() {
        let mut owners = Owners::none();
        let asked = Instant::START.after(Duration::from_secs(1));
        learn(&mut owners, vec![report(1, 1)], asked);
        let named = owners.at(&("127.0.0.1".into(), 2), &server);
        let change = learn(&mut owners, vec![report(1, 1)], asked);
        assert!(Arc::ptr_eq(&change.retired[0], &named));
        assert_eq!(owners.masters().count(), 1);
    }

    const ASKED: Instant = Instant::START.after(Duration::from_secs(1));

    #[test]
    fn one_node_that_is_out_of_date_moves_no_slot_of_an_owner_that_works() {
        let mut owners = Owners::none();
        learn(&mut owners, vec![report(1, 1)], ASKED);
        for reports in [
            vec![report(9, 2)],
            vec![report(9, 2), report(1, 1)],
            vec![report(9, 2), report(1, 1), report(3, 1)],
        ] {
            let is_split = reports.len() < 3;
            let change = owners.learn(reports, 3, ASKED, &server);
            assert!(change.moved.is_none());
            assert_eq!(change.is_split, is_split);
            assert_eq!(port_of(&owners, 7), 1);
        }
        learn(
            &mut owners,
            vec![report(9, 1), report(1, 2), report(3, 2)],
            ASKED,
        );
        assert_eq!(port_of(&owners, 7), 2, "most nodes name it");
    }

    /// An outdated node reports first and names a dead master; the others name its successor.
    #[test]
    fn an_owner_that_cannot_be_reached_is_not_taken_from_the_same_node_again() {
        let mut owners = Owners::none();
        learn(&mut owners, vec![report(9, 1)], ASKED);
        fail(&owners, 1);
        let reports = owners.begin_refresh();
        assert!(!reports.suffice(&[&report(9, 1)]));
        assert!(reports.suffice(&[&report(9, 1), &report(3, 2)]));
        owners.learn(vec![report(9, 1), report(3, 2)], 5, ASKED, &server);
        assert_eq!(port_of(&owners, 7), 2);
        // The successor fails, too, and only the outdated node reports in time.
        fail(&owners, 2);
        owners.begin_refresh();
        owners.learn(vec![report(9, 1)], 5, ASKED, &server);
        assert_eq!(port_of(&owners, 7), 2);
        // Another node names the first one, which was restarted.
        owners.learn(vec![report(9, 1), report(4, 1)], 5, ASKED, &server);
        assert_eq!(port_of(&owners, 7), 1);
    }

    /// No other owner is named, so the known one is tried again.
    #[test]
    fn an_owner_that_all_nodes_name_stays_although_it_fails() {
        let mut owners = Owners::none();
        learn(&mut owners, vec![report(1, 1), report(2, 1)], ASKED);
        fail(&owners, 1);
        owners.begin_refresh();
        let change = learn(&mut owners, vec![report(1, 1), report(2, 1)], ASKED);
        assert!(change.moved.is_none());
        assert_eq!(port_of(&owners, 7), 1);
    }

    /// While slots move, each slot is decided alone.
    #[test]
    fn what_most_nodes_say_of_each_slot_counts() {
        let mut owners = Owners::none();
        let split = |node, last: u16| NodeReport {
            node: at(node),
            layout: SlotLayout {
                masters: vec![(0..=last, at(1)), (last + 1..=SLOTS - 1, at(2))],
                replicas: Vec::new(),
            },
        };
        learn(
            &mut owners,
            vec![split(1, 99), split(2, 100), split(3, 101)],
            ASKED,
        );
        let ports = [99, 100, 101, 102].map(|slot| port_of(&owners, slot));
        assert_eq!(ports, [1, 1, 2, 2]);
    }
}
