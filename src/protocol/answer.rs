//! The meaning of the replies of scripts.

use std::time::Duration;

use crate::holder::Holder;
use crate::protocol::permits_out::PermitsOut;
use crate::protocol::place::Refreshed;
use crate::protocol::refusal::{RefusedName, read_detail};
use crate::protocol::reply::{Reply, read_pttl};
use crate::token::FencingToken;

/// The properties of an acquiring call on which its valid replies depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// It goes on only if the call before has its lock.
    pub(crate) after: bool,
    /// The number of tokens reserved after the first.
    pub(crate) reserved: u64,
    /// The first token, if the client proposes it.
    pub(crate) proposed: Option<u64>,
}

impl Wanted {
    /// One token, whatever another call has got.
    pub(super) const ONE: Self = Self {
        after: false,
        reserved: 0,
        proposed: None,
    };

    /// Returns the first token of a grant if such a call can have it.
    fn check(&self, first: FencingToken) -> Option<FencingToken> {
        // Hand-offs use the tokens up to this one.
        let last = first.value().checked_add(self.reserved)?;
        FencingToken::read(i64::try_from(last).ok()?)?;
        let is_ours = self.proposed.is_none_or(|token| token == first.value());
        is_ours.then_some(first)
    }
}

/// The meaning of a valid reply.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(PartialEq))]
pub(crate) enum Answer {
    /// Acquired, with this token.
    Granted(FencingToken),
    Refused(RefusedName),
    /// The call before has not got its lock, so this one was not asked for.
    Skipped,
    /// The proposed fencing token is not above this one.
    TooLow(u64),
    /// Nothing was taken, and nobody is known to have the lock: the next try follows the pause. If
    /// nothing else comes for long, calls fail for this cause.
    Busy {
        pause: Duration,
        cause: &'static str,
    },
    /// The caller holds the lock, or held it until this release.
    Ours,
    /// The caller held the lock until this plain release: the lock is free although clients wait in
    /// its queue.
    PlainRelease,
    /// The lock is free.
    Gone,
    /// Another holder's value.
    Foreign(Vec<u8>),
    Undone(Undone),
    /// The states of the keys, by the reply to a renewal of many leases.
    Renewed(Vec<KeyState>),
    /// The holder; `None` if the lock is free.
    Holder(Option<Holder>),
    /// The writer, or the readers, who share the lock. Nobody if it is free.
    Holders {
        is_shared: bool,
        holders: Vec<Holder>,
    },
    /// The text of a fence, if there is one.
    Fence(Option<Vec<u8>>),
    Permits(PermitsOut),
    /// The state of each place, and what those that wait are refused by.
    Places(Vec<Refreshed>, RefusedName),
    Count(u64),
    /// The reply says only that the command has run.
    Done,
}

/// The state of the lock key that a call found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyState {
    /// The caller holds it, or held it until this release.
    Ours,
    /// The lock is free.
    Gone,
    /// Another holder's value.
    Foreign,
}

impl Answer {
    /// Returns true if a call acquired, released or renewed the lock; of many leases, all of them.
    pub(crate) fn is_done(&self) -> bool {
        match self {
            Self::Granted(_) => true,
            Self::Renewed(found) => found.iter().all(|state| *state == KeyState::Ours),
            answer => answer.key_state() == Some(KeyState::Ours),
        }
    }

    /// Returns the state that a release or renewal found; `None` for the answer to another call.
    pub(crate) fn key_state(&self) -> Option<KeyState> {
        match self {
            Self::Ours | Self::PlainRelease => Some(KeyState::Ours),
            Self::Gone => Some(KeyState::Gone),
            Self::Foreign(_) => Some(KeyState::Foreign),
            _ => None,
        }
    }

    /// Returns the holder that an inspection found.
    pub(crate) fn holder(self) -> Option<Holder> {
        match self {
            Self::Holder(holder) => holder,
            _ => None,
        }
    }

    /// Reads the reply to an acquiring call; `None` if no such script can give it.
    ///
    /// A token that the script has drawn is alone: in a list it costs the server twice as much.
    pub(super) fn read_acquired(reply: Reply, wanted: Wanted) -> Option<Self> {
        let mut items = match reply {
            Reply::Text(digits) if wanted.proposed.is_none() => {
                let token = FencingToken::parse(&digits)?;
                return Some(Self::Granted(wanted.check(token)?));
            }
            Reply::Int(0) if wanted.after => return Some(Self::Skipped),
            reply => reply.into_list()?,
        };
        match items.as_mut_slice() {
            [Reply::Int(1), Reply::Int(token)] if wanted.proposed.is_some() => {
                let token = FencingToken::read(*token)?;
                Some(Self::Granted(wanted.check(token)?))
            }
            [Reply::Int(0), holder, Reply::Int(ttl), rest @ ..] => {
                // A member of a quorum does not say it: the client has proposed the token.
                let detail = match (wanted.proposed, rest) {
                    (Some(_), []) => None,
                    (None, [detail]) => read_detail(detail)?,
                    _ => return None,
                };
                Some(Self::Refused(RefusedName {
                    detail,
                    name: 0,
                    holder: match holder {
                        Reply::Text(holder) => std::mem::take(holder),
                        // The key expired while the script ran, the name is free but other waiters
                        // are ahead, or the lock is a semaphore.
                        Reply::Nil => Vec::new(),
                        _ => return None,
                    },
                    remaining: read_pttl(*ttl)?,
                }))
            }
            [Reply::Int(2), Reply::Int(last)] => {
                let last = FencingToken::read(*last)?.value();
                (last >= wanted.proposed?).then_some(Self::TooLow(last))
            }
            _ => None,
        }
    }

