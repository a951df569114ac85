//! Sends many calls in one write and reads their replies after it.

use redis::ServerError;

use crate::clock::Instant;
use crate::error_reply::{Meaning, meaning};
use crate::protocol::answer::Answer;
use crate::protocol::script::{Call, pack_wait};
use crate::protocol::verb::Verb;
use crate::redis::conn::connection::Connection;
use crate::redis::fault::{Fault, NodeFault};
use crate::redis::server::Server;

impl Server {
    /// Sends the calls of all `jobs` in one write over the caller's connection. Passes each reply
    /// to `settle`, in order, with the instant before the call was sent.
    ///
    /// `follow` sends a call again that this server redirects to another node. A call without a
    /// reply may have run. All calls must require the same number of replicas. Returns false if the
    /// connection must not be used again.
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
            match answer {
                Ok(answer) => settle(job, sent, Ok(answer)),
                Err(NodeFault::Fault(fault)) => settle(job, sent, Err(fault)),
                Err(NodeFault::Redirected(..)) => match follow(call(&job)) {
                    Ok((answer, sent)) => settle(job, sent, Ok(answer)),
                    Err(fault) => settle(job, sent, Err(fault)),
                },
            }
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
        let (mut answers, mut alive) =
            self.write_and_read(connection, calls, |call, buffer| call.pack_by_sha(buffer));
        let unknown: Vec<usize> = (0..answers.len())
            .filter(|&n| matches!(answers.get(n), Some(Ok(Err(error))) if is_no_script(error)))
            .collect();
        if alive && !unknown.is_empty() {
            // These did not run, so sending them again is safe.
            let again: Vec<Call<'_>> = unknown
                .iter()
                .filter_map(|&n| calls.get(n).copied())
                .collect();
            let (second, still_alive) = self.write_and_read(connection, &again, |call, buffer| {
                call.pack_by_source(buffer)
            });
            alive = still_alive;
            for (n, answer) in unknown.into_iter().zip(second) {
                if let Some(slot) = answers.get_mut(n) {
                    *slot = answer;
                }
            }
        }
        let answers: Vec<_> = answers
            .into_iter()
            .zip(calls)
            .map(|(answer, call)| answer?.map_err(|error| self.node_fault(call, &error)))
            .collect();
        if answers.iter().any(Result::is_ok) {
            self.answered(sent);
        }
        // A server that answers "not now" may have been replaced: connect again.
        let usable = alive
            && !answers
                .iter()
                .any(|answer| NodeFault::not_run_in(answer).is_some());
        if !usable {
            self.failed();
            match alive {
                true => self.pool.suspect(connection.generation),
                false => self.pool.forget_idle(),
            }
        }
        (answers, usable)
    }

    #[expect(
        clippy::type_complexity,
        reason = "a reply, an error reply, or no reply; used only here"
    )]
    fn write_and_read(
        &self,
        connection: &mut Connection,
        calls: &[Call<'_>],
        pack: impl Fn(&Call<'_>, &mut Vec<u8>),
    ) -> (Vec<Result<Result<Answer, ServerError>, Fault>>, bool) {
        let mut commands = Vec::new();
        for call in calls {
            pack(call, &mut commands);
        }
        let replicas = calls.first().and_then(|call| call.replicas);
        if let Some(replicas) = &replicas {
            pack_wait(replicas, &mut commands);
        }
        let until = Instant::now().after(self.command_timeout());
        let mut broken = connection.send(until, &commands).err();
        let mut answers: Vec<_> = calls
            .iter()
            .map(|call| {
                let error = match &broken {
                    // After one timeout nothing more is read.
                    Some(error) => error.clone(),
                    None => match connection.answer_to(until, call.verb) {
                        Ok(answer) => return Ok(answer),
                        Err(error) => broken.insert(error).clone(),
                    },
                };
                Err(Fault::Unknown(error.into()))
            })
            .collect();
        if replicas.is_some() && broken.is_none() {
            let until = Instant::now().after(self.command_timeout());
            let waited = connection.answer_to(until, Verb::Count);
            for answer in &mut answers {
                if let Ok(Ok(done)) = answer {
                    let done = std::mem::replace(done, Answer::Done);
                    *answer = match &waited {
                        Ok(waited) => self
                            .acknowledged(done, Some(waited.clone()), replicas)
                            .map(Ok),
                        Err(error) => Err(Fault::Unknown(error.clone().into())),
                    };
                }
            }
            broken = waited.err();
        }
        (answers, broken.is_none() && !connection.has_surplus())
    }
}

fn is_no_script(error: &ServerError) -> bool {
    matches!(meaning(error), Meaning::NoScript)
}
