//! The commands that the threads of the program send themselves, and wait for.

use std::sync::Arc;

use crate::cause::Cause;
use crate::clock::Instant;
use crate::kernel::command::{Attempt, Command, Inbox, What};
use crate::protocol::answer::Answer;
use crate::protocol::primitive::Reached;
use crate::protocol::script::Call;
use crate::redis::calls::WriteUndo;
use crate::redis::{Cap, Fault, Server};
use crate::runtime::endpoint::Endpoint;
use crate::runtime::state::Runtime;

/// How many commands are sent in one write.
const MOST_IN_A_WRITE: usize = 64;

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

    /// Sends the acquiring commands of a call in few writes, waits for their replies until `until`,
    /// and calls `end` once: with their ends in order, and the instant before they were sent.
    ///
    /// If `end` returns undos after the connection has ended without all replies, writes them
    /// behind the commands.
    pub(crate) fn acquire_all(
        &self,
        commands: &[Command],
        until: Instant,
        end: &mut dyn FnMut(Vec<Result<Answer, Fault>>, Instant) -> Vec<Command>,
    ) {
        let inbox = self.inbox_of(None);
        let (mut ends, mut first_sent) = (Vec::with_capacity(commands.len()), None);
        let mut end = Some(end);
        for part in commands.chunks(MOST_IN_A_WRITE) {
            let left = commands.len() - ends.len() - part.len();
            with_calls(part, &inbox, Vec::new(), &mut |calls| {
                self.deployment
                    .calls(calls, until, Cap::Counted, &mut |part, sent, write| {
                        let sent = *first_sent.get_or_insert(sent);
                        ends.extend(part);
                        let Some(write) = write else {
                            return;
                        };
                        let not_sent = || Err(Fault::NotRun(Cause::text("not sent")));
                        ends.extend(std::iter::repeat_with(not_sent).take(left));
                        let end = end.take().expect("the first lost connection ends it");
                        for undo in end(std::mem::take(&mut ends), sent) {
                            undo.with_call(&inbox, &mut *write);
                        }
                    });
            });
            if end.is_none() {
                return;
            }
        }
        if let Some(end) = end {
            // Without a connection, an undo is only sent by the engine.
            end(ends, first_sent.unwrap_or_else(Instant::now));
        }
    }

    /// Sends commands that need no undo in few writes, and waits for their replies until `until`.
    pub(crate) fn send_all(
        &self,
        commands: &[Command],
        until: Instant,
    ) -> Vec<Result<Answer, Fault>> {
        let inbox = self.inbox_of(None);
        let mut ends = Vec::with_capacity(commands.len());
        let is_cluster = self.deployment.slot_map().is_some();
        let slot = |command: &Command| command.lock.key(0).slot();
        let of_slots = commands.chunk_by(|a, b| !is_cluster || slot(a) == slot(b));
        for part in of_slots.flat_map(|of_slot| of_slot.chunks(MOST_IN_A_WRITE)) {
            with_calls(part, &inbox, Vec::new(), &mut |calls| {
                let mut end = |part: Vec<_>, _, _: Option<WriteUndo<'_>>| ends.extend(part);
                self.deployment.calls(calls, until, Cap::Exempt, &mut end);
            });
        }
        ends
    }
}

/// Passes the calls of commands to `send`.
fn with_calls(
    commands: &[Command],
    inbox: &Inbox,
    before: Vec<Call<'_>>,
    send: &mut dyn FnMut(&[Call<'_>]),
) {
    let Some((command, rest)) = commands.split_first() else {
        return send(&before);
    };
    command.with_call(inbox, |call| {
        let mut calls = before;
        calls.push(call);
        with_calls(rest, inbox, calls, send);
    });
}
