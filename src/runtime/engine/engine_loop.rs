//! The engine's loop: tells losses, renews leases, repeats releases until their effect is certain,
//! sends counters, and probes subscribers.
//!
//! ```text
//!            woken, something is due, or a socket is ready
//!   +--------+ ------------------------------------------> +---------+
//!   | asleep |                                             | working |
//!   +--------+ <------------------------------------------ +---------+
//!                nothing more is possible without waiting       | stop, and everything has ended
//!                                                               v
//!                                                           +-------+
//!                                                           | ended |
//!                                                           +-------+
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::clock::{Instant, nap};
use crate::lease::held::HeldLease;
use crate::lease::release::Release;
use crate::lease::releases::Releases;
use crate::lease::status::RenewalRequest;
use crate::logging::{self, contain};
use crate::protocol::probe::Probe;
use crate::redis::{Fault, Server};
use crate::runtime::engine::pipes::{Outcome, Pipes};
use crate::runtime::engine::recovery::Recovery;
use crate::runtime::engine::renewal::settle_renewal;
use crate::runtime::engine::renewal_round::{RenewalPart, RenewalRound};
use crate::runtime::engine::work::{Command, Work};
use crate::runtime::state::Runtime;

/// How often the subscribers are probed, while any caller waits.
const PROBE_EVERY: Duration = Duration::from_secs(1);

struct EngineLoop<'a> {
    runtime: &'a Runtime,
    pipes: Pipes,
    /// The pending releases: one list, or one for each server of a quorum.
    releases: Vec<Releases>,
    /// For each server of a quorum.
    recoveries: Vec<Recovery>,
    probe_at: Option<Instant>,
    /// When counters are sent next.
    stats_at: Option<Instant>,
    is_stopping: bool,
}

pub(in crate::runtime) fn run(runtime: &Runtime) {
    run_or_close(runtime, || EngineLoop::new(runtime).run());
}

/// Runs the engine. If it panics, closes the client, and each lease counts as lost: nobody would
/// renew it.
fn run_or_close(runtime: &Runtime, engine: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(engine)).is_ok() {
        return;
    }
    runtime.close();
    runtime.engine.abort();
    runtime.waiters.wake_all();
    for hold in runtime.lose_all() {
        contain(move || runtime.announce_loss(&hold));
    }
    logging::error!("the engine of a client has panicked: the client is closed");
}

impl<'a> EngineLoop<'a> {
    fn new(runtime: &'a Runtime) -> Self {
        let waker = Waker::from(Arc::clone(&runtime.engine.wake));
        let mut recoveries = Vec::new();
        for server in runtime.deployment.fixed() {
            if let Some(member) = &server.member {
                member.wake_with(waker.clone());
                recoveries.push(Recovery::new(Arc::clone(server)));
            }
        }
        let mut releases = Vec::new();
        releases.resize_with(runtime.deployment.size().all, Releases::default);
        Self {
            runtime,
            pipes: Pipes::new(waker),
            releases,
            recoveries,
            probe_at: None,
            stats_at: runtime.shared_stats.first(),
            is_stopping: false,
        }
    }

    fn run(mut self) {
        loop {
            let now = Instant::now();
            self.take_queued(now);
            self.renew_due(now);
            self.release_due(now);
            self.send_stats(now);
            contain(|| self.probe_subscribers(now));
            self.recover(now);
            for outcome in self.pipes.turn(&self.runtime.deployment, now) {
                contain(|| self.settle(outcome));
            }
            if self.is_stopping && self.is_done(now) && self.runtime.engine.end() {
                break;
            }
            self.sleep();
        }
        for id in self.releases.iter().flat_map(Releases::unconfirmed) {
            self.runtime.note_unconfirmed(id.clone(), 1);
        }
    }

    fn take_queued(&mut self, now: Instant) {
        let queued = self.runtime.engine.take();
        for (index, release) in queued.releases {
            self.push_release(index, release, now);
        }
        if self.runtime.engine.is_probing() {
            self.probe_at.get_or_insert(now);
        }
        if queued.is_stopping && !self.is_stopping {
            self.is_stopping = true;
            self.releases.iter_mut().for_each(Releases::hasten);
            self.stats_at = self.stats_at.map(|_| now);
            // Closing a connection with unread replies resets it. Packets that the network has lost
            // are then not sent again, and the release of the last lease may be among them.
            self.recoveries.iter_mut().for_each(Recovery::read_now);
        }
    }

