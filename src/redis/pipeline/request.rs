//! The commands of a pipeline and of a quorum, and their ends.

use redis::ServerError;

use crate::clock::Instant;
use crate::protocol::answer::Answer;
use crate::protocol::script::{Call, ScriptForm};
use crate::protocol::verb::Verb;
use crate::redis::command::rights;
use crate::redis::fault::NodeFault;
use crate::redis::server::Server;
use crate::replicas::Replicas;

/// A command and its purpose, which is looked at when the command has ended.
pub(crate) trait Job {
    fn with_request<T>(&self, act: impl FnOnce(Request<'_>) -> T) -> T;

    /// Returns the replicas that must acknowledge the command.
    fn replicas(&self) -> Option<Replicas>;

    /// Returns when the first call that waits for the command gives up.
    fn wanted_by(&self) -> Instant;

    /// Returns whether the command has become useless before it was sent.
    fn is_over(&self, now: Instant) -> bool;
}

/// The end of a command.
pub(crate) struct Ended<J> {
    pub(crate) job: J,
    /// The instant before it was sent.
    pub(crate) sent: Instant,
    pub(crate) end: Result<Answer, NodeFault>,
    /// The number of the pipeline's last connection.
    pub(crate) link: u64,
}

/// A command.
#[expect(
    clippy::large_enum_variant,
    reason = "lives while one command is packed or answered"
)]
pub(crate) enum Request<'a> {
    Call(Call<'a>),
    Publish {
        channel: &'a [u8],
        message: &'a [u8],
    },
    Ping,
}

impl Request<'_> {
    pub(in crate::redis) fn verb(&self) -> Verb {
        match self {
            Self::Call(call) => call.verb,
            Self::Publish { .. } => Verb::Count,
            Self::Ping => Verb::Ping,
        }
    }

    pub(in crate::redis) fn name(&self) -> &'static str {
        match self {
            Self::Call(call) => call.script.name,
            Self::Publish { .. } => "PUBLISH",
            Self::Ping => "PING",
        }
    }

    pub(super) fn is_asking(&self) -> bool {
        matches!(self, Self::Call(call) if call.asking)
    }

    pub(in crate::redis) fn pack(&self, form: ScriptForm, buffer: &mut Vec<u8>) {
        match self {
            Self::Call(call) => call.pack(form, buffer),
            Self::Publish { channel, message } => {
                let mut publish = redis::cmd("PUBLISH");
                publish.arg(channel).arg(message);
                publish.write_packed_command(buffer);
            }
            Self::Ping => redis::cmd("PING").write_packed_command(buffer),
        }
    }

    /// Returns what an error reply means.
    pub(in crate::redis) fn fault(&self, server: &Server, error: &ServerError) -> NodeFault {
        match self {
            Self::Call(call) => server.node_fault(call, error),
            Self::Publish { channel, .. } => {
                let needs = || rights("PUBLISH", &[channel], false);
                server.refusal("PUBLISH", error, needs).into()
            }
            Self::Ping => (server.refusal("PING", error, || rights("PING", &[], false))).into(),
        }
    }
}
