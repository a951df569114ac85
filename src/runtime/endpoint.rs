//! A server in use, with the threads that write to it and listen to it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::clock::Instant;
use crate::error::Error;
use crate::holder::HolderId;
use crate::logging;
use crate::redis::Server;
use crate::runtime::Shared;
use crate::runtime::io::Io;
use crate::runtime::io::acknowledged::AcknowledgedRenewals;
use crate::runtime::io::renewal_round::Paper;
use crate::runtime::subscriber::Subscriber;

/// One server and its threads: one that hangs keeps nobody from the others.
pub(crate) struct Site {
    pub(crate) server: Arc<Server>,
    pub(crate) io: Io,
    acknowledged: AcknowledgedRenewals,
    pub(crate) subscriber: Subscriber,
}

impl Site {
    fn new(server: Arc<Server>) -> Self {
        Self {
            server,
            io: Io::default(),
            acknowledged: AcknowledgedRenewals::default(),
            subscriber: Subscriber::default(),
        }
    }

    /// Begins to end its threads. Telling the subscriber takes until `until` at the most.
    pub(crate) fn stop(&self, until: Instant) {
        self.acknowledged.stop();
        self.io.stop();
        self.subscriber.stop(&self.server, until);
    }

    fn is_through(&self) -> bool {
        self.subscriber.is_through() && self.io.is_through() && self.acknowledged.is_through()
    }

    /// Ends the threads by and by: somebody may be about to send them something.
    fn leave(&self) {
        self.acknowledged.stop();
        self.io.leave();
    }

    /// Asks for renewals: those that replicas must acknowledge on threads of their own.
    pub(in crate::runtime) fn renew(self: &Arc<Self>, shared: &Shared, papers: Vec<Paper>) {
        let mut plain = Vec::new();
        for paper in papers {
            match (paper.ballot.hold.replicas, shared.me.upgrade()) {
                (Some(replicas), Some(me)) => {
                    if let Err((paper, error)) = self.acknowledged.renew(&me, self, replicas, paper)
                    {
                        plain.push(paper);
                        if let Some(error) = error {
                            logging::error!(
                                server = self.server.label();
                                "renewals that wait for replicas delay others: {error}"
                            );
                        }
                    }
                }
                _ => plain.push(paper),
            }
        }
        if !plain.is_empty() {
            self.io.renew(plain);
        }
    }

    /// Waits for its threads; false if one did not end in time.
    pub(crate) fn join(&self, until: Instant) -> bool {
        self.subscriber.join(until) & self.acknowledged.join(until) & self.io.join(until)
    }
}

/// All servers in use.
#[derive(Default)]
pub(crate) struct Sites {
    sites: RwLock<Vec<Arc<Site>>>,
    /// The leases with an undo open, and how many: one of them in Redis is nobody else's hold.
    undoing: Mutex<HashMap<HolderId, usize>>,
    /// Held while a subscription is confirmed.
    pub(crate) confirming: Mutex<()>,
}

impl Sites {
    /// The site of `server`, which is made if there is none yet.
    pub(crate) fn of(&self, server: &Arc<Server>) -> Arc<Site> {
        if let Some(site) = self.known(server) {
            return site;
        }
        let is = |site: &&Arc<Site>| Arc::ptr_eq(&site.server, server);
        let mut sites = self.sites.write();
        // Somebody may have been first.
        if let Some(site) = sites.iter().find(is) {
            return Arc::clone(site);
        }
        let site = Arc::new(Site::new(Arc::clone(server)));
        sites.push(Arc::clone(&site));
        drop(sites);
        if server.is_retired() {
            // It was replaced since it was looked up, and the sweep may have missed what was not there yet.
            site.leave();
        }
        site
    }

    /// The site of `server`, if there is one.
    pub(crate) fn known(&self, server: &Arc<Server>) -> Option<Arc<Site>> {
        let sites = self.sites.read();
        let mut sites = sites.iter();
        sites
            .find(|site| Arc::ptr_eq(&site.server, server))
            .cloned()
    }

    /// Begins to end the threads of the sites whose servers are of no more use, and lets go of those that have none.
    pub(crate) fn sweep(&self) {
        // Told first: one whose threads somebody is about to start counts as over, and they find it when they start.
        for site in self.all() {
            if site.server.is_retired() {
                site.leave();
            }
        }
        let is_over = |site: &mut Arc<Site>| site.server.is_retired() && site.is_through();
        let over: Vec<_> = self.sites.write().extract_if(.., is_over).collect();
        // Closes connections: not under the lock.
        drop(over);
    }

    pub(crate) fn all(&self) -> Vec<Arc<Site>> {
        self.sites.read().clone()
    }

    /// On how many servers releases on `channel` are heard.
    pub(crate) fn hearing(&self, channel: &[u8]) -> usize {
        let sites = self.sites.read();
        let hearing = sites.iter().filter(|site| site.subscriber.hears(channel));
        hearing.count()
    }

    /// Starts the threads that every lease on these servers needs.
    pub(crate) fn start(&self, shared: &Arc<Shared>, servers: &[Arc<Server>]) -> Result<(), Error> {
        for server in servers {
            let site = self.of(server);
            site.io.start(shared, &site)?;
        }
        Ok(())
    }

    pub(crate) fn note_undo(&self, id: &HolderId) {
        *self.undoing.lock().entry(id.clone()).or_default() += 1;
    }

    pub(crate) fn forget_undo(&self, id: &HolderId) {
        let mut undoing = self.undoing.lock();
        if let Some(open) = undoing.get_mut(id) {
            *open -= 1;
            if *open == 0 {
                undoing.remove(id);
            }
        }
    }

    /// Whether a lock key's value is a lease that is being undone.
    pub(crate) fn is_undoing(&self, value: &[u8]) -> bool {
        let undoing = self.undoing.lock();
        // Nearly always empty, and then the value need not be read.
        !undoing.is_empty() && HolderId::parse(value).is_some_and(|id| undoing.contains_key(&id))
    }
}