    /// Reads the reply to a release or renewal; `None` if no such script can give it.
    pub(super) fn read_key(reply: Reply) -> Option<Self> {
        match reply {
            Reply::Int(1) => Some(Self::Ours),
            Reply::Int(0) => Some(Self::Gone),
            Reply::Text(value) => Some(Self::Foreign(value)),
            _ => None,
        }
    }

    /// Reads the reply to the release of a lock with a queue; `None` if the script cannot give it.
    pub(super) fn read_passed_on(reply: Reply) -> Option<Self> {
        match reply {
            Reply::Int(2) => Some(Self::PlainRelease),
            reply => Self::read_key(reply),
        }
    }

    /// Reads the reply to an inspection; `None` if the script cannot give it.
    pub(super) fn read_holder(reply: Reply) -> Option<Self> {
        if reply == Reply::Nil {
            return Some(Self::Holder(None));
        }
        let items = <[Reply; 3]>::try_from(reply.into_list()?).ok()?;
        Some(Self::Holder(Some(read_inspected(items)?)))
    }

    /// Reads the reply to an inspection of a read-write lock; `None` if the script cannot give it.
    pub(super) fn read_holders(reply: Reply) -> Option<Self> {
        if reply == Reply::Nil {
            return Some(Self::Holders {
                is_shared: false,
                holders: Vec::new(),
            });
        }
        let mut items = reply.into_list()?.into_iter();
        let first = read_inspected([items.next()?, items.next()?, items.next()?])?;
        let mut readers = Vec::new();
        while let Some(id) = items.next() {
            let (Reply::Text(id), Reply::Int(ttl)) = (id, items.next()?) else {
                return None;
            };
            let ttl = Duration::from_millis(ttl.try_into().ok()?);
            readers.push(Holder::new(id, Some(ttl), first.fencing_token()));
        }
        let is_shared = first.is_shared();
        let holders = match (is_shared, readers.is_empty()) {
            (true, false) => readers,
            (false, true) => vec![first],
            _ => return None,
        };
        Some(Self::Holders { is_shared, holders })
    }
}

/// Reads a lock's value, its ttl and its fence.
fn read_inspected([value, ttl, token]: [Reply; 3]) -> Option<Holder> {
    let (Reply::Text(value), Reply::Int(ttl)) = (value, ttl) else {
        return None;
    };
    let digits = token.into_text_or_nil()?;
    // A foreign client may have written anything.
    let token = digits.and_then(|digits| FencingToken::parse(&digits));
    Some(Holder::new(value, read_pttl(ttl)?, token))
}

/// The result of undoing several holder ids.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Undone {
    /// The indices, from 0, of the ids that held the lock or had a place in its queue.
    pub(crate) removed: Vec<usize>,
    /// The value of the lock key, if another client holds it.
    pub(crate) other: Option<Vec<u8>>,
}

