//! The loop of the subscriber thread: it sleeps until a message arrives, another thread wakes it,
//! or something is due, and does what there is to do. It never waits for a server.

use std::sync::Arc;

use crate::clock::Instant;
use crate::runtime::endpoint::Endpoint;
use crate::runtime::state::Runtime;
use crate::runtime::subscriber::link::Link;
use crate::runtime::subscriber::releases::ServerPeer;
use crate::runtime::subscriber::sentinels::{MasterWatch, SentinelPeer};

struct Listener<'a> {
    runtime: &'a Runtime,
    links: Vec<Link>,
    watch: Option<MasterWatch>,
    /// Another thread may have left something to do.
    is_woken: bool,
}

pub(in crate::runtime) fn run(runtime: &Runtime) {
    let sentinels = runtime.deployment.sentinels();
    let links = sentinels
        .into_iter()
        .flat_map(SentinelPeer::all)
        .map(Link::new);
    let mut listener = Listener {
        runtime,
        links: links.collect(),
        watch: sentinels.map(MasterWatch::of),
        is_woken: true,
    };
    while !runtime.endpoints.subscriber_thread.is_stopping() {
        listener.turn();
        listener.sleep();
    }
}

impl Listener<'_> {
    /// Does what there is to do.
    fn turn(&mut self) {
        if self.is_woken {
            self.update();
        }
        for link in &mut self.links {
            if self.is_woken || link.is_ready || link.due() <= Instant::now() {
                link.turn(self.runtime, self.is_woken);
            }
        }
        if let Some(watch) = &mut self.watch {
            watch.turn(self.runtime);
        }
    }

    /// Serves new servers, and ends the connections to those that were replaced.
    fn update(&mut self) {
        let is_retired = |endpoint: &Arc<Endpoint>| endpoint.server.is_retired();
        let links = &mut self.links;
        links.retain(|link| !link.endpoint().is_some_and(is_retired));
        for endpoint in self.runtime.endpoints.all() {
            let is_it = |known| Arc::ptr_eq(known, &endpoint);
            let is_known = links.iter().any(|link| link.endpoint().is_some_and(is_it));
            if !is_known && !is_retired(&endpoint) {
                links.push(Link::new(ServerPeer::of(endpoint)));
            }
        }
    }

    /// Sleeps until a socket is ready, something is due, or another thread wakes this one.
    fn sleep(&mut self) {
        let thread = &self.runtime.endpoints.subscriber_thread;
        let due = self.links.iter().map(Link::due);
        let due = due.chain(self.watch.as_ref().map(MasterWatch::due));
        let due = due.min().unwrap_or(Instant::NEVER);
        let left = (due < Instant::NEVER).then(|| Instant::now().until(due));
        let sockets = self.links.iter().filter_map(Link::socket);
        let (is_woken, ready) = thread.sleep(sockets, left);
        self.is_woken = is_woken;
        let open = self.links.iter_mut().filter(|link| link.socket().is_some());
        open.zip(ready)
            .for_each(|(link, is_ready)| link.is_ready = is_ready);
    }
}
