//! Servers in use, each with the client's subscriptions there.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::holder_id::HolderId;
use crate::lease::release::Release;
use crate::name::{Name, NameTable};
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
    /// The number of pending releases of each lease: such a lease in Redis has no holder.
    releasing: Mutex<HashMap<HolderId, usize>>,
    /// The names with leases whose acquire or release got no reply, each with a mark. The releases
    /// of these leases share the mark; each drops it at its first answer.
    unanswered: Mutex<NameTable<Weak<()>>>,
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

    /// Returns the endpoint of `server`, if there is one.
    pub(crate) fn known(&self, server: &Arc<Server>) -> Option<Arc<Endpoint>> {
        let endpoints = self.endpoints.lock();
        let mut endpoints = endpoints.iter();
        endpoints
            .find(|endpoint| Arc::ptr_eq(&endpoint.server, server))
            .cloned()
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

    /// Returns the number of servers with a confirmed subscription to `channel`.
    pub(crate) fn subscribed(&self, channel: &[u8]) -> usize {
        let endpoints = self.endpoints.lock();
        let subscribed = endpoints
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
    use crate::clock::Instant;
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
