//! A command to Redis as owned data, and the call of a script that it becomes when it is sent.

use std::sync::Arc;
use std::time::Duration;

use crate::holder_id::HolderId;
use crate::protocol::primitive::{
    Acquire, AtRelease, NewPlace, Primitive, Queueing, Reached, RedisQueue,
};
use crate::protocol::script::Call;
use crate::protocol::verb::Verb;
use crate::replicas::Replicas;

/// A command for one lock.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) lock: Arc<dyn Primitive>,
    pub(crate) what: What,
    /// The replicas that must acknowledge it.
    pub(crate) replicas: Option<Replicas>,
}

/// What a command does.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// Takes a free lock, whoever waits in its queue.
    Acquire {
        id: HolderId,
        ttl: Duration,
        tokens: u64,
    },
    /// Takes a free lock if nobody waits in its queue. Otherwise joins the queue, unless `place` is
    /// `None`.
    Enter {
        id: HolderId,
        ttl: Duration,
        tokens: u64,
        place: Option<Listens>,
    },
    /// Proposes a token to one server of a quorum.
    Propose {
        id: HolderId,
        ttl: Duration,
        token: u64,
        tokens: u64,
    },
    /// Keeps places alive, and reports grants to them.
    Refresh {
        tokens: u64,
        ids: Vec<HolderId>,
        listens: Listens,
    },
    /// Releases the lock of a holder.
    Leave {
        id: HolderId,
        may_be_plain: bool,
    },
    /// Releases what each id holds, or removes its place.
    Undo {
        ids: Vec<HolderId>,
    },
    Renew {
        id: HolderId,
        ttl: Duration,
        may_shorten: bool,
    },
    Downgrade {
        id: HolderId,
        ttl: Duration,
    },
}

/// Whether any call that a place serves receives grant messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listens {
    /// The place has the client's inbox.
    Inbox,
    /// All its calls wait by `WaitPolicy::Backoff`: only a refresh reports a grant.
    No,
}

/// The inbox of a client at one server, as the sender of a command knows it.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) channel: Vec<u8>,
    pub(crate) reached: Reached,
}

impl Command {
    pub(crate) fn new(lock: &Arc<dyn Primitive>, what: What) -> Self {
        Self {
            lock: Arc::clone(lock),
            what,
            replicas: None,
        }
    }

    pub(crate) fn acknowledged_by(self, replicas: Option<Replicas>) -> Self {
        Self { replicas, ..self }
    }

    /// Returns the holder id of an acquiring command.
    pub(crate) fn acquires(&self) -> Option<&HolderId> {
        match &self.what {
            What::Acquire { id, .. } | What::Enter { id, .. } | What::Propose { id, .. } => {
                Some(id)
            }
            _ => None,
        }
    }

    /// Passes the call of the script to `send`. The call borrows from this command and `inbox`.
    pub(crate) fn with_call<T>(&self, inbox: &Inbox, send: impl FnOnce(Call<'_>) -> T) -> T {
        let lock = &self.lock;
        let send = |call: Call<'_>| send(call.acknowledged_by(self.replicas));
        let none = Vec::new();
        let acquire = |id, ttl, tokens, proposed, queueing| {
            lock.acquire(Acquire {
                id,
                ttl,
                tokens,
                proposed,
                queueing,
            })
        };
        match &self.what {
            What::Acquire { id, ttl, tokens } => {
                send(acquire(id, *ttl, *tokens, None, Queueing::Barge))
            }
            What::Propose {
                id,
                ttl,
                token,
                tokens,
            } => send(acquire(id, *ttl, *tokens, Some(*token), Queueing::Barge)),
            What::Enter {
                id,
                ttl,
                tokens,
                place,
            } => {
                let channel = channel(*place, inbox, &none);
                let queueing = place.map_or(Queueing::Behind, |_| {
                    Queueing::Join(NewPlace {
                        inbox: channel,
                        reached: inbox.reached,
                    })
                });
                send(acquire(id, *ttl, *tokens, None, queueing))
            }
            What::Refresh {
                tokens,
                ids,
                listens,
            } => {
                let ids: Vec<Vec<u8>> = ids.iter().map(|id| id.as_str().into()).collect();
                let channel = channel(Some(*listens), inbox, &none);
                send(queue(lock).refresh(*tokens, channel, &ids))
            }
            What::Leave { id, may_be_plain } => {
                let at = match may_be_plain {
                    true => AtRelease::MayLeaveOpen,
                    false => AtRelease::Plain,
                };
                send(lock.release(id.as_str().as_bytes(), at))
            }
            What::Undo { ids } => match &**ids {
                [id] => send(Call {
                    verb: Verb::Undo(1),
                    ..lock.release(id.as_str().as_bytes(), AtRelease::Plain)
                }),
                ids => {
                    let ids: Vec<&HolderId> = ids.iter().collect();
                    send(lock.undo(&lock.undo_arguments(&ids)))
                }
            },
            What::Renew {
                id,
                ttl,
                may_shorten,
            } => send(lock.renew(id, *ttl, *may_shorten)),
            What::Downgrade { id, ttl } => send(lock.downgrade(id, *ttl)),
        }
    }
}

fn channel<'a>(place: Option<Listens>, inbox: &'a Inbox, none: &'a Vec<u8>) -> &'a Vec<u8> {
    match place {
        Some(Listens::Inbox) => &inbox.channel,
        Some(Listens::No) | None => none,
    }
}

fn queue(lock: &Arc<dyn Primitive>) -> &dyn RedisQueue {
    lock.queue().expect("only a place in a queue is refreshed")
}
