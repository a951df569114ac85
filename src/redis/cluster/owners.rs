//! The known owner of each slot, as nodes report and redirect. No I/O.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::protocol::keys::Key;
use crate::protocol::slot::SLOTS;
use crate::redis::cluster::slots::SlotLayout;
use crate::redis::server::Server;
use crate::url::HostPort;

/// Nodes learn of a moved slot from each other within about this time. Until then, a node's answer
/// may be older than a redirect we have seen.
const GOSSIP: Duration = Duration::from_secs(2);

/// The slots whose owner has changed.
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

    pub(crate) fn has(&self, key: Key<'_>) -> bool {
        self.0.get(usize::from(key.slot())) == Some(&true)
    }
}

/// Makes the server at an address.
type MakeServer<'a> = &'a dyn Fn(&HostPort) -> Arc<Server>;

pub(super) struct Owners {
    by_slot: Vec<Option<Arc<Server>>>,
    servers: HashMap<HostPort, Arc<Server>>,
    /// The replicas in the last layout that a node reported.
    replicas: Vec<HostPort>,
    /// Recent redirects, by slot.
    redirects: HashMap<u16, (HostPort, Instant)>,
}

/// The changes that a layout made.
#[derive(Default)]
pub(super) struct Change {
    pub(super) moved: Option<Moved>,
    /// The servers that own no slot any more.
    pub(super) retired: Vec<Arc<Server>>,
    /// The node that reported the layout does not know of a move yet.
    pub(super) is_behind: bool,
}

impl Owners {
    pub(super) fn none() -> Self {
        Self {
            by_slot: vec![None; usize::from(SLOTS)],
            servers: HashMap::new(),
            replicas: Vec::new(),
            redirects: HashMap::new(),
        }
    }

    pub(super) fn owner_of(&self, slot: u16) -> Option<&Arc<Server>> {
        self.by_slot.get(usize::from(slot))?.as_ref()
    }

    /// Every known master that owns a slot, and the nodes that ASK redirects have named.
    pub(super) fn masters(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.servers.values()
    }

    /// Every known node, replicas included.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &HostPort> {
        self.servers.keys().chain(&self.replicas)
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

    /// Applies the layout that a node reported when asked at `asked`.
    pub(super) fn learn(
        &mut self,
        layout: SlotLayout,
        asked: Instant,
        make: MakeServer<'_>,
    ) -> Change {
        self.forget_old_redirects(asked);
        let mut change = Change::default();
        let redirects = self.redirects.clone();
        for (slots, address) in &layout.masters {
            let master = self.at(address, make);
            // A slot without a reported owner stays: its last owner redirects calls if necessary.
            for slot in slots.clone() {
                let redirect = redirects.get(&slot);
                let server = redirect.map(|(address, _)| self.at(address, make));
                let server = server.as_ref().unwrap_or(&master);
                // The node does not know of this move yet; other slots may have moved with it.
                change.is_behind |= !Arc::ptr_eq(server, &master);
                self.assign(slot, server, &mut change.moved);
            }
        }
        change.retired = self.retire();
        if !change.retired.is_empty() {
            // Followers must stop using a retired server even if all its slots moved earlier.
            change.moved.get_or_insert_with(Moved::none);
        }
        self.replicas = layout.replicas;
        change
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
            && owner.replace(Arc::clone(server)).is_some()
        {
            moved.get_or_insert_with(Moved::none).note(slot);
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

    fn layout() -> SlotLayout {
        SlotLayout {
            masters: vec![(0..=SLOTS - 1, ("127.0.0.1".into(), 1))],
            replicas: Vec::new(),
        }
    }

    /// The slot was moved there and back, or the redirect came from a node of another cluster that
    /// now has the address of a node of this one.
    #[test]
    fn slot_returns_to_the_owner_that_nodes_report_when_a_redirect_is_old() {
        let mut owners = Owners::none();
        let asked = Instant::START.after(Duration::from_secs(1));
        owners.learn(layout(), asked, &server);
        let owner = Arc::clone(owners.owner_of(7).unwrap());
        let (elsewhere, moved) = owners.redirected(7, ("127.0.0.1".into(), 2), asked, &server);
        assert!(moved.is_some());
        for (after, expected) in [(GOSSIP / 2, &elsewhere), (GOSSIP, &owner)] {
            owners.learn(layout(), asked.after(after), &server);
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
        owners.learn(layout(), asked, &server);
        let named = owners.at(&("127.0.0.1".into(), 2), &server);
        let change = owners.learn(layout(), asked, &server);
        assert!(Arc::ptr_eq(&change.retired[0], &named));
        assert_eq!(owners.masters().count(), 1);
    }
}
