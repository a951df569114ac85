//! Sends many calls of one thread in one write, and reads their replies after it.

use crate::clock::Instant;
use crate::kernel::fault::Fault;
use crate::protocol::answer::Answer;
use crate::protocol::script::Call;
use crate::redis::conn::connection::{Connection, Replied, is_no_script};
use crate::redis::fault::NodeFault;
use crate::redis::server::Server;

impl Server {
    /// Sends the calls of all `jobs` in one write over the caller's connection. Passes each reply
    /// to `settle`, in order, with the instant before the call was sent.
    ///
    /// `follow` resends a call that this server redirects to another node. A call without a reply
    /// may have run. No call may wait for replicas. Returns false if the connection must not be
    /// used again.
    pub(crate) fn batch<J>(
        &self,
        connection: &mut Connection,
        jobs: Vec<J>,
        call: impl Fn(&J) -> Call<'_>,
        follow: impl Fn(Call<'_>) -> Result<(Answer, Instant), Fault>,
        mut settle: impl FnMut(J, Instant, Result<Answer, Fault>),
    ) -> bool {
        let sent = Instant::now();
        let calls: Vec<Call<'_>> = jobs.iter().map(&call).collect();
        let (answers, usable) = self.send_all(connection, &calls, sent);
        drop(calls);
        for (job, answer) in jobs.into_iter().zip(answers) {
            let (sent, answer) = match answer {
                Err(NodeFault::Redirected(..)) => match follow(call(&job)) {
                    Ok((answer, sent)) => (sent, Ok(answer)),
                    Err(fault) => (sent, Err(fault)),
                },
                answer => (sent, answer.map_err(Fault::from)),
            };
            settle(job, sent, answer);
        }
        usable
    }

    /// Sends all `calls` and returns their replies in order. The second value is false if the
    /// connection must not be used again.
    fn send_all(
        &self,
        connection: &mut Connection,
        calls: &[Call<'_>],
        sent: Instant,
    ) -> (Vec<Result<Answer, NodeFault>>, bool) {
        let (mut answers, mut alive) = self.write_and_read(connection, calls, Call::pack_by_sha);
        let unknown = answers.iter_mut().zip(calls);
        let unknown = unknown.filter(|(answer, _)| answer.as_ref().is_ok_and(is_no_script));
        let (unknown, again): (Vec<_>, Vec<Call<'_>>) = unknown.unzip();
        if alive && !unknown.is_empty() {
            let (second, still_alive) =
                self.write_and_read(connection, &again, Call::pack_by_source);
            alive = still_alive;
            for (slot, answer) in unknown.into_iter().zip(second) {
                *slot = answer;
            }
        }
        let answers: Vec<_> = answers
            .into_iter()
            .zip(calls)
            .map(|(answer, call)| answer?.map_err(|error| self.node_fault(call, &error)))
            .collect();
        if answers.iter().any(Result::is_ok) {
            // All calls of a write are of the same kind: writes, or reads of holders.
            self.answered(sent, calls.iter().all(|call| call.verb.writes()));
        }
        // A server that did not serve a call may have been replaced: connect again.
        let usable = alive
            && !answers
                .iter()
                .any(|answer| NodeFault::not_served_in(answer).is_some());
        if !usable {
            self.failed();
            match alive {
                true => self.pool.suspect(connection.generation),
                false => self.pool.forget_idle(),
            }
        }
        (answers, usable)
    }

    fn write_and_read<'c>(
        &self,
        connection: &mut Connection,
        calls: &[Call<'c>],
        pack: impl Fn(&Call<'c>, &mut Vec<u8>),
    ) -> (Vec<Result<Replied, Fault>>, bool) {
        let until = Instant::now().after(self.command_timeout());
        let sent = connection.write(until, |buffer| {
            calls.iter().for_each(|call| pack(call, buffer));
        });
        let mut broken = sent.err();
        let answers: Vec<_> = calls
            .iter()
            .map(|call| {
                let error = match &broken {
                    // After one error nothing more is read.
                    Some(error) => error.clone(),
                    None => match connection.answer_to(until, call.verb) {
                        Ok(answer) => return Ok(answer),
                        Err(error) => broken.insert(error).clone(),
                    },
                };
                Err(Fault::Unknown(error.into()))
            })
            .collect();
        (answers, broken.is_none() && !connection.has_surplus())
    }
}
