//! The connection on which a thread sends its jobs, several in one write.

use crate::clock::Instant;
use crate::lease::state::LeaseStatus;
use crate::protocol::script::{Call, Reply};
use crate::redis::{Cap, Connection, Fault};
use crate::runtime::endpoint::Endpoint;
use crate::runtime::io::job::IoJob;
use crate::runtime::state::Runtime;
use crate::runtime::worker::contain;

/// The most names in one write: their answers must fit into the sockets' buffers meanwhile, and come in time.
const MOST_TOGETHER: usize = 256;

/// A connection that a thread keeps for what it sends.
#[derive(Default)]
pub(in crate::runtime) struct Writer {
    connection: Option<Connection>,
}

impl Writer {
    /// Sends `items` in one write, and gives each answer to `settle`, with the instant before it was sent.
    pub(in crate::runtime) fn write(
        &mut self,
        runtime: &Runtime,
        endpoint: &Endpoint,
        mut items: Vec<IoJob>,
        mut settle: impl FnMut(IoJob, Instant, Result<Reply, Fault>),
    ) {
        let asked = Instant::now();
        let server = &endpoint.server;
        self.connection
            .take_if(|connection| !server.is_current(connection));
        if self.connection.is_none() {
            match server.connection(asked.after(server.command_timeout())) {
                Ok(connection) => self.connection = Some(connection),
                Err(fault) => {
                    for item in items {
                        settle(item, asked, Err(fault.clone()));
                    }
                    return;
                }
            }
        }
        let Some(connection) = &mut self.connection else {
            return;
        };
        let sent = Instant::now();
        // What was lost or let go while it lay here must not be given a whole ttl more.
        let over: Vec<IoJob> = items
            .extract_if(.., |item| match item {
                IoJob::Renew(part) => {
                    !matches!(part.ballot.hold.status(sent), LeaseStatus::Held(_))
                }
                IoJob::Undo(_) | IoJob::LeaseVotes(_) => false,
            })
            .collect();
        // A lease may own the last of a user's closures, whose destructor may panic.
        contain(move || drop(over));
        let calls: Vec<Call<'_>> = items.iter().map(IoJob::call).collect();
        let (answers, usable) = server.batch(connection, &calls);
        drop(calls);
        if !usable {
            self.connection = None;
        }
        let until = sent.after(server.command_timeout());
        for (item, answer) in items.into_iter().zip(answers) {
            let (answer, sent) = match answer {
                // Nothing ran, so it may be sent again to where the name is kept now.
                Err(Fault::Redirected(..)) => {
                    match runtime
                        .deployment
                        .call_or_undo(item.call(), until, Cap::Exempt, None)
                    {
                        Ok((reply, sent)) => (Ok(reply), sent),
                        Err(fault) => (Err(fault), sent),
                    }
                }
                answer => (answer, sent),
            };
            settle(item, sent, answer);
        }
    }
}

/// Takes out what goes into one write: alike in the replicas that must acknowledge it, those without first.
pub(in crate::runtime) fn take_write(items: &mut Vec<IoJob>) -> Option<Vec<IoJob>> {
    items.sort_by_key(|item| item.replicas().map(|wanted| (wanted.within, wanted.wanted)));
    let replicas = items.first()?.replicas();
    let mut weight = 0;
    let alike = items.iter().take_while(|item| {
        let is_first = weight == 0;
        weight += item.weight();
        item.replicas() == replicas && (is_first || weight <= MOST_TOGETHER)
    });
    let alike = alike.count();
    let rest = items.split_off(alike);
    Some(std::mem::replace(items, rest))
}
