//! The connection on which a thread sends its jobs, several in one write.

use std::iter;

use crate::clock::Instant;
use crate::lease::status::LeaseStatus;
use crate::logging::contain;
use crate::protocol::answer::Answer;
use crate::protocol::script::Call;
use crate::redis::{Cap, Connection, Fault};
use crate::runtime::endpoint::Endpoint;
use crate::runtime::io::job::IoJob;
use crate::runtime::state::Runtime;

/// The most names in one write: their replies must fit into the socket buffers and arrive in time.
const MAX_BATCH: usize = 256;

/// The connection that a thread keeps for its writes. Without one of its own, it borrows one.
#[derive(Default)]
pub(in crate::runtime) struct Writer {
    connection: Option<Connection>,
}

impl Writer {
    /// Sends `jobs` in one write, and passes each reply to `settle`, with the instant of sending.
    /// Drops the renewals of leases that have ended.
    pub(in crate::runtime) fn write(
        &mut self,
        runtime: &Runtime,
        endpoint: &Endpoint,
        mut jobs: Vec<IoJob>,
        mut settle: impl FnMut(IoJob, Instant, Result<Answer, Fault>),
    ) {
        let asked = Instant::now();
        let server = &endpoint.server;
        self.connection
            .take_if(|connection| !server.is_current(connection));
        let mut borrowed = None;
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => match server.borrow(asked.after(server.command_timeout())) {
                Ok(connection) => borrowed.insert(connection).connection(),
                Err(fault) => {
                    for job in jobs {
                        settle(job, asked, Err(fault.clone()));
                    }
                    return;
                }
            },
        };
        let sent = Instant::now();
        // A lease that was lost or released while queued here must not be extended by another ttl.
        let over: Vec<IoJob> = jobs
            .extract_if(.., |job| match job {
                IoJob::Renew(part) => !matches!(part.round.hold.status(sent), LeaseStatus::Held(_)),
                IoJob::Release(_) | IoJob::AddStats(_) => false,
            })
            .collect();
        // A job may own the last reference to a user's closure, whose destructor may panic.
        contain(move || drop(over));
        let until = sent.after(server.command_timeout());
        let follow = |call: Call<'_>| {
            let deployment = &runtime.deployment;
            deployment.call_or_undo(call, until, Cap::Exempt, None)
        };
        if !server.batch(connection, jobs, IoJob::call, follow, settle) {
            self.connection = None;
        } else if let Some(borrowed) = borrowed {
            self.connection = borrowed.keep_or_give_back();
        }
    }
}

/// Divides jobs into writes. All jobs of a write wait for the same replicas; those that wait for
/// none come first.
pub(in crate::runtime) fn writes(mut jobs: Vec<IoJob>) -> impl Iterator<Item = Vec<IoJob>> {
    jobs.sort_by_key(|job| job.replicas().map(|wanted| (wanted.within, wanted.wanted)));
    let mut jobs = jobs.into_iter().peekable();
    iter::from_fn(move || {
        let first = jobs.next()?;
        let (replicas, mut weight) = (first.replicas(), first.weight());
        let mut write = vec![first];
        while let Some(job) = jobs.next_if(|job| {
            weight += job.weight();
            job.replicas() == replicas && weight <= MAX_BATCH
        }) {
            write.push(job);
        }
        Some(write)
    })
}
