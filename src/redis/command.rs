//! Sends a command that is not a script to one server.

use crate::clock::Instant;
use crate::kernel::fault::Fault;
use crate::name::shown;
use crate::protocol::reply::Reply;
use crate::protocol::verb::Verb;
use crate::redis::conn::callers::Cap;
use crate::redis::fault::NodeFault;
use crate::redis::server::Server;

impl Server {
    /// Sends the command `name` with `args`; it is not a script. `read` reads its reply.
    pub(crate) fn command<T>(
        &self,
        name: &'static str,
        args: &[&[u8]],
        until: Instant,
        cap_rule: Cap,
        read: impl FnOnce(Reply) -> Option<T>,
    ) -> Result<T, Fault> {
        Ok(self.node_command(name, args, until, cap_rule, false, read)?)
    }

    /// Like [`command`](Self::command), for a server that may be a node of a cluster. If `asking`,
    /// sends ASKING first: the node may be importing the keys' slot.
    pub(super) fn node_command<T>(
        &self,
        name: &'static str,
        args: &[&[u8]],
        until: Instant,
        cap_rule: Cap,
        asking: bool,
        read: impl FnOnce(Reply) -> Option<T>,
    ) -> Result<T, NodeFault> {
        let mut command = redis::cmd(name);
        command.arg(args);
        let mut pooled = self.acquire_connection(until, cap_rule, false)?;
        let sent = Instant::now();
        let by = sent.after(self.command_timeout()).min(until);
        let connection = pooled.connection();
        let pack = |buffer: &mut _| command.write_packed_command(buffer);
        let mut trip = || {
            let asked = if asking {
                let ask = redis::cmd("ASKING");
                let asked = connection.trip(by, |buffer| ask.write_packed_command(buffer))?;
                asked.into_result().map(drop)
            } else {
                Ok(())
            };
            let answer = match name {
                "SCAN" => connection.long_trip(by, pack),
                _ => connection.trip(by, pack),
            };
            // If ASKING itself was refused, its error is the one to report, unless the command ran:
            // the node had become the owner.
            Ok(answer?.into_result().or_else(|error| asked.and(Err(error))))
        };
        let answer = trip().and_then(|answer| match answer {
            Ok(reply) => read(reply).map(Ok).ok_or_else(|| connection.malformed()),
            Err(error) => Ok(Err(error)),
        });
        match answer {
            Ok(answer) => {
                let answer = answer.map_err(|error| {
                    self.redirect(&error).unwrap_or_else(|| {
                        self.refusal(name, &error, || rights(name, args, asking))
                            .into()
                    })
                });
                self.settle(pooled, sent, NodeFault::not_served_in(&answer), false);
                answer
            }
            Err(error) => Err(self.no_answer(error, sent, until, name, true, false).into()),
        }
    }

    /// Sends a PING.
    pub(crate) fn ping(&self, until: Instant) -> Result<(), Fault> {
        let pong = |reply| Verb::Ping.read(reply).map(drop);
        self.command("PING", &[], until, Cap::Counted, pong)
    }
}

/// Returns the permissions that a command needs, and ASKING before it if `asking`.
pub(super) fn rights(name: &str, args: &[&[u8]], asking: bool) -> String {
    let before = if asking { "asking +" } else { "" };
    let right = before.to_owned() + &name.to_ascii_lowercase();
    match (name, args.first()) {
        ("PUBLISH", Some(channel)) => {
            format!("{name} needs +{right} on the channel {}", shown(channel))
        }
        ("GET" | "HGET" | "HGETALL" | "LINDEX" | "LLEN", Some(key)) => {
            format!("{name} needs +{right} on the key {}", shown(key))
        }
        _ => format!("{name} needs +{right}"),
    }
}