impl Undone {
    /// Reads the reply about this number of `ids`; a single one was sent as a release.
    pub(super) fn read(reply: Reply, ids: usize) -> Option<Self> {
        if ids == 1 {
            let (removed, other) = match Answer::read_passed_on(reply)? {
                Answer::Foreign(value) => (Vec::new(), Some(value)),
                answer if answer.is_done() => (vec![0], None),
                _ => (Vec::new(), None),
            };
            return Some(Self { removed, other });
        }
        let items = reply.into_list()?;
        let (first, numbers) = items.split_first()?;
        let index = |number: &Reply| usize::try_from(number.int()?).ok()?.checked_sub(1);
        let removed = numbers.iter().map(|n| index(n).filter(|n| *n < ids));
        Some(Self {
            removed: removed.collect::<Option<_>>()?,
            other: match first {
                Reply::Int(0) => None,
                Reply::Text(value) => Some(value.clone()),
                _ => return None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(items: &[Reply]) -> Reply {
        Reply::List(items.to_vec())
    }

    fn text() -> Reply {
        Reply::Text(b"v".to_vec())
    }

    #[expect(
        clippy::option_option,
        reason = "a lock may be free, and a reply malformed"
    )]
    fn holder(reply: Reply) -> Option<Option<Holder>> {
        Answer::read_holder(reply).map(Answer::holder)
    }

    const WANTED: Wanted = Wanted {
        reserved: 63,
        ..Wanted::ONE
    };

    fn read(items: &[Reply]) -> Option<Answer> {
        read_alone(list(items))
    }

    fn read_alone(reply: Reply) -> Option<Answer> {
        Answer::read_acquired(reply, WANTED)
    }

    #[test]
    fn grants_refusals_and_holders_are_read() {
        let refused = |holder: &[u8], remaining, detail| {
            Some(Answer::Refused(RefusedName {
                name: 0,
                holder: holder.to_vec(),
                remaining,
                detail,
            }))
        };
        assert_eq!(
            read_alone(Reply::Text(b"7".to_vec())),
            Some(Answer::Granted(FencingToken::new(7)))
        );
        assert_eq!(
            read(&[Reply::Int(0), text(), Reply::Int(-1), Reply::Int(7)]),
            refused(b"v", None, Some(7))
        );
        assert_eq!(
            read(&[Reply::Int(0), Reply::Nil, Reply::Int(-2), Reply::Int(-1)]),
            refused(b"", Some(Duration::ZERO), None)
        );
        let after = Wanted {
            after: true,
            ..Wanted::ONE
        };
        let skipped = Answer::read_acquired(Reply::Int(0), after);
        assert_eq!(skipped, Some(Answer::Skipped));
        let foreign = Some(Answer::Foreign(b"v".to_vec()));
        assert_eq!(Answer::read_key(text()), foreign);
        let held = [text(), Reply::Int(5), Reply::Text(b"9".to_vec())];
        let held = holder(list(&held)).unwrap().unwrap();
        assert_eq!(held.fencing_token(), Some(FencingToken::new(9)));
        assert!(holder(Reply::Nil).unwrap().is_none());
    }

    #[test]
    fn no_grant_is_read_from_what_no_script_replies() {
        let int = Reply::Int;
        for token in [0, -1, (1 << 53) - 63, 1 << 53, i64::MAX, i64::MIN] {
            let digits = token.to_string().into_bytes();
            assert_eq!(read_alone(Reply::Text(digits)), None, "{token}");
        }
        for digits in ["", "+7", "7 ", "0x7", "18446744073709551616"] {
            assert_eq!(read_alone(Reply::Text(digits.into())), None, "{digits}");
        }
        assert_eq!(read_alone(int(7)), None);
        assert_eq!(read_alone(int(0)), None, "it is after no other call");
        assert_eq!(read(&[int(1), int(7)]), None, "the token is in a list");
        let wanted = Wanted {
            proposed: Some(7),
            ..Wanted::ONE
        };
        let proposed = |items: &[Reply]| Answer::read_acquired(list(items), wanted);
        assert!(proposed(&[int(1), int(7)]).is_some());
        assert_eq!(
            Answer::read_acquired(Reply::Text(b"7".to_vec()), wanted),
            None
        );
        assert_eq!(proposed(&[int(1), int(8)]), None, "nobody proposed it");
        assert_eq!(proposed(&[int(2), int(7)]), Some(Answer::TooLow(7)));
        assert_eq!(proposed(&[int(2), int(6)]), None, "7 is above it");
        assert_eq!(Answer::read_acquired(int(1), wanted), None);
    }

    #[test]
    fn no_refusal_is_read_from_what_no_script_replies() {
        let int = Reply::Int;
        let surplus = [int(0), text(), int(9), int(7), int(1)];
        assert_eq!(read(&surplus), None);
        assert_eq!(read(&[int(0), text(), int(9)]), None, "held since when");
        assert_eq!(read(&[int(0), text(), int(-3), int(7)]), None);
        assert_eq!(read(&[int(0), text(), int(9), text()]), None);
        assert_eq!(read(&[int(0), int(7), int(9), int(7)]), None);
        assert_eq!(read(&[int(0), Reply::Other, int(9), int(7)]), None);
    }

    #[test]
    fn no_finding_is_read_from_what_no_script_replies() {
        let int = Reply::Int;
        let status = Reply::Status("OK".into());
        for reply in [Reply::Nil, int(2), int(-1), status, Reply::Other] {
            assert_eq!(Answer::read_key(reply.clone()), None, "{reply:?}");
        }
        assert_eq!(Answer::read_key(list(&[int(1)])), None);
        for items in [
            &[text(), int(-3), Reply::Nil][..],
            &[text(), int(5), int(7)],
            &[text(), int(5)],
            &[],
        ] {
            assert!(holder(list(items)).is_none(), "{items:?}");
        }
        let foreign = [text(), int(5), Reply::Text(b"9007199254740992".to_vec())];
        let held = holder(list(&foreign)).unwrap().unwrap();
        assert_eq!(held.fencing_token(), None, "no token is that high");
    }
}
