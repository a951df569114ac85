//! Servers in use, each with the client's subscriptions there.

use std::sync::Arc;

use crate::redis::{Server, ServerHealth};
use crate::runtime::subscriber::Subscriber;
use crate::runtime::subscriber::thread::SubscriberThread;
use crate::sync::Mutex;

/// One server in use.
pub(crate) struct Endpoint {
    pub(crate) server: Arc<Server>,
    /// The health of the server as renewals find it.
    pub(crate) renewals: ServerHealth,
    pub(crate) subscriber: Subscriber,
}

/// All servers in use, and the thread that listens to them.
#[derive(Default)]
pub(crate) struct Endpoints {
    pub(crate) subscriber_thread: Arc<SubscriberThread>,
    endpoints: Mutex<Vec<Arc<Endpoint>>>,
}

impl Endpoints {
    /// Returns the endpoint of `server`, and creates it if there is none.
    pub(crate) fn of(&self, server: &Arc<Server>) -> Arc<Endpoint> {
        let mut endpoints = self.endpoints.lock();
        let mut known = endpoints.iter();
        if let Some(endpoint) = known.find(|it| Arc::ptr_eq(&it.server, server)) {
            return Arc::clone(endpoint);
        }
        let endpoint = Arc::new(Endpoint {
            server: Arc::clone(server),
            renewals: ServerHealth::new(0),
            subscriber: Subscriber::new(Arc::clone(&self.subscriber_thread)),
        });
        endpoints.push(Arc::clone(&endpoint));
        endpoint
    }

    /// Removes the endpoints of replaced servers.
    pub(crate) fn sweep(&self) {
        let is_over = |endpoint: &mut Arc<Endpoint>| endpoint.server.is_retired();
        let over: Vec<_> = self.endpoints.lock().extract_if(.., is_over).collect();
        // Closes connections, so not under the lock.
        drop(over);
        self.subscriber_thread.wake();
    }

    pub(crate) fn all(&self) -> Vec<Arc<Endpoint>> {
        self.endpoints.lock().clone()
    }
}
