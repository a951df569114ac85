//! Servers in use, each with the thread that listens to it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::lease::release::Release;
use crate::name::{Name, NameTable};
use crate::redis::{Server, ServerHealth};
use crate::runtime::subscriber::Subscriber;
use crate::sync::Mutex;

/// One server and its own subscriber thread, so that a server that hangs delays no other.
pub(crate) struct Endpoint {
    pub(crate) server: Arc<Server>,
    /// The health of the server as renewals find it.
    pub(crate) renewals: ServerHealth,
    pub(crate) subscriber: Subscriber,
}

impl Endpoint {
    fn new(server: Arc<Server>) -> Self {
        Self {
            server,
            renewals: ServerHealth::new(0),
            subscriber: Subscriber::default(),
        }
    }

    /// Tells the thread to end. Waking it takes until `until` at most.
    pub(crate) fn stop(&self, until: Instant) {
        self.subscriber.stop(&self.server, until);
    }

    fn is_finished(&self) -> bool {
        self.subscriber.worker.is_finished()
    }

    /// Waits for the thread; returns false if it still runs at `until`.
    pub(crate) fn join(&self, until: Instant) -> bool {
        self.subscriber.worker.join(until)
    }
}

#[derive(Default)]
struct EndpointList {
    all: Vec<Arc<Endpoint>>,
    /// The client ends: an endpoint that is created from now on must end at once.
    is_closed: bool,
}

/// All servers in use.
#[derive(Default)]
pub(crate) struct Endpoints {
    endpoints: Mutex<EndpointList>,
    /// The number of pending releases of each lease: such a lease in Redis has no holder.
    releasing: Mutex<HashMap<HolderId, usize>>,
    /// The names with leases whose acquire or release got no reply, each with a mark. The releases
    /// of these leases share the mark; each drops it at its first answer.
    unanswered: Mutex<NameTable<Weak<()>>>,
    /// Locked while a subscription is confirmed, so that confirmations are counted one by one.
    pub(crate) confirming: Mutex<()>,
}

impl Endpoints {
    /// Returns the endpoint of `server`, and creates it if there is none.
    pub(crate) fn of(&self, server: &Arc<Server>) -> Arc<Endpoint> {
        if let Some(endpoint) = self.known(server) {
            return endpoint;
        }
        let is = |endpoint: &&Arc<Endpoint>| Arc::ptr_eq(&endpoint.server, server);
        let mut endpoints = self.endpoints.lock();
        // Another thread may have created it between the two locks.
        if let Some(endpoint) = endpoints.all.iter().find(is) {
            return Arc::clone(endpoint);
        }
        let endpoint = Arc::new(Endpoint::new(Arc::clone(server)));
        if endpoints.is_closed {
            // In a cluster, a call that was in progress at the shutdown may get a refusal after it,
            // and then subscribe. The new subscriber is not up, so `stop` does not block.
            endpoint.stop(Instant::START);
        }
        endpoints.all.push(Arc::clone(&endpoint));
        drop(endpoints);
        if server.is_retired() {
            // The server was replaced since the caller looked it up, and `sweep` may have run
            // before this endpoint existed.
            endpoint.subscriber.retire();
        }
        endpoint
    }

    /// Returns the endpoint of `server`, if there is one.
    pub(crate) fn known(&self, server: &Arc<Server>) -> Option<Arc<Endpoint>> {
        let endpoints = self.endpoints.lock();
        let mut endpoints = endpoints.all.iter();
        endpoints
            .find(|endpoint| Arc::ptr_eq(&endpoint.server, server))
            .cloned()
    }

    /// Tells the threads of replaced servers to end, and removes the endpoints whose threads have
    /// ended.
    pub(crate) fn sweep(&self) {
        for endpoint in self.all() {
            if endpoint.server.is_retired() {
                endpoint.subscriber.retire();
            }
        }
        let is_over =
            |endpoint: &mut Arc<Endpoint>| endpoint.server.is_retired() && endpoint.is_finished();
        let over: Vec<_> = self.endpoints.lock().all.extract_if(.., is_over).collect();
        // Closes connections, so not under the lock.
        drop(over);
    }

    pub(crate) fn all(&self) -> Vec<Arc<Endpoint>> {
        self.endpoints.lock().all.clone()
    }

    /// Returns all endpoints, for the caller to end. Those that are created later end at once.
    pub(crate) fn close(&self) -> Vec<Arc<Endpoint>> {
        let mut endpoints = self.endpoints.lock();
        endpoints.is_closed = true;
        endpoints.all.clone()
    }

    /// Returns the number of servers with a confirmed subscription to `channel`.
    pub(crate) fn subscribed(&self, channel: &[u8]) -> usize {
        let endpoints = self.endpoints.lock();
        let subscribed = endpoints
            .all
            .iter()
            .filter(|endpoint| endpoint.subscriber.is_subscribed(channel));
        subscribed.count()
    }

