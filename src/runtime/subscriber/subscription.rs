//! The names whose messages calls wait for, and the servers at which the client is subscribed for
//! them.

use std::sync::Arc;

use crate::clock::Instant;
use crate::error::Error;
use crate::kernel::effects::Effects;
use crate::name::{Name, NameTable};
use crate::protocol::primitive::Primitive;
use crate::runtime::endpoint::Endpoint;
use crate::runtime::state::Runtime;
use crate::sync::Mutex;

/// The table of the names. Its lock comes before that of a [`Subscriber`]'s state.
///
/// [`Subscriber`]: crate::runtime::subscriber::Subscriber
#[derive(Default)]
pub(crate) struct Subscriptions(Mutex<NameTable<Wanted>>);

struct Wanted {
    lock: Arc<dyn Primitive>,
    /// The number of the change that wanted it last.
    change: u64,
    at: Vec<Part>,
}

/// The use of a channel of a name at one server.
struct Part {
    endpoint: Arc<Endpoint>,
    channel: Vec<u8>,
}

impl Runtime {
    /// Receives the messages of a lock from now on, and passes them to the kernel.
    ///
    /// Numbers order the changes of a name: threads can carry them out in the wrong order.
    ///
    /// # Errors
    ///
    /// [`Error::Thread`] or [`Error::Shortage`] if the thread that receives messages cannot be
    /// started. That is tried again while calls wait for the name.
    pub(crate) fn listen(&self, lock: &Arc<dyn Primitive>, change: u64) -> Result<(), Error> {
        if !self.subscribe(lock, change) {
            return Ok(());
        }
        self.engine.probe();
        self.start_subscriber()
    }

    /// Subscribes for a lock, unless nobody waits for it any more. Tells the kernel from which
    /// servers its messages come already.
    fn subscribe(&self, lock: &Arc<dyn Primitive>, change: u64) -> bool {
        let name = lock.key(0).name.clone();
        let (mut live, mut fx) = (Vec::new(), Effects::default());
        {
            let mut table = self.subscriptions.0.lock();
            // Under that lock: the end of this subscription may have been carried out before.
            if !self.kernel.listens(&name) {
                return false;
            }
            let wanted = table.entry(name.clone()).or_insert_with(|| Wanted {
                lock: Arc::clone(lock),
                change,
                at: Vec::new(),
            });
            wanted.change = wanted.change.max(change);
            self.count_messages(&name, true, &mut fx);
            wanted.subscribe(self, &name, &mut live);
        }
        self.carry_out_here(fx);
        for (endpoint, since) in live {
            self.hears(&endpoint, &name, since);
        }
        true
    }

    /// Ends what [`listen`](Self::listen) began under a lower number.
    pub(crate) fn unlisten(&self, name: &Name, change: u64) {
        let mut fx = Effects::default();
        {
            let mut table = self.subscriptions.0.lock();
            if table.get(name).is_some_and(|wanted| wanted.change < change)
                && let Some(wanted) = table.remove(name)
            {
                self.count_messages(name, false, &mut fx);
                end(name, wanted.at);
            }
        }
        self.carry_out_here(fx);
    }

    /// Subscribes at the servers that own the names now: for the moved ones, and those for which
    /// the client is subscribed elsewhere.
    pub(in crate::runtime) fn move_subscriptions(&self, is_moved: impl Fn(&dyn Primitive) -> bool) {
        let mut moved = Vec::new();
        {
            let mut table = self.subscriptions.0.lock();
            for (name, wanted) in table.iter_mut() {
                if !is_moved(&*wanted.lock) && wanted.is_at_owners(self) {
                    continue;
                }
                let mut live = Vec::new();
                wanted.subscribe(self, name, &mut live);
                moved.push((name.clone(), live));
            }
        }
        let names = moved.iter().map(|(name, _)| name);
        self.decide_here(|kernel, fx| kernel.deaf_for(names, Instant::now(), fx));
        for (name, live) in moved {
            for (endpoint, since) in live {
                self.hears(&endpoint, &name, since);
            }
        }
    }

    /// Over a quorum: counts the servers of a name from the beginning, or no more. An entry that
    /// counts on the majority of an earlier subscription learns that it is over.
    fn count_messages(&self, name: &Name, is_wanted: bool, fx: &mut Effects) {
        if !self.deployment.is_quorum() {
            return;
        }
        let mut messages = self.messages.lock();
        if is_wanted {
            messages.want(name);
        } else {
            messages.forget(name);
        }
        (self.kernel).deaf_for(std::iter::once(name), Instant::now(), fx);
    }

