//! Sends many calls of one thread in one write, and reads their replies after it.

use redis::RedisResult;

use crate::clock::Instant;
use crate::kernel::fault::Fault;
use crate::protocol::answer::Answer;
use crate::protocol::script::Call;
use crate::redis::conn::callers::Cap;
use crate::redis::conn::connection::is_no_script;
use crate::redis::fault::NodeFault;
use crate::redis::server::Server;

impl Server {
    /// Sends all `calls`, which only read, in one write, and returns their replies in order.
    ///
    /// A call that this server has not run, because it redirects it or does not know the script,
    /// is left to the caller.
    pub(crate) fn read_all(
        &self,
        calls: &[Call<'_>],
        until: Instant,
    ) -> Result<Vec<Result<Answer, NodeFault>>, Fault> {
        let mut pooled = self.acquire_connection(until, Cap::Counted, false)?;
        let sent = Instant::now();
        let by = sent.after(self.command_timeout()).min(until);
        let connection = pooled.connection();
        let mut trip = || {
            connection.write(by, |buffer| {
                calls.iter().for_each(|call| call.pack_by_sha(buffer));
            })?;
            let replies = calls.iter().map(|call| connection.answer_to(by, call.verb));
            replies.collect::<RedisResult<Vec<_>>>()
        };
        let replies = match trip() {
            Ok(replies) => replies,
            Err(error) => {
                let name = calls.first().map_or("", |call| call.script.name);
                return Err(self.no_answer(error, sent, until, name, true, false));
            }
        };
        let answers = replies.into_iter().zip(calls).map(|(reply, call)| {
            if is_no_script(&reply) {
                return Err(NodeFault::NoScript);
            }
            reply.map_err(|error| self.node_fault(call, &error))
        });
        let answers: Vec<_> = answers.collect();
        let not_served = answers.iter().find_map(NodeFault::not_served_in);
        self.settle(pooled, sent, not_served, false);
        Ok(answers)
    }
}
