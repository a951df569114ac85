//! The connections of a round: idle ones, and new ones that are ready soon enough.

use std::thread;
use std::time::Duration;

use crate::clock::{Instant, nap};
use crate::redis::conn::callers::Sleeper;
use crate::redis::conn::pool::ConnectRequest;
use crate::redis::fault::Fault;
use crate::redis::quorum::pipelined_connection::PipelinedConnection;
use crate::redis::quorum::round::Round;
use crate::redis::server::Server;

/// How long a call waits for further connections once a majority is connected: this long, or as
/// long as the majority took to connect if that was longer. So a server that is only a little
/// slower takes part in the first lock.
const GRACE: Duration = Duration::from_millis(10);

/// A connection that is being made for the slot with this index.
type Requested = (usize, ConnectRequest);

impl Round<'_> {
    /// Connects to as many servers as a majority needs, and to others that are ready soon after
    /// (see [`GRACE`]). Removes the servers without a connection from the round.
    ///
    /// Fails if no time is left for a reply.
    pub(super) fn connect(&mut self) -> Result<(), Fault> {
        let mut requested = Vec::new();
        for (n, slot) in self.slots.iter_mut().enumerate() {
            slot.connection = slot.member.take_idle();
            if slot.connection.is_none() {
                let request = (slot.server.pool).request(self.until, Sleeper::this_thread());
                requested.push((n, request));
            }
        }
        if !requested.is_empty() {
            self.wait_for(requested);
            self.drop_unconnected();
        }
        if Instant::now() >= self.until {
            // Too late for a reply: an acquire sent now would only leave something to undo.
            return Err(self.fault());
        }
        Ok(())
    }

    /// Waits for the requested connections that this call needs, and takes them.
    fn wait_for(&mut self, mut requested: Vec<Requested>) {
        let start = Instant::now();
        let enough = self.members.size.needed.min(self.slots.len());
        let mut by = self.until;
        let mut had_enough = false;
        loop {
            self.take_connected(&mut requested);
            let now = Instant::now();
            let connected = self.slots.iter().filter(|slot| slot.connection.is_some());
            let connected = connected.count();
            if connected >= enough && !had_enough {
                had_enough = true;
                by = by.min(now.after(GRACE.max(start.until(now))));
            }
            if had_enough {
                // Does not wait for connections that were being made before this call. Otherwise a
                // server that connects slowly would delay every call.
                requested.retain(|(_, request)| !request.dialer_was_at_work);
            }
            let is_hopeless = connected + requested.len() < enough;
            if requested.is_empty() || is_hopeless || now >= by {
                break;
            }
            // A pool unparks this thread. If one has done so since `poll`, this returns at once.
            thread::park_timeout(nap(now, by));
        }
    }

    /// Takes the connections that are ready. Marks each server down whose connection failed.
    fn take_connected(&mut self, requested: &mut Vec<Requested>) {
        let mut failed = Vec::new();
        requested.retain(
            |(n, request)| match (request.poll(), self.slots.get_mut(*n)) {
                (Some(Ok(connection)), Some(slot)) => {
                    slot.connection = Some(PipelinedConnection::new(connection));
                    false
                }
                (Some(Err(error)), Some(slot)) => {
                    // Another thread may have returned one meanwhile.
                    slot.connection = slot.member.take_idle();
                    if slot.connection.is_some() {
                        return false;
                    }
                    if error.cause.is_of_client() {
                        // It says nothing about the server.
                        failed.push((slot.server, Fault::NotRun(error.cause)));
                        return false;
                    }
                    slot.member.mark_down();
                    failed.push((slot.server, slot.server.connect_error(error, false)));
                    false
                }
                _ => true,
            },
        );
        for (server, fault) in failed {
            self.note_fault(server, fault);
        }
    }

    /// Removes the servers without a connection from the round.
    fn drop_unconnected(&mut self) {
        let unconnected = self
            .slots
            .extract_if(.., |slot| slot.connection.is_none())
            .map(|slot| slot.server);
        for server in unconnected.collect::<Vec<_>>() {
            let has_failed = |(other, _): &(&Server, Fault)| std::ptr::eq(*other, server);
            if !self.faults.iter().any(has_failed) {
                let cause = server.pool.last_failure().cause;
                // After a shortage in this process the round does not wait for the other servers.
                if !cause.is_of_client() && self.shortage().is_none() {
                    server.failed();
                }
                self.note_fault(server, Fault::NotRun(cause));
            }
        }
    }
}