    /// Tells the kernel that the messages of a name have arrived from a server since then.
    pub(super) fn hears(&self, endpoint: &Endpoint, name: &Name, since: Instant) {
        self.decide_here(|kernel, fx| {
            let Some(n) = endpoint.server.number else {
                return kernel.listening_since(name, since, Instant::now(), fx);
            };
            let mut messages = self.messages.lock();
            let now = Instant::now();
            if messages.listening(n, name) {
                kernel.listening_since(name, now, now, fx);
            }
        });
    }

    /// Tells the kernel that the messages of these names do not arrive from a server any more.
    pub(super) fn deaf(&self, endpoint: &Endpoint, names: &[Name]) {
        let now = Instant::now();
        self.decide_here(|kernel, fx| {
            let Some(n) = endpoint.server.number else {
                return kernel.deaf_for(names.iter(), now, fx);
            };
            let mut messages = self.messages.lock();
            let deaf = messages.deaf(n);
            kernel.deaf_for(deaf.iter(), now, fx);
        });
    }

    /// A server refuses to publish releases, or does so no more.
    pub(in crate::runtime) fn note_mute(&self, endpoint: &Endpoint, is_mute: bool) {
        let names = endpoint.subscriber.live_names();
        if is_mute {
            return self.deaf(endpoint, &names);
        }
        for name in &names {
            self.hears(endpoint, name, Instant::now());
        }
    }
}

impl Wanted {
    /// Returns whether the servers at which the client is subscribed own the name.
    fn is_at_owners(&self, runtime: &Runtime) -> bool {
        let keys = self.lock.keys();
        let owners = (0..keys.names.len()).flat_map(|n| runtime.deployment.owners_of(keys.key(n)));
        let owners: Vec<_> = owners.map(|owner| Arc::as_ptr(&owner)).collect();
        let at = self
            .at
            .iter()
            .map(|part| Arc::as_ptr(&part.endpoint.server));
        at.eq(owners)
    }

    /// Subscribes at the servers that own the name now. Adds those whose messages arrive already,
    /// and since when: they do if the end of an earlier subscription has not been carried out yet.
    fn subscribe(
        &mut self,
        runtime: &Runtime,
        name: &Name,
        live: &mut Vec<(Arc<Endpoint>, Instant)>,
    ) {
        let before = std::mem::take(&mut self.at);
        let keys = self.lock.keys();
        for n in 0..keys.names.len() {
            let key = keys.key(n);
            for server in runtime.deployment.owners_of(key) {
                let endpoint = runtime.endpoints.of(&server);
                let since = endpoint.subscriber.add_user(key.channel, name, &self.lock);
                live.extend(since.map(|since| (Arc::clone(&endpoint), since)));
                self.at.push(Part {
                    endpoint,
                    channel: key.channel.to_vec(),
                });
            }
        }
        end(name, before);
    }
}

fn end(name: &Name, parts: Vec<Part>) {
    for part in parts {
        part.endpoint.subscriber.remove_user(&part.channel, name);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::clock::Instant;
    use crate::config::Config;
    use crate::kernel::effects::Effects;
    use crate::protocol::keys::Keys;
    use crate::protocol::mutex::MutexKeys;
    use crate::redis::Deployment;
    use crate::runtime::state::Runtime;
    use crate::url::Target;

    fn runtime() -> Arc<Runtime> {
        let config = Config::default();
        let target = Target::parse("redis://127.0.0.1:1").unwrap();
        let deployment = Deployment::new(target, &config).unwrap();
        Runtime::new(config, deployment).unwrap()
    }

    /// The thread stood still, and the last call for the name has ended.
    #[test]
    fn subscription_that_begins_after_its_end_is_none() {
        let runtime = runtime();
        let lock = MutexKeys::of(Keys::new("a".into(), "lock:", "lock_release:"));
        runtime.unlisten(&"a".into(), 8);
        runtime.listen(&lock, 7).unwrap();
        assert!(runtime.subscriptions.0.lock().is_empty());
    }

    /// The thread that carries out the end of the earlier one stands still.
    #[test]
    fn subscription_in_place_of_an_earlier_one_hears_at_once() {
        let (runtime, mut fx) = (runtime(), Effects::default());
        let lock = MutexKeys::of(Keys::new("a".into(), "lock:", "lock_release:"));
        let now = Instant::now();
        let watching = runtime.kernel.watch(&lock, true, now, &mut fx);
        let (lock, change) = fx.listen.pop().expect("the name is watched");
        assert!(runtime.subscribe(&lock, change));
        let endpoint = &runtime.endpoints.all()[0];
        for channel in endpoint.subscriber.state.lock().channels.values_mut() {
            channel.live_since = Some(now);
        }
        assert!(!watching.has_news());
        assert!(runtime.subscribe(&lock, change + 1));
        assert!(watching.has_news());
        runtime.kernel.end_watch(watching, now, &mut fx);
    }
}
