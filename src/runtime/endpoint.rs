//! A server in use, with the threads that write to it and listen to it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::clock::Instant;
use crate::holder::HolderId;
use crate::redis::Server;
use crate::runtime::io::Io;
use crate::runtime::io::acknowledged::AcknowledgedRenewals;
use crate::runtime::subscriber::Subscriber;

/// One server and its threads: one that hangs keeps nobody from the others.
pub(crate) struct Endpoint {
    pub(crate) server: Arc<Server>,
    pub(crate) io: Io,
    pub(in crate::runtime) acknowledged: AcknowledgedRenewals,
    pub(crate) subscriber: Subscriber,
}

impl Endpoint {
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

    /// Waits for its threads; false if one did not end in time.
    pub(crate) fn join(&self, until: Instant) -> bool {
        self.subscriber.join(until) & self.acknowledged.join(until) & self.io.join(until)
    }
}

/// All servers in use.
#[derive(Default)]
pub(crate) struct Endpoints {
    endpoints: RwLock<Vec<Arc<Endpoint>>>,
    /// The leases with an undo open, and how many: one of them in Redis is nobody else's hold.
    undoing: Mutex<HashMap<HolderId, usize>>,
    /// Held while a subscription is confirmed.
    pub(crate) confirming: Mutex<()>,
}

impl Endpoints {
    /// The site of `server`, which is made if there is none yet.
    pub(crate) fn of(&self, server: &Arc<Server>) -> Arc<Endpoint> {
        if let Some(endpoint) = self.known(server) {
            return endpoint;
        }
        let is = |endpoint: &&Arc<Endpoint>| Arc::ptr_eq(&endpoint.server, server);
        let mut endpoints = self.endpoints.write();
        // Somebody may have been first.
        if let Some(endpoint) = endpoints.iter().find(is) {
            return Arc::clone(endpoint);
        }
        let endpoint = Arc::new(Endpoint::new(Arc::clone(server)));
        endpoints.push(Arc::clone(&endpoint));
        drop(endpoints);
        if server.is_retired() {
            // It was replaced since it was looked up, and the sweep may have missed what was not there yet.
            endpoint.leave();
        }
        endpoint
    }

    /// The site of `server`, if there is one.
    pub(crate) fn known(&self, server: &Arc<Server>) -> Option<Arc<Endpoint>> {
        let endpoints = self.endpoints.read();
        let mut endpoints = endpoints.iter();
        endpoints
            .find(|endpoint| Arc::ptr_eq(&endpoint.server, server))
            .cloned()
    }

    /// Begins to end the threads of the sites whose servers are of no more use, and lets go of those that have none.
    pub(crate) fn sweep(&self) {
        // Told first: one whose threads somebody is about to start counts as over, and they find it when they start.
        for endpoint in self.all() {
            if endpoint.server.is_retired() {
                endpoint.leave();
            }
        }
        let is_over =
            |endpoint: &mut Arc<Endpoint>| endpoint.server.is_retired() && endpoint.is_through();
        let over: Vec<_> = self.endpoints.write().extract_if(.., is_over).collect();
        // Closes connections: not under the lock.
        drop(over);
    }

    pub(crate) fn all(&self) -> Vec<Arc<Endpoint>> {
        self.endpoints.read().clone()
    }

    /// On how many servers releases on `channel` are heard.
    pub(crate) fn hearing(&self, channel: &[u8]) -> usize {
        let endpoints = self.endpoints.read();
        let hearing = endpoints
            .iter()
            .filter(|endpoint| endpoint.subscriber.hears(channel));
        hearing.count()
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