    fn push_release(&mut self, index: usize, release: Release, now: Instant) {
        if let Some(releases) = self.releases.get_mut(index) {
            releases.push(release, now);
        }
    }

    fn push(&mut self, server: &Arc<Server>, work: Work, now: Instant) {
        let until = now.after(server.command_timeout());
        self.pipes.push(server, Command::new(work, until));
    }

    /// Tells losses, and sends the renewals that are due.
    fn renew_due(&mut self, now: Instant) {
        let due = self.runtime.timer.take_due(now);
        // The channels of all leases come first: the rest takes time.
        for hold in &due {
            hold.status(now);
        }
        for hold in due {
            contain(|| {
                if let Some(request) = hold.lease(|lease| lease.begin_due_renewal(now)) {
                    self.renew(&hold, request, now);
                }
                self.runtime.reschedule(&hold);
                // The last reference may own a user's closure, whose drop may panic.
                drop(hold);
            });
        }
    }

    fn renew(&mut self, hold: &Arc<HeldLease>, request: RenewalRequest, now: Instant) {
        let deployment = &self.runtime.deployment;
        let keys = hold.renewed_keys();
        let size = self.runtime.size_of(keys);
        let round = Arc::new(RenewalRound::new(Arc::clone(hold), request, size));
        for keys in keys.parts() {
            for server in deployment.owners_of(keys.key(0)).0 {
                let part = RenewalPart::new(&round, keys);
                self.push(&server, Work::Renew(part), now);
            }
        }
    }

    fn release_due(&mut self, now: Instant) {
        for index in 0..self.releases.len() {
            let Some(releases) = self.releases.get_mut(index) else {
                continue;
            };
            for release in releases.take_expired(now) {
                self.runtime.endpoints.forget_release(release);
            }
            for batch in releases.take_due(now) {
                let owners = self.runtime.deployment.owners_of(batch.keys.key(0)).0;
                if let Some(server) = owners.get(index) {
                    self.push(server, Work::Release(index, batch), now);
                }
            }
        }
    }

    fn send_stats(&mut self, now: Instant) {
        if let Some(delta) = (self.runtime).stats_due(&mut self.stats_at, now, self.is_stopping) {
            let server = self.runtime.stats_server();
            self.push(&server, Work::AddStats(delta), now);
        }
    }

    /// Publishes, if that is due, messages that the subscribers must receive within a second.
    fn probe_subscribers(&mut self, now: Instant) {
        if self.runtime.is_closed() {
            // A closed client needs no probe. If one stayed due, the thread would not sleep.
            self.probe_at = None;
        }
        if self.probe_at.is_none_or(|at| at > now) {
            return;
        }
        let engine = &self.runtime.engine;
        let used = || -> Vec<_> {
            let all = self.runtime.endpoints.all().into_iter();
            all.filter_map(|it| it.subscriber.used_name().map(|name| (it, name)))
                .collect()
        };
        let mut endpoints = used();
        if endpoints.is_empty() {
            engine.set_probing(false);
            // A caller that found the flag still set is registered as a user by now: check again.
            endpoints = used();
            if endpoints.is_empty() {
                self.probe_at = None;
                return;
            }
            engine.set_probing(true);
        }
        self.probe_at = Some(now.after(PROBE_EVERY));
        for (endpoint, name) in endpoints {
            let server = Arc::clone(&endpoint.server);
            if endpoint.subscriber.begin_probe(&server, now) {
                self.push(&server, Work::ProbeSubscriber(endpoint, now), now);
            }
            if self.runtime.deployment.slot_map().is_some() {
                let keys = self.runtime.keys(name);
                self.push(&server, Work::AskOwner(keys), now);
            }
        }
    }

    /// Works for the servers of a quorum.
    fn recover(&mut self, now: Instant) {
        for index in 0..self.recoveries.len() {
            let Some(recovery) = self.recoveries.get_mut(index) else {
                continue;
            };
            let server = Arc::clone(&recovery.server);
            let Some(member) = &server.member else {
                continue;
            };
            let releases = recovery.take_tasks(self.runtime, member, now);
            if recovery.turn(self.runtime.is_closed(), now) {
                self.push(&server, Work::ProbeMember(index, Probe::of_server()), now);
            }
            for release in releases {
                self.push_release(member.index, release, now);
            }
        }
    }