    pub(crate) fn note_release(&self, id: &HolderId) {
        *self.releasing.lock().entry(id.clone()).or_default() += 1;
    }

    pub(crate) fn forget_release(&self, mut release: Release) {
        let mut releasing = self.releasing.lock();
        if let Some(open) = releasing.get_mut(&release.id) {
            *open -= 1;
            if *open == 0 {
                releasing.remove(&release.id);
            }
        }
        drop(releasing);
        drop(release.unanswered.take());
        let name = release.keys.key(0).name;
        let mut unanswered = self.unanswered.lock();
        if unanswered.get(name).is_some_and(is_answered) {
            unanswered.remove(name);
        }
    }

    /// Records, until its first answer, the release of a lease whose acquire or release got no
    /// reply.
    pub(crate) fn note_unanswered(&self, release: &mut Release) {
        if release.keys.is_split() {
            // Needs no mark: a refusal because of such a set's lease names its holder id, which
            // `is_releasing` finds.
            return;
        }
        let mut unanswered = self.unanswered.lock();
        if unanswered.len() == unanswered.capacity() {
            // Removes names whose last mark was dropped after `forget_release` had run.
            unanswered.retain(|_, mark| !is_answered(mark));
        }
        let mark = (unanswered.entry(release.keys.key(0).name.clone())).or_default();
        let shared = mark.upgrade().unwrap_or_default();
        *mark = Arc::downgrade(&shared);
        release.unanswered = Some(shared);
    }

    /// Returns whether a lease whose acquire or release got no reply may still hold the name.
    pub(crate) fn has_unanswered(&self, name: &Name) -> bool {
        let unanswered = self.unanswered.lock();
        unanswered.get(name).is_some_and(|mark| !is_answered(mark))
    }

    /// Returns true if the value of a lock key is a lease that has a pending release.
    pub(crate) fn is_releasing(&self, value: &[u8]) -> bool {
        let releasing = self.releasing.lock();
        // Nearly always empty; the value is then not parsed.
        !releasing.is_empty()
            && HolderId::parse(value).is_some_and(|id| releasing.contains_key(&id))
    }

    /// Returns the leases that are being released, for a command on `name` that is sent now.
    pub(crate) fn being_released(&self, name: &Name) -> BeingReleased {
        BeingReleased {
            ids: self.releasing.lock().keys().cloned().collect(),
            has_unanswered: self.has_unanswered(name),
        }
    }
}

/// The leases that a client was releasing when it sent a command. The command may have met one of
/// them although its release was answered before the command.
#[derive(Debug)]
pub(crate) struct BeingReleased {
    ids: Vec<HolderId>,
    has_unanswered: bool,
}

impl BeingReleased {
    /// Returns true if the value of a lock key is one of these leases.
    pub(crate) fn contains(&self, value: &[u8]) -> bool {
        self.ids.iter().any(|id| id.as_str().as_bytes() == value)
    }

    /// Returns whether a lease whose acquire or release had got no reply could hold the name.
    pub(crate) fn has_unanswered(&self) -> bool {
        self.has_unanswered
    }
}

fn is_answered(mark: &Weak<()>) -> bool {
    mark.strong_count() == 0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use support::ms;

    use super::*;
    use crate::lease::held::tests::held_for_an_hour;
    use crate::protocol::keys::Keys;
    use crate::protocol::mutex::MutexKeys;
    use crate::runtime::tests::runtime_of;

    const LONG: Duration = ms(60_000);

    /// The thread that sends a release still has it when the reply to its last part arrives.
    #[test]
    fn answered_releases_leave_nothing_behind() {
        let endpoints = Endpoints::default();
        for n in 0..1_000 {
            let name = Name::from(n.to_string());
            let keys = MutexKeys::of(Keys::new(name.clone(), "lock:", "lock_release:"));
            let end = Instant::now().after(LONG);
            let mut release = Release::undo(keys, HolderId::fresh("o"), end);
            endpoints.note_unanswered(&mut release);
            endpoints.note_release(&release.id);
            endpoints.forget_release(release.clone());
            assert!(endpoints.has_unanswered(&name));
            drop(release);
            assert!(!endpoints.has_unanswered(&name));
        }
        assert!(endpoints.unanswered.lock().len() < 100);
    }

    /// A call gets no reply, and the client is shut down before the call gives up.
    #[test]
    fn undo_is_sent_after_the_threads_have_ended() {
        let server = support::Server::start();
        let runtime = runtime_of(&server.url());
        runtime.start().unwrap();
        let end = Instant::now().after(LONG);
        runtime.close();
        runtime.engine.stop();
        assert!(runtime.engine.worker.join(end));

        let hold = held_for_an_hour(Instant::now());
        let mut set = redis::cmd("SET");
        set.arg("lock:a").arg(hold.id.as_str());
        set.exec(&mut server.connection()).unwrap();
        runtime.release(Release::undo(Arc::clone(&hold.keys), hold.id.clone(), end));
        assert_eq!(server.get("lock:a"), None);
    }
}
