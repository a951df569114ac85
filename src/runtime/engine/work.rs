//! The commands that the engine sends.

use std::sync::Arc;

use crate::clock::Instant;
use crate::error::Cause;
use crate::kernel::command::{Command, Inbox, What};
use crate::protocol::answer::Answer;
use crate::protocol::primitive::Primitive;
use crate::protocol::script::Call;
use crate::protocol::slot::slot;
use crate::redis::{Fault, Job, Request};
use crate::replicas::Replicas;
use crate::runtime::endpoint::Endpoint;
use crate::runtime::engine::shared_stats::StatsDelta;

pub(in crate::runtime) enum Work {
    /// A command for locks with its number, and the inbox for its places.
    Lock(u64, Box<Command>, Inbox),
    AddStats(StatsDelta),
    /// A message that the subscriber must receive within a second; when it was due.
    ProbeSubscriber(Arc<Endpoint>, Instant),
    /// A command on a key: only that is redirected, and so reports the slot's new owner. A master
    /// that was demoted by a planned failover still delivers all messages.
    AskOwner(Arc<dyn Primitive>),
}

impl Work {
    /// Returns whether it is still wanted once the client is closed.
    pub(in crate::runtime) fn outlives_client(&self) -> bool {
        match self {
            Self::Lock(_, command, _) => {
                matches!(command.what, What::Undo { .. } | What::Leave { .. })
            }
            Self::AddStats(_) => true,
            Self::ProbeSubscriber(..) | Self::AskOwner(_) => false,
        }
    }
}

/// A command, and how it is sent to the nodes of a cluster.
pub(in crate::runtime) struct Sending {
    pub(in crate::runtime) work: Work,
    /// ASKING goes before it: the node is importing the slot.
    pub(in crate::runtime) is_asking: bool,
    /// How often the script was replaced by one that needs fewer keys.
    fewer_keys: u32,
    /// How many redirects in a row it has followed.
    pub(in crate::runtime) hops: u32,
    /// How often it was sent again because its slot was being moved.
    pub(in crate::runtime) tries: u32,
    /// When it follows no redirect any more, and is not written if it was not.
    pub(in crate::runtime) until: Instant,
}

impl Sending {
    pub(in crate::runtime) fn new(work: Work, until: Instant) -> Self {
        Self {
            work,
            is_asking: false,
            fewer_keys: 0,
            hops: 0,
            tries: 0,
            until,
        }
    }

    /// Returns whether it asks for a lock, or keeps a place.
    pub(in crate::runtime) fn is_for_call(&self) -> bool {
        match &self.work {
            Work::Lock(_, command, _) => {
                command.acquires().is_some() || matches!(command.what, What::Refresh { .. })
            }
            _ => false,
        }
    }

    /// Returns whether it follows redirects. A node that has only some of the keys refuses the
    /// renewal of many leases: they are then renewed one by one.
    pub(in crate::runtime) fn follows_redirects(&self) -> bool {
        let Work::Lock(_, command, _) = &self.work else {
            return true;
        };
        !matches!(command.what, What::RenewMany { .. })
    }

    /// Returns the slot of its keys; `None` for a command of one server.
    pub(in crate::runtime) fn slot(&self) -> Option<u16> {
        self.with_request(|request| match request {
            Request::Call(call) => call.keys[0].first().map(|key| slot(key)),
            Request::Publish { .. } | Request::Ping => None,
        })
    }

    /// Replaces the script by one that does the same with fewer keys; returns false if there is
    /// none.
    pub(in crate::runtime) fn use_fewer_keys(&mut self) -> bool {
        let has_fewer = self.with_request(|request| match request {
            Request::Call(call) => fewer_keys(call).is_some(),
            Request::Publish { .. } | Request::Ping => false,
        });
        self.fewer_keys += u32::from(has_fewer);
        has_fewer
    }

    /// Returns the request of a call.
    fn asked<'a>(&self, call: Call<'a>) -> Request<'a> {
        let call = (0..self.fewer_keys).fold(call, |call, _| fewer_keys(call).unwrap_or(call));
        Request::Call(call.asking(self.is_asking))
    }

    /// Returns what an answer means for the work. With fewer keys, a release that has removed
    /// nothing proves nothing: the place in the queue may still be there.
    pub(in crate::runtime) fn read(&self, answer: Answer) -> Result<Answer, Fault> {
        match (&self.work, &answer) {
            (Work::Lock(_, command, _), Answer::Undone(undone)) if self.fewer_keys > 0 => {
                let sent = match &command.what {
                    What::Undo { ids } => ids.len(),
                    _ => 1,
                };
                if undone.removed.len() < sent {
                    Err(Fault::Unknown(Cause::text("its slot is being moved")))
                } else {
                    Ok(answer)
                }
            }
            _ => Ok(answer),
        }
    }
}

/// Returns the call without the keys that may not exist while a slot is being moved.
fn fewer_keys(call: Call<'_>) -> Option<Call<'_>> {
    call.without_queue().or_else(|| call.without_readers())
}

impl Job for Sending {
    fn with_request<T>(&self, act: impl FnOnce(Request<'_>) -> T) -> T {
        match &self.work {
            Work::Lock(_, command, inbox) => command.with_call(inbox, |call| act(self.asked(call))),
            Work::AddStats(delta) => act(self.asked(delta.call())),
            Work::AskOwner(lock) => act(self.asked(lock.keys().inspect())),
            Work::ProbeSubscriber(endpoint, _) => act(endpoint.subscriber.probe()),
        }
    }

    fn replicas(&self) -> Option<Replicas> {
        match &self.work {
            Work::Lock(_, command, _) => command.replicas,
            _ => None,
        }
    }

    fn wanted_by(&self) -> Instant {
        match &self.work {
            Work::Lock(_, command, _) => command.wanted_by,
            _ => Instant::NEVER,
        }
    }

    /// A process that stood still must not send what its sender has given up: everything that is
    /// written runs within a known time after that, or never.
    fn is_over(&self, now: Instant) -> bool {
        now >= self.until
    }
}