    fn settle(&mut self, outcome: Outcome) {
        let Outcome {
            work,
            server,
            sent,
            end,
        } = outcome;
        let runtime = self.runtime;
        if let Work::ProbeMember(index, _) = work {
            if let Some(recovery) = self.recoveries.get_mut(index) {
                recovery.probed(runtime, sent, server.probed(end.map(drop)));
            }
            return;
        }
        let answer = end.map_err(Fault::from);
        match work {
            Work::Renew(part) => {
                let endpoint = runtime.endpoints.of(&server);
                settle_renewal(runtime, &endpoint, part, sent, answer);
            }
            Work::Release(index, batch) => {
                if let Some(releases) = self.releases.get_mut(index) {
                    for release in releases.settle(&batch, answer) {
                        runtime.endpoints.forget_release(release);
                    }
                }
            }
            Work::AddStats(delta) => runtime.shared_stats.settle(&delta, answer),
            Work::ProbeSubscriber(endpoint, begun) => {
                endpoint.subscriber.probed(&server, begun, answer);
            }
            Work::AskOwner(_) | Work::ProbeMember(..) => {}
        }
    }

    fn is_done(&self, now: Instant) -> bool {
        let is_due = |releases: &Releases| releases.next().is_some_and(|at| at <= now);
        !self.pipes.is_busy()
            && !self.releases.iter().any(is_due)
            && !self.recoveries.iter().any(Recovery::is_reading)
    }

    /// Sleeps until something is due, a socket is ready, or another thread wakes this one.
    fn sleep(&mut self) {
        let now = Instant::now();
        let releases = self.releases.iter().filter_map(Releases::next);
        let recoveries = self.recoveries.iter().map(Recovery::next);
        let next = releases
            .chain(recoveries)
            .chain(self.probe_at)
            .chain(self.stats_at)
            .chain([self.pipes.next(now)]);
        let next = next.min().unwrap_or(Instant::NEVER);
        let until = self.runtime.timer.begin_sleep(now, next);
        let left = (until < Instant::NEVER).then(|| nap(now, until));
        let drained = self.recoveries.iter().filter_map(Recovery::draining);
        let drained = drained.map(|draining| (draining.socket(), false));
        let wake = &self.runtime.engine.wake;
        let (_, ready) = wake.wait(self.pipes.sockets().chain(drained), left, "engine");
        self.runtime.timer.end_sleep();
        wake.drain();
        self.pipes.note_ready(ready);
    }
}

#[cfg(test)]
mod tests {
    use support::Server;

    use super::*;
    use crate::lease::held::tests::held_for_an_hour;
    use crate::lease::status::LeaseStatus;
    use crate::lost::Lost;
    use crate::runtime::tests::runtime_of;

    #[test]
    fn panic_closes_the_client_and_tells_every_guard() {
        let runtime = runtime_of("redis://127.0.0.1:1");
        let now = Instant::now();
        let hold = held_for_an_hour(now);
        let lost = hold.listen(hold.token(), now);
        assert!(runtime.timer.schedule(&hold, now));
        run_or_close(&runtime, || panic!("a bug"));
        assert_eq!(hold.status(now), LeaseStatus::Lost(Lost::ShutDown));
        assert_eq!(lost.try_recv(), Ok(Lost::ShutDown));
        assert!(runtime.is_closed() && !runtime.timer.has_leases());
    }

    /// Nobody repeats it any more.
    #[test]
    fn release_is_sent_by_its_caller_after_a_panic() {
        let server = Server::start();
        let runtime = runtime_of(&server.url());
        run_or_close(&runtime, || panic!("a bug"));
        let now = Instant::now();
        let hold = held_for_an_hour(now);
        let mut set = redis::cmd("SET");
        set.arg("lock:a").arg(hold.id.as_str());
        set.exec(&mut server.connection()).unwrap();
        runtime.release(hold.to_lasting_release(now));
        assert_eq!(server.get("lock:a"), None);
    }

    /// A shutdown closes the client first, and ends the engine only after the replies to the
    /// releases.
    #[test]
    fn no_probe_stays_due_once_the_client_is_closed() {
        let runtime = runtime_of("redis://127.0.0.1:1");
        let mut engine = EngineLoop::new(&runtime);
        let now = Instant::now();
        engine.probe_at = Some(Instant::START);
        let mut recovery = Recovery::with_probe_due(&runtime.deployment.servers()[0]);
        runtime.close();
        engine.probe_subscribers(now);
        assert_eq!(engine.probe_at, None);
        assert!(!recovery.turn(true, now));
        assert_eq!(recovery.next(), Instant::NEVER);
    }
}
