//! The commands that the threads of the program send themselves, and wait for.

use std::sync::Arc;

use crate::clock::Instant;
use crate::kernel::command::{Attempt, Command, Inbox, What};
use crate::protocol::answer::Answer;
use crate::protocol::primitive::Reached;
use crate::protocol::script::Call;
use crate::redis::{Cap, Fault, Server};
use crate::runtime::endpoint::Endpoint;
use crate::runtime::state::Runtime;

impl Runtime {
    /// Returns the server for a command: that of a quorum with this number, or the owner of its
    /// lock as far as is known.
    pub(in crate::runtime) fn server(&self, number: usize, command: &Command) -> Arc<Server> {
        if self.deployment.is_quorum() {
            Arc::clone(&self.deployment.fixed()[number])
        } else {
            self.deployment.primary_owner_of(command.lock.keys().key(0))
        }
    }

    /// Returns the inbox for the places of a command that is sent to `server`.
    pub(in crate::runtime) fn inbox_at(&self, server: &Arc<Server>, command: &Command) -> Inbox {
        let endpoint = match command.what {
            What::Acquire {
                attempt: Attempt::Enter(_),
                ..
            }
            | What::Refresh { .. } => Some(self.endpoints.of(server)),
            _ => None,
        };
        self.inbox_of(endpoint.as_deref())
    }

    fn inbox_of(&self, endpoint: Option<&Endpoint>) -> Inbox {
        let inbox = endpoint.map(|endpoint| endpoint.subscriber.inbox());
        let (channel, has_tried) = inbox.unwrap_or((Vec::new(), true));
        Inbox {
            channel,
            reached: match self.deployment.slot_map() {
                // The server that keeps a name may not have the subscriptions of its waiters: nodes
                // pass messages on to each other.
                Some(_) => Reached::Always,
                None if !has_tried => Reached::Soon,
                None => Reached::WhileListening,
            },
        }
    }

    /// Sends an acquiring command of a call, waits for its reply until `until`, and calls `end`
    /// once: with the reply, or why there is none, and the instant before the command was sent.
    ///
    /// If `end` returns an undo after the connection has ended without a reply, writes the undo
    /// behind the command.
    pub(crate) fn acquire(
        &self,
        command: &Command,
        until: Instant,
        end: &mut dyn FnMut(Result<Answer, Fault>, Instant) -> Option<Command>,
    ) {
        let start = Instant::now();
        let server = self.server(0, command);
        let inbox = self.inbox_at(&server, command);
        let mut has_ended = false;
        let mut undo = |fault: &Fault, sent, write: &mut dyn FnMut(Call<'_>)| {
            has_ended = true;
            if let Some(undo) = end(Err(fault.clone()), sent) {
                undo.with_call(&inbox, write);
            }
        };
        let outcome = command.with_call(&inbox, |call| {
            (self.deployment).call_or_undo(call, until, Cap::Counted, Some(&mut undo))
        });
        if !has_ended {
            let (answer, sent) = match outcome {
                Ok((answer, sent)) => (Ok(answer), sent),
                Err(fault) => (Err(fault), start),
            };
            // Without a connection, an undo is only sent by the engine.
            end(answer, sent);
        }
    }

    /// Sends a command that needs no undo, and waits for its reply until `until`.
    pub(crate) fn send(&self, command: &Command, until: Instant) -> Result<Answer, Fault> {
        command.with_call(&self.inbox_of(None), |call| {
            self.deployment.call(call, until, Cap::Exempt)
        })
    }
}
