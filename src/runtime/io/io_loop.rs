//! The io thread: renews leases in batches, repeats releases until their effect is certain, and
//! probes the subscriber.
//!
//! ```text
//!              a request, or something is due
//!   +---------+ ----------------------------> +---------+
//!   | waiting |                               | writing |
//!   +---------+ <---------------------------- +---------+
//!        |                all is written           |
//!        | Retire                                  | Stop: after a last write of all that is left
//!        v                                         v
//!   +----------+      RETIRE_AFTER, or Stop    +-------+
//!   | retiring | ----------------------------> | ended |
//!   +----------+  (it still writes meanwhile)  +-------+
//! ```

use std::mem;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{after, never, select};

use crate::clock::{Instant, nap};
use crate::lease::releases::Releases;
use crate::logging::contain;
use crate::protocol::answer::Answer;
use crate::redis::{Cap, Fault};
use crate::runtime::endpoint::Endpoint;
use crate::runtime::io::IoRequest;
use crate::runtime::io::job::{IoJob, forward_moved};
use crate::runtime::io::recovery::Recovery;
use crate::runtime::io::renewal::settle_renewal;
use crate::runtime::io::writer::{Writer, writes};
use crate::runtime::state::Runtime;

/// How often the subscriber is probed, while any caller waits.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// How long after its server was replaced the thread still passes jobs on to the new server.
const RETIRE_AFTER: Duration = Duration::from_secs(2);

/// The work of the thread.
#[derive(Default)]
struct IoLoop {
    writer: Writer,
    releases: Releases,
    probe_at: Option<Instant>,
    /// When the thread ends, if its server was replaced.
    end_at: Option<Instant>,
    recovery: Recovery,
    /// The subscriber thread must be woken. One message is enough for several requests.
    wakes_subscriber: bool,
    /// When counters are sent next.
    stats_at: Option<Instant>,
}

pub(in crate::runtime) fn run(runtime: &Runtime, endpoint: &Endpoint) {
    IoLoop::default().run(runtime, endpoint);
}

impl IoLoop {
    fn run(mut self, runtime: &Runtime, endpoint: &Endpoint) {
        self.recovery = Recovery::begin(endpoint.server.member.as_ref());
        let mut stopping = false;
        self.stats_at = runtime.shared_stats.first();
        // Another thread may pass a release on to this one after `Stop`.
        while !(stopping && endpoint.io.end()) {
            let mut jobs = Vec::new();
            let mut request = self.wait(runtime, endpoint);
            while let Some(next) = request {
                stopping |= self.accept(next, &mut jobs);
                request = endpoint.io.requests.try_recv().ok();
            }
            // A subscriber that must end is woken by the thread that stops it.
            if mem::take(&mut self.wakes_subscriber) && !stopping {
                let until = Instant::now().after(endpoint.server.command_timeout());
                (endpoint.subscriber).wake(&endpoint.server, b"subscribe", until);
            }
            if let Some(member) = &endpoint.server.member {
                let left = member.tasks.try_iter();
                let releases =
                    left.filter_map(|task| self.recovery.take(runtime, endpoint, member, task));
                releases.for_each(|release| self.releases.push(release, Instant::now()));
            }
            let is_retiring = self.end_at.is_some();
            self.take_due_releases(runtime, &mut jobs, stopping || is_retiring);
            stopping |= self.end_at.is_some_and(|at| at <= Instant::now()) && endpoint.io.end();
            forward_moved(runtime, endpoint, &mut self.releases, &mut jobs);
            let delta = runtime.stats_due(endpoint, &mut self.stats_at, stopping);
            jobs.extend(delta.map(IoJob::AddStats));
            for next in writes(jobs) {
                let releases = &mut self.releases;
                self.writer
                    .write(runtime, endpoint, next, |job, sent, answer| {
                        settle(releases, runtime, endpoint, job, sent, answer);
                    });
            }
            contain(|| self.probe(runtime, endpoint));
            if stopping {
                // Reads all unread replies: closing a connection that has some resets it. Packets
                // that the network has lost are then not sent again, and the release of the last
                // lease may be among them.
                self.recovery.read_now();
            }
            contain(|| self.recovery.run_due(runtime, endpoint));
        }
        for id in self.releases.unconfirmed() {
            runtime.note_unconfirmed(id.clone(), 1);
        }
    }

    /// Begins the work on a request, or adds it to `jobs`. Returns true if the thread must end.
    fn accept(&mut self, request: IoRequest, jobs: &mut Vec<IoJob>) -> bool {
        match request {
            IoRequest::Renew(parts) => jobs.extend(parts.into_iter().map(IoJob::Renew)),
            IoRequest::Release(release) => self.releases.push(release, Instant::now()),
            IoRequest::WakeSubscriber => self.wakes_subscriber = true,
            IoRequest::Probe => self.probe_at = self.probe_at.or(Some(Instant::START)),
            IoRequest::Retire => {
                self.end_at
                    .get_or_insert_with(|| Instant::now().after(RETIRE_AFTER));
            }
            IoRequest::Stop => return true,
        }
        false
    }

