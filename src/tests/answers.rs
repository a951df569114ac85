//! Checks of the answers that are read from a reply to a script or a command.

use crate::holder::Holder;
use crate::protocol::answer::{Answer, KeyState, Wanted};
use crate::protocol::place::{Refreshed, read_grant};
use crate::protocol::reply::Reply;
use crate::protocol::verb::Verb;
use crate::redis::inspect::read_page;
use crate::runtime::engine::shared_stats;
use crate::token::FencingToken;

use super::arbitrary::NO_TOKEN;

/// One name, whose lock can be handed off.
const ONE: Wanted = Wanted {
    after: false,
    reserved: 63,
    proposed: None,
};

const AFTER: Wanted = Wanted {
    after: true,
    reserved: 0,
    proposed: None,
};

const PROPOSED: Option<u64> = Some(1_764_000_000_000_000);

/// Checks the answers of every verb to `reply`, none of which may be larger than `most`.
pub(super) fn check_answers(reply: &Reply, most: usize) {
    let proposed = |wanted| Wanted {
        proposed: PROPOSED,
        ..wanted
    };
    let refresh = |places| Verb::Refresh {
        places,
        is_shared: true,
    };
    let verbs = [
        Verb::Acquire(ONE),
        Verb::Acquire(proposed(ONE)),
        Verb::Acquire(AFTER),
        Verb::Release,
        Verb::PassOn,
        Verb::Undo(1),
        Verb::Undo(3),
        Verb::Renew,
        Verb::RenewMany(1),
        Verb::RenewMany(3),
        Verb::Inspect,
        Verb::ReadFence,
        Verb::InspectPermits,
        Verb::InspectShared,
        refresh(1),
        refresh(3),
        Verb::AddStats,
        Verb::Count,
        Verb::Asking,
        Verb::Ping,
        Verb::Probe,
    ];
    for verb in verbs {
        check_answer(verb, reply, most);
    }
    check_command(reply, most);
    if let Reply::Text(payload) = reply {
        check_grant(payload);
    }
}

/// Has no wildcard arm: a new verb needs a check here, and an entry in the list above.
fn check_answer(verb: Verb, reply: &Reply, most: usize) {
    match verb {
        Verb::Acquire(wanted) => check_acquired(reply, wanted),
        Verb::Release | Verb::PassOn | Verb::Renew => check_ended(verb, reply),
        Verb::Undo(ids) => check_undone(reply, ids),
        Verb::RenewMany(leases) => check_renewed(reply, leases),
        Verb::Inspect | Verb::ReadFence | Verb::InspectPermits | Verb::InspectShared => {
            check_inspected(verb, reply, most);
        }
        Verb::Refresh { places, .. } => check_refreshed(reply, places),
        Verb::AddStats => check_said(verb, reply, matches!(reply, Reply::Int(1))),
        Verb::Probe => check_said(verb, reply, matches!(reply, Reply::Int(0 | 1))),
        Verb::Count => check_said(verb, reply, matches!(reply, Reply::Int(0..))),
        Verb::Asking => check_said(verb, reply, is_status(reply, "OK")),
        Verb::Ping => check_said(verb, reply, is_status(reply, "PONG")),
    }
}

/// Checks that `verb` reads an answer from `reply` if `is_said`, and none otherwise.
fn check_said(verb: Verb, reply: &Reply, is_said: bool) {
    assert_eq!(verb.read(reply.clone()).is_some(), is_said, "{reply:?}");
}

fn is_status(reply: &Reply, text: &str) -> bool {
    matches!(reply, Reply::Status(said) if said == text)
}

const fn is_token(number: u64) -> bool {
    number > 0 && number < NO_TOKEN as u64
}

/// Returns the integers of a list; empty for anything else.
fn numbers(reply: &Reply) -> Vec<i64> {
    let Reply::List(items) = reply else {
        return Vec::new();
    };
    let number = |item: &Reply| match item {
        Reply::Int(number) => Some(*number),
        _ => None,
    };
    items.iter().filter_map(number).collect()
}

fn check_acquired(reply: &Reply, wanted: Wanted) {
    match Verb::Acquire(wanted).read(reply.clone()) {
        Some(Answer::Granted(token)) => {
            let token = token.value();
            assert!(is_token(token) && is_token(token + wanted.reserved));
            match (wanted.proposed, reply) {
                (None, Reply::Text(digits)) => {
                    assert_eq!(str::from_utf8(digits).unwrap().parse(), Ok(token));
                    assert!(digits.iter().all(u8::is_ascii_digit));
                }
                (Some(ours), reply) => {
                    assert_eq!(ours, token);
                    assert_eq!(numbers(reply), [1, token as i64], "{reply:?}");
                }
                (None, other) => panic!("{other:?}"),
            }
        }
        Some(Answer::Skipped) => assert!(wanted.after && *reply == Reply::Int(0)),
        Some(Answer::Refused(refusal)) => {
            assert_eq!(refusal.name, 0);
            assert_eq!(numbers(reply).first(), Some(&0));
        }
        Some(Answer::TooLow(last)) => assert!(is_token(last) && wanted.proposed <= Some(last)),
        None => {}
        other => panic!("{other:?} of {reply:?}"),
    }
}

/// Checks the answers about a lease that was renewed or released.
fn check_ended(verb: Verb, reply: &Reply) {
    match verb.read(reply.clone()) {
        Some(Answer::Ours) => assert_eq!(*reply, Reply::Int(1)),
        Some(Answer::PlainRelease) => assert_eq!((verb, reply), (Verb::PassOn, &Reply::Int(2))),
        Some(Answer::Gone) => assert_eq!(*reply, Reply::Int(0)),
        Some(Answer::Foreign(value)) => assert_eq!(*reply, Reply::Text(value)),
        None => {}
        other => panic!("{other:?} of {reply:?}"),
    }
}

