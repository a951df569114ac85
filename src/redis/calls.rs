//! Sends several calls in one write, and returns their replies in order.

use std::sync::Arc;

use redis::RedisResult;

use crate::clock::Instant;
use crate::error::Error;
use crate::kernel::fault::Fault;
use crate::protocol::answer::Answer;
use crate::protocol::script::{Call, ScriptForm, pack_wait};
use crate::protocol::slot::slot;
use crate::protocol::verb::Verb;
use crate::redis::Deployment;
use crate::redis::call::is_answered_write;
use crate::redis::conn::callers::Cap;
use crate::redis::conn::connection::{Connection, Replied};
use crate::redis::fault::NodeFault;
use crate::redis::server::Server;

/// How several calls ended, in their order.
pub(crate) type Ends<F> = Vec<Result<Answer, F>>;

/// Writes an undo behind calls that got no reply.
pub(crate) type WriteUndo<'a> = &'a mut dyn FnMut(Call<'_>);

/// Takes the ends of several calls in their order, and the instant before they were sent. If the
/// connection has ended without all replies, it can also write an undo behind them.
pub(crate) type Ended<'a> = &'a mut dyn FnMut(Ends<Fault>, Instant, Option<WriteUndo<'_>>);

/// Decides on undos if calls got no reply: it takes all ends and the instant before the calls were
/// sent, and passes on the undos to be written behind them.
type Unanswered<'a> = &'a mut dyn FnMut(Ends<NodeFault>, Instant, WriteUndo<'_>);

impl Server {
    /// Sends all calls in one write, and waits for their replies, at most for the command timeout
    /// and at most until `until`. Each has WAIT behind it if replicas must acknowledge it.
    ///
    /// A call that this server has not run, because it redirects it or does not know the script,
    /// is left to the caller. Also returns the instant before they were sent. If one gets no reply
    /// and there is `unanswered`, that gets all ends, and none is returned.
    pub(crate) fn calls(
        &self,
        calls: &[Call<'_>],
        until: Instant,
        cap_rule: Cap,
        unanswered: Option<Unanswered<'_>>,
    ) -> Result<(Ends<NodeFault>, Instant), Fault> {
        let is_write = calls.iter().any(|call| call.verb.writes());
        let is_stopped = calls.iter().any(|call| call.verb.is_stopped_by_breaker());
        let _admission = is_stopped.then(|| self.admit_stopped()).transpose()?;
        let (mut pooled, sent) = self.connection_before(until, cap_rule, is_write)?;
        let mut ends = Vec::with_capacity(calls.len());
        let result = self.write_and_read(pooled.connection(), calls, until, &mut ends);
        let Err(error) = result else {
            let not_served = ends.iter().find_map(NodeFault::not_served_in);
            let answered = calls.iter().zip(&ends);
            let mut answered = answered.map(|(call, end)| is_answered_write(call, end));
            let is_write = answered.any(|it| it);
            self.settle(pooled, sent, not_served, is_write);
            return Ok((ends, sent));
        };
        let name = calls[ends.len()].script.name;
        let fault = self.no_answer(error, sent, until, name, true, is_write);
        ends.resize_with(calls.len(), || Err(fault.clone().into()));
        if let Some(unanswered) = unanswered {
            let mut connection = pooled.keep();
            let ends = std::mem::take(&mut ends);
            unanswered(ends, sent, &mut |undo| connection.undo_behind(undo));
        }
        Ok((ends, sent))
    }

    /// Adds the end of each call that was answered.
    fn write_and_read(
        &self,
        connection: &mut Connection,
        calls: &[Call<'_>],
        until: Instant,
        ends: &mut Ends<NodeFault>,
    ) -> RedisResult<()> {
        let by = |now: Instant| now.after(self.command_timeout()).min(until);
        let first_by = by(Instant::now());
        connection.write(first_by, |buffer| {
            for call in calls {
                call.pack(ScriptForm::Digest, buffer);
                if let Some(replicas) = &call.replicas {
                    pack_wait(replicas, buffer);
                }
            }
        })?;
        for call in calls {
            // WAIT takes its time on the server, which then runs the next call.
            let reply_by = if call.replicas.is_some() {
                by(Instant::now())
            } else {
                first_by
            };
            let reply = connection.answer_to(reply_by, call.verb)?;
            let waited = match &call.replicas {
                Some(_) => Some(connection.answer_to(by(Instant::now()), Verb::Count)?),
                None => None,
            };
            ends.push(self.end_of(call, reply, waited));
        }
        Ok(())
    }

    fn end_of(
        &self,
        call: &Call<'_>,
        reply: Replied,
        waited: Option<Replied>,
    ) -> Result<Answer, NodeFault> {
        if ScriptForm::Digest.after(&reply).is_some() {
            return Err(NodeFault::NoScript);
        }
        let answer = reply.map_err(|error| self.node_fault(call, &error))?;
        Ok(self.acknowledged(answer, waited, call.replicas)?)
    }
}

impl Deployment {
    /// Sends calls for keys of one slot in one write, waits for their replies until `until`, and
    /// calls `end` once.
    ///
    /// A call that the server has not run is sent again by itself, and so is each call behind it
    /// that was skipped for that.
    pub(crate) fn calls(&self, calls: &[Call<'_>], until: Instant, cap_rule: Cap, end: Ended<'_>) {
        let start = Instant::now();
        let mut has_ended = false;
        let mut unanswered = |ends: Ends<NodeFault>, sent, write: WriteUndo<'_>| {
            has_ended = true;
            let ends = ends.into_iter().map(|end| end.map_err(Fault::from));
            end(ends.collect(), sent, Some(write));
        };
        let sent = self
            .server_of(calls, until)
            .and_then(|server| server.calls(calls, until, cap_rule, Some(&mut unanswered)));
        if has_ended {
            return;
        }
        let (ends, sent) = match sent {
            Ok((ends, sent)) => (ends, sent),
            // Another node may own the slot by now: each call looks for it.
            Err(Fault::NotRun(_)) if self.slot_map().is_some() => {
                let not_run = || Err(NodeFault::NoScript);
                (calls.iter().map(|_| not_run()).collect(), start)
            }
            Err(fault) => (
                calls.iter().map(|_| Err(fault.clone().into())).collect(),
                start,
            ),
        };
        // The call before was granted when it was sent again.
        let mut is_again = false;
        let ends = calls.iter().zip(ends).map(|(call, end)| {
            let was_skipped = is_again && matches!(end, Ok(Answer::Skipped));
            if !was_skipped && !must_be_sent_again(call, &end) {
                return end.map_err(Fault::from);
            }
            let end = self.call(*call, until, cap_rule);
            is_again = matches!(end, Ok(Answer::Granted(_)));
            end
        });
        end(ends.collect(), sent, None);
    }

    /// Returns the server for calls for keys of one slot; over a quorum, the engine sends them.
    fn server_of(&self, calls: &[Call<'_>], until: Instant) -> Result<Arc<Server>, Fault> {
        debug_assert!(!self.is_quorum());
        let first = calls.first().and_then(|call| call.keys[0].first());
        match self {
            Self::Cluster(cluster) => {
                let slot = slot(first.map_or(&[][..], Vec::as_slice));
                let stops = calls.iter().any(|call| call.verb.is_stopped_by_breaker());
                cluster.map.find_owner(slot, until, stops)
            }
            Self::One(_) | Self::Quorum(_) => Ok(Arc::clone(&self.fixed()[0])),
        }
    }
}

/// Returns whether the server has not run the call for a reason that sending it alone may mend.
fn must_be_sent_again(call: &Call<'_>, end: &Result<Answer, NodeFault>) -> bool {
    match end {
        Err(NodeFault::Redirected(..) | NodeFault::NoScript) => true,
        Err(NodeFault::Fault(Fault::Rejected(Error::Refused { .. }))) => {
            call.without_queue().is_some()
        }
        _ => false,
    }
}
