//! Which replies a call can have. Any other reply shows that the peer is not Redis.

use crate::protocol::answer::{Acquired, KeyState, Refreshed, Undone, Wanted, read_holder};
use crate::protocol::script::{Arg, Call, Kind, Reply};

/// The replies that a call can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Acquired(Wanted),
    /// With the number of subscribers, if the release `asks` for it.
    Released {
        asks: bool,
    },
    /// The number of holder ids.
    Undone(usize),
    Renewed,
    Holder,
    /// The text of a fence, or nil.
    Fence,
    /// A state for each place in a queue; the number of places.
    FairQueues(usize),
    /// 1, or 0 if the addition to the shared statistics was made before.
    Added,
    /// A number of replicas.
    Count,
    Ok,
    Pong,
}

impl Call<'_> {
    pub(crate) fn expected(&self) -> Expected {
        match self.script.kind {
            Kind::Acquire | Kind::AcquireAll | Kind::Enter | Kind::Propose => {
                Expected::Acquired(self.wanted())
            }
            Kind::Release => Expected::Released {
                asks: matches!(self.args[2], Arg::Number(_)),
            },
            // The other arguments are a wake channel for each lock.
            Kind::Undo => Expected::Undone(self.rest.len().saturating_sub(self.keys[0].len())),
            Kind::Renew => Expected::Renewed,
            Kind::Inspect => Expected::Holder,
            Kind::Fence => Expected::Fence,
            Kind::Refresh => Expected::FairQueues(self.rest.len()),
            Kind::SharedStats => Expected::Added,
        }
    }

    /// The replies that an acquiring call can have.
    pub(crate) fn wanted(&self) -> Wanted {
        let [locks, _] = self.keys;
        let number = |arg: &Arg<'_>| match arg {
            Arg::Number(number) => Some(*number),
            Arg::Bytes(_) | Arg::Absent => None,
        };
        let [.., third, fourth] = &self.args;
        let one = Wanted {
            names: locks.len(),
            tokens: 1,
            reserved: 0,
            proposed: None,
        };
        match self.script.kind {
            Kind::Acquire => Wanted {
                reserved: number(third).map_or(0, |block| block.saturating_sub(1)),
                ..one
            },
            Kind::AcquireAll => Wanted {
                tokens: locks.len(),
                ..one
            },
            Kind::Propose => {
                let token = number(third).unwrap_or_default();
                Wanted {
                    proposed: Some(token),
                    reserved: number(fourth).map_or(0, |last| last.saturating_sub(token)),
                    ..one
                }
            }
            _ => one,
        }
    }
}

impl Expected {
    pub(crate) fn fits(self, reply: &Reply) -> bool {
        match self {
            // A split vote is found among the replies of several servers; no server replies it.
            Self::Acquired(wanted) => {
                let acquired = Acquired::read(reply, wanted);
                acquired.is_some_and(|acquired| acquired != Acquired::Split)
            }
            Self::Released { asks } => match KeyState::read(reply) {
                Some(KeyState::Ours) => asks == matches!(reply, Reply::List(_)),
                Some(KeyState::Gone | KeyState::Foreign) => true,
                None => false,
            },
            Self::Undone(ids) => Undone::read(reply, ids).is_some(),
            Self::Renewed => KeyState::read(reply).is_some() && !matches!(reply, Reply::List(_)),
            Self::Holder => read_holder(reply).is_some(),
            Self::Fence => matches!(reply, Reply::Nil | Reply::Text(_)),
            Self::FairQueues(places) => Refreshed::read(reply, places).is_some(),
            Self::Added => matches!(reply, Reply::Int(0 | 1)),
            Self::Count => matches!(reply, Reply::Int(0..)),
            Self::Ok => matches!(reply, Reply::Status(status) if status == "OK"),
            Self::Pong => matches!(reply, Reply::Status(status) if status == "PONG"),
        }
    }
}