/// Checks the answer about many leases: an item says something of one lease alone.
fn check_renewed(reply: &Reply, leases: usize) {
    let numbers = numbers(reply);
    let is_said = matches!(reply, Reply::List(items) if items.len() == leases)
        && numbers.len() == leases
        && numbers.iter().all(|number| (0..=2).contains(number));
    match Verb::RenewMany(leases).read(reply.clone()) {
        Some(Answer::Renewed(found)) => {
            let number = |state: &KeyState| match state {
                KeyState::Gone => 0,
                KeyState::Ours => 1,
                KeyState::Foreign => 2,
            };
            assert!(is_said && found.iter().map(number).eq(numbers), "{reply:?}");
        }
        None => assert!(!is_said, "{reply:?}"),
        other => panic!("{other:?} of {reply:?}"),
    }
}

/// Checks the answers about holders and their tokens.
fn check_inspected(verb: Verb, reply: &Reply, most: usize) {
    let (size, tokens) = match verb.read(reply.clone()) {
        Some(Answer::Fence(text)) => (text.map_or(0, |text| text.len()), Vec::new()),
        Some(Answer::Holder(holder)) => said_of(holder.as_slice()),
        Some(Answer::Holders { is_shared, holders }) => {
            assert!(is_shared || holders.len() <= 1);
            said_of(&holders)
        }
        Some(Answer::Permits(permits)) => {
            assert_eq!(numbers(reply).first(), Some(&(permits.out as i64)));
            let ids = permits.holders.iter().filter_map(Holder::holder_id);
            let size = ids.map(|id| id.as_str().len()).sum();
            (size, permits.last_token.into_iter().collect())
        }
        None => return,
        other => panic!("{other:?} of {reply:?}"),
    };
    assert!(size <= most, "{reply:?}");
    assert!(tokens.iter().all(|token| is_token(token.value())));
}

/// Returns the number of bytes that holders have together, and their tokens.
fn said_of(holders: &[Holder]) -> (usize, Vec<FencingToken>) {
    let size = holders.iter().map(|holder| holder.value().len()).sum();
    (
        size,
        holders.iter().filter_map(Holder::fencing_token).collect(),
    )
}

fn check_refreshed(reply: &Reply, places: usize) {
    let read = |is_shared| {
        let verb = Verb::Refresh { places, is_shared };
        match verb.read(reply.clone()) {
            Some(Answer::Places(found, _)) => Some(found),
            _ => None,
        }
    };
    let Some(found) = read(true) else {
        assert_eq!(read(false), None);
        return;
    };
    let said = found.iter().map(|place| match place {
        Refreshed::Waiting(_) => 0,
        Refreshed::Gone => -1,
        Refreshed::Granted(token) => {
            assert!(is_token(token.value()));
            token.value() as i64
        }
    });
    let mut numbers = numbers(reply);
    assert!(numbers.pop().is_some(), "{reply:?}");
    assert!(numbers.pop().is_some_and(|ttl| ttl >= -2), "{reply:?}");
    assert!(said.clone().eq(numbers), "{reply:?}");
    assert_eq!(found.len(), places);
    let is_of_lock = said.filter(|said| *said > 0).count() <= 1;
    assert_eq!(read(false).is_some(), is_of_lock, "a lock has one holder");
}

pub(super) fn check_grant(payload: &[u8]) {
    if let Some((id, tokens)) = read_grant(payload) {
        let said = format!(" {id}", id = id.as_str()).into_bytes();
        let numbers = payload.strip_suffix(&*said).unwrap();
        let numbers = numbers.strip_prefix(b"grant ").unwrap();
        let [first, want] = numbers.split(|byte| *byte == b' ').collect::<Vec<_>>()[..] else {
            panic!("{payload:?}")
        };
        assert!(first.iter().all(u8::is_ascii_digit));
        let block = want.strip_prefix(b"+").unwrap_or(want);
        if want == b"r" || want.contains(&b'/') {
            assert_eq!(tokens.count, 1, "{payload:?}");
        } else {
            let count = str::from_utf8(block).unwrap().parse();
            assert_eq!(Ok(tokens.count), count, "{payload:?}");
            assert!(block.iter().all(u8::is_ascii_digit));
        }
        assert!(is_token(tokens.first.value()) && tokens.count > 0);
        assert!(is_token(tokens.first.value() + tokens.count - 1));
    }
}

fn check_command(reply: &Reply, most: usize) {
    if let Some((cursor, keys)) = read_page(reply.clone()) {
        assert!(cursor.len() <= 20 && cursor.iter().all(u8::is_ascii_digit));
        assert!(cursor.len() + keys.iter().map(Vec::len).sum::<usize>() <= most);
    }
    let is_list = matches!(reply, Reply::List(_));
    assert!(
        is_list || shared_stats::read(reply.clone()).is_none(),
        "{reply:?}"
    );
}

fn check_undone(reply: &Reply, ids: usize) {
    let Some(Answer::Undone(undone)) = Verb::Undo(ids).read(reply.clone()) else {
        return;
    };
    assert!(undone.removed.iter().all(|id| *id < ids), "{reply:?}");
    if ids > 1 {
        let said = undone.removed.iter().map(|id| *id as i64 + 1);
        // The first item is the value of another holder; without one, it is the number 0.
        let skipped = usize::from(undone.other.is_none());
        assert!(
            said.eq(numbers(reply).into_iter().skip(skipped)),
            "{reply:?}"
        );
    }
}
