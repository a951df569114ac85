//! A command to Redis as owned data, and the call of a script that it becomes when it is sent.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
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
    /// When the first of the calls gives up that wait for it.
    pub(crate) wanted_by: Instant,
    /// An acquiring command for one of several parts: that for the part before has this lock and
    /// this id.
    pub(crate) after: Option<(Arc<dyn Primitive>, HolderId)>,
}

/// What a command does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Takes a free lock.
    Acquire {
        id: HolderId,
        ttl: Duration,
        tokens: u64,
        attempt: Attempt,
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
    /// Renews many leases, usually of other locks than the command's; never shortens a ttl.
    RenewMany {
        /// Those of each lease, in the same order.
        keys: Vec<Vec<u8>>,
        ids: Vec<Vec<u8>>,
        ttl: Duration,
    },
    Downgrade {
        id: HolderId,
        ttl: Duration,
    },
}

/// The kind of an acquiring command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// Takes no place in a queue.
    Once,
    /// Joins the queue if it is refused. Whether the place has an inbox.
    Enter(Listens),
    /// Proposes this token.
    Propose(u64),
    /// Takes a free key for a lease that other servers keep: this is its last token.
    Join(u64),
}

impl Attempt {
    pub(crate) fn enters(self) -> bool {
        matches!(self, Self::Enter(_))
    }

    /// Returns the token that it proposes.
    pub(crate) fn proposes(self) -> Option<u64> {
        match self {
            Self::Propose(token) | Self::Join(token) => Some(token),
            Self::Once | Self::Enter(_) => None,
        }
    }
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
            wanted_by: Instant::NEVER,
            after: None,
        }
    }

    pub(crate) fn acknowledged_by(self, replicas: Option<Replicas>) -> Self {
        Self { replicas, ..self }
    }

    /// Returns the same command for another id of its lease.
    pub(crate) fn under(mut self, other: HolderId) -> Self {
        match &mut self.what {
            What::Acquire { id, .. }
            | What::Leave { id, .. }
            | What::Renew { id, .. }
            | What::Downgrade { id, .. } => *id = other,
            What::Refresh { .. } | What::Undo { .. } | What::RenewMany { .. } => {}
        }
        self
    }

    /// Returns the holder id of an acquiring command.
    pub(crate) fn acquires(&self) -> Option<&HolderId> {
        match &self.what {
            What::Acquire { id, .. } => Some(id),
            _ => None,
        }
    }

    /// Returns the key and the value that the command needs.
    fn after(&self) -> Option<(&[u8], &[u8])> {
        let (lock, id) = self.after.as_ref()?;
        Some((lock.keys().key(0).lock, id.as_str().as_bytes()))
    }

    /// Passes the call of the script to `send`. The call borrows from this command and `inbox`.
    pub(crate) fn with_call<T>(&self, inbox: &Inbox, send: impl FnOnce(Call<'_>) -> T) -> T {
        let (lock, none) = (&self.lock, Vec::new());
        let send = |call: Call<'_>| send(call.acknowledged_by(self.replicas));
        match &self.what {
            What::Acquire {
                id,
                ttl,
                tokens,
                attempt,
            } => send(lock.acquire(Acquire {
                id,
                ttl: *ttl,
                tokens: *tokens,
                proposed: attempt.proposes(),
                joins: matches!(attempt, Attempt::Join(_)),
                after: self.after(),
                queueing: queueing(*attempt, inbox, &none),
            })),
            What::Refresh {
                tokens,
                ids,
                listens,
            } => {
                let ids: Vec<Vec<u8>> = ids.iter().map(|id| id.as_str().into()).collect();
                send(queue(lock).refresh(*tokens, channel(*listens, inbox, &none), &ids))
            }
            What::Leave { id, may_be_plain } => {
                let at = if *may_be_plain {
                    AtRelease::MayBePlain
                } else {
                    AtRelease::Usual
                };
                send(lock.release(id.as_str().as_bytes(), at))
            }
            What::Undo { ids } => match &**ids {
                [id] => send(Call {
                    verb: Verb::Undo(1),
                    ..lock.release(id.as_str().as_bytes(), AtRelease::Usual)
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
            What::RenewMany { keys, ids, ttl } => {
                let many = lock.renew_many();
                let many = many.expect("only leases of such a kind are renewed together");
                send(many.call(keys, ids, *ttl))
            }
            What::Downgrade { id, ttl } => send(lock.downgrade(id, *ttl)),
        }
    }
}

fn queueing<'a>(attempt: Attempt, inbox: &'a Inbox, none: &'a Vec<u8>) -> Queueing<'a> {
    match attempt {
        Attempt::Enter(listens) => Queueing::Join(NewPlace {
            inbox: channel(listens, inbox, none),
            reached: inbox.reached,
        }),
        Attempt::Once | Attempt::Propose(_) | Attempt::Join(_) => Queueing::Barge,
    }
}

fn channel<'a>(listens: Listens, inbox: &'a Inbox, none: &'a Vec<u8>) -> &'a Vec<u8> {
    match listens {
        Listens::Inbox => &inbox.channel,
        Listens::No => none,
    }
}

fn queue(lock: &Arc<dyn Primitive>) -> &dyn RedisQueue {
    lock.queue()
        .expect("only a request of a lock with a queue has a place")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::cohort::CohortKeys;
    use crate::protocol::keys::Keys;

    #[test]
    fn each_command_becomes_the_call_of_its_script() {
        let keys = Keys::new("a".into(), "lock:", "lock_release:");
        let lock = CohortKeys::of(keys);
        let [id, other] = [(); 2].map(|()| HolderId::fresh("o"));
        let ttl = Duration::from_secs(1);
        let inbox = Inbox {
            channel: b"inbox".to_vec(),
            reached: Reached::WhileListening,
        };
        let tokens = 1;
        let acquire = |attempt| What::Acquire {
            id: id.clone(),
            ttl,
            tokens,
            attempt,
        };
        let script = |what: What, ends_with: &[u8]| {
            Command::new(&lock, what).with_call(&inbox, |call| {
                let [_, args] = call.words();
                let last = args.last().map_or(&[][..], |last| last);
                assert!(last.ends_with(ends_with), "{}: {args:?}", call.script.name);
                call.script.name
            })
        };
        let (one, two) = (vec![id.clone()], vec![id.clone(), other.clone()]);
        let enter = |listens| acquire(Attempt::Enter(listens));
        assert_eq!(script(acquire(Attempt::Once), b""), "acquire");
        assert_eq!(script(enter(Listens::Inbox), b"inbox"), "queue_enter");
        assert_eq!(script(enter(Listens::No), b""), "queue_enter");
        let refresh = What::Refresh {
            tokens,
            ids: one.clone(),
            listens: Listens::Inbox,
        };
        assert_eq!(script(refresh, id.as_str().as_bytes()), "queue_refresh");
        assert_eq!(script(What::Undo { ids: one }, b""), "cohort_release");
        let last = other.as_str().as_bytes();
        assert_eq!(script(What::Undo { ids: two }, last), "queue_undo");
    }
}