    /// Waits for a request. Returns `None` when other work is due, or after a task of the quorum.
    fn wait(&mut self, runtime: &Runtime, endpoint: &Endpoint) -> Option<IoRequest> {
        let requests = &endpoint.io.requests;
        let releases = self.releases.next();
        let next = releases
            .into_iter()
            .chain(self.probe_at)
            .chain(self.end_at)
            .chain(self.recovery.due())
            .chain(self.stats_at)
            .min();
        let pause = next.map(|at| nap(Instant::now(), at));
        let Some(member) = &endpoint.server.member else {
            return match pause {
                None => requests.recv().ok(),
                Some(pause) => requests.recv_timeout(pause).ok(),
            };
        };
        let pause_over = pause.map_or_else(never, after);
        select! {
            recv(requests) -> request => request.ok(),
            recv(member.tasks) -> task => {
                if let Ok(task) = task
                    && let Some(release) = self.recovery.take(runtime, endpoint, member, task)
                {
                    self.releases.push(release, Instant::now());
                }
                None
            },
            recv(pause_over) -> _ => None,
        }
    }

    fn take_due_releases(&mut self, runtime: &Runtime, jobs: &mut Vec<IoJob>, all: bool) {
        let now = Instant::now();
        let over = self.releases.take_expired(now);
        over.into_iter()
            .for_each(|release| runtime.endpoints.forget_release(release));
        let due = self.releases.take_due(now, all);
        jobs.extend(due.into_iter().map(IoJob::Release));
    }

    /// Publishes, if a probe is due, a message that the subscriber must receive within a second.
    fn probe(&mut self, runtime: &Runtime, endpoint: &Endpoint) {
        let now = Instant::now();
        if runtime.is_closed() {
            // A closed client needs no probe. If one stayed due, the thread would not sleep.
            self.probe_at = None;
        }
        if self.probe_at.is_none_or(|at| at > now) {
            return;
        }
        let is_used = || endpoint.subscriber.used_name().is_some();
        if !is_used() {
            endpoint.io.probing.store(false, Ordering::SeqCst);
            // A caller that found the flag still set is registered as a user by now: check again.
            if !is_used() {
                self.probe_at = None;
                return;
            }
            endpoint.io.probing.store(true, Ordering::SeqCst);
        }
        self.probe_at = Some(now.after(PROBE_EVERY));
        endpoint.subscriber.probe(&endpoint.server);
        if runtime.deployment.slot_map().is_some()
            && let Some(name) = endpoint.subscriber.used_name()
        {
            // A master that was demoted by a planned failover still delivers all messages. Only a
            // command on a key is redirected, and so reports the slot's new owner.
            let keys = runtime.keys(name);
            let until = now.after(endpoint.server.command_timeout());
            let _ = runtime.deployment.call(keys.inspect(), until, Cap::Exempt);
        }
    }
}

fn settle(
    releases: &mut Releases,
    runtime: &Runtime,
    endpoint: &Endpoint,
    job: IoJob,
    sent: Instant,
    answer: Result<Answer, Fault>,
) {
    match job {
        IoJob::Renew(part) => settle_renewal(runtime, endpoint, part, sent, answer),
        IoJob::AddStats(delta) => runtime.shared_stats.settle(&delta, answer),
        IoJob::Release(batch) => {
            let over = releases.settle(&batch, answer);
            over.into_iter()
                .for_each(|release| runtime.endpoints.forget_release(release));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use support::{Server, eventually, ms};

    use super::*;
    use crate::runtime::tests::runtime_of;

    /// If the server hangs, each message would cost the thread a command timeout.
    #[test]
    fn one_message_serves_all_requests_to_wake_the_subscriber() {
        let server = Server::start();
        let runtime = runtime_of(&server.url());
        let endpoint = runtime.endpoints.of(&runtime.deployment.servers()[0]);
        let request = |request| assert!(endpoint.io.send(request).is_ok());
        for _ in 0..20 {
            request(IoRequest::WakeSubscriber);
        }
        let ended = thread::spawn({
            let (runtime, endpoint) = (Arc::clone(&runtime), Arc::clone(&endpoint));
            move || IoLoop::default().run(&runtime, &endpoint)
        });
        eventually(ms(60_000), || server.calls(&["publish"]) > 0);
        request(IoRequest::Stop);
        ended.join().unwrap();
        assert_eq!(server.calls(&["publish"]), 1);
    }

    /// A shutdown closes the client first, and ends the threads only after the replies to the
    /// releases.
    #[test]
    fn no_probe_stays_due_once_the_client_is_closed() {
        let runtime = runtime_of("redis://127.0.0.1:1");
        let endpoint = runtime.endpoints.of(&runtime.deployment.servers()[0]);
        let mut io_loop = IoLoop {
            probe_at: Some(Instant::START),
            recovery: Recovery::with_probe_due(),
            ..IoLoop::default()
        };
        runtime.close();
        io_loop.probe(&runtime, &endpoint);
        io_loop.recovery.run_due(&runtime, &endpoint);
        assert_eq!(io_loop.probe_at, None);
        assert_eq!(io_loop.recovery.due().count(), 0);
    }
}
