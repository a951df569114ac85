//! Checks of the answers that are read from a reply to a script or a command.

use crate::protocol::answer::{Answer, Wanted};
use crate::protocol::place::{Refreshed, read_grant};
use crate::protocol::reply::Reply;
use crate::protocol::verb::Verb;
use crate::redis::inspect::{read_count, read_listeners, read_page};
use crate::runtime::io::shared_stats;

use super::arbitrary::NO_TOKEN;

/// Checks the answers of every verb to `reply`, none of which may be larger than `most`.
pub(super) fn check_answers(reply: &Reply, most: usize) {
    let one = Wanted {
        names: 1,
        reserved: 63,
        proposed: None,
    };
    let proposed = Some(1_764_000_000_000_000);
    check_acquired(reply, one);
    check_acquired(reply, Wanted { proposed, ..one });
    let (names, reserved) = (3, 0);
    check_acquired(
        reply,
        Wanted {
            names,
            reserved,
            ..one
        },
    );
    check_acquired(
        reply,
        Wanted {
            names,
            proposed,
            ..one
        },
    );
    check_set(reply, names);
    check_lease(reply, most);
    check_refreshed(reply, 1);
    check_refreshed(reply, 3);
    check_command(reply, most);
    if let Reply::Text(payload) = reply {
        check_grant(payload);
    }
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
        Some(Answer::Granted(tokens)) => {
            let tokens = tokens.iter().map(|token| token.value());
            assert!(
                tokens
                    .clone()
                    .all(|token| is_token(token) && is_token(token + wanted.reserved))
            );
            assert!(
                tokens
                    .clone()
                    .all(|token| wanted.proposed.is_none_or(|ours| ours == token))
            );
            let count = if wanted.proposed.is_some() {
                1
            } else {
                wanted.names
            };
            assert_eq!(tokens.len(), count);
            let granted = std::iter::once(1).chain(tokens.map(|token| token as i64));
            assert!(granted.eq(numbers(reply)), "{reply:?}");
        }
        Some(Answer::Refused(refusal)) => {
            assert!(refusal.name < wanted.names);
            assert_eq!(numbers(reply).first(), Some(&0));
        }
        Some(Answer::TooLow(last)) => assert!(is_token(last) && wanted.proposed <= Some(last)),
        None => {}
        other => panic!("{other:?} of {reply:?}"),
    }
}

fn check_set(reply: &Reply, names: usize) {
    match Verb::AcquireSet(names).read(reply.clone()) {
        Some(Answer::Granted(tokens)) => {
            assert_eq!(tokens.len(), names);
            assert!(tokens.iter().all(|token| is_token(token.value())));
        }
        Some(Answer::Queued(refusal, kept)) => {
            assert!(refusal.name < names && (kept == 0 || kept == refusal.name));
        }
        Some(Answer::Gone) => assert_eq!(*reply, Reply::Int(0)),
        None => {}
        other => panic!("{other:?} of {reply:?}"),
    }
}

fn check_lease(reply: &Reply, most: usize) {
    let release = |counts| Verb::Release { counts }.read(reply.clone());
    for answer in [Verb::Renew.read(reply.clone()), release(false)] {
        if let Some(Answer::Ours(receivers)) = answer {
            assert!(receivers.is_none() && *reply == Reply::Int(1), "{reply:?}");
        }
    }
    if let Some(Answer::Ours(receivers)) = release(true) {
        let said = receivers.map(|receivers| receivers as i64).unwrap();
        assert_eq!(numbers(reply), [1, said]);
    }
    if let Some(Answer::Holder(Some(holder))) = Verb::Inspect.read(reply.clone()) {
        assert!(holder.value().len() <= most);
        assert!(
            holder
                .fencing_token()
                .is_none_or(|token| is_token(token.value()))
        );
    }
}

fn check_refreshed(reply: &Reply, places: usize) {
    let read = |is_shared| {
        let verb = Verb::Refresh { places, is_shared };
        match verb.read(reply.clone()) {
            Some(Answer::Places(found)) => Some(found),
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
        let [first, count] = &numbers.split(|byte| *byte == b' ').collect::<Vec<_>>()[..] else {
            panic!("{payload:?}")
        };
        assert!(first.iter().chain(*count).all(u8::is_ascii_digit));
        assert!(is_token(tokens.first.value()) && tokens.count > 0);
        assert!(is_token(tokens.first.value() + tokens.count - 1));
    }
}

fn check_command(reply: &Reply, most: usize) {
    if let Some((cursor, keys)) = read_page(reply.clone()) {
        assert!(cursor.len() <= 20 && cursor.iter().all(u8::is_ascii_digit));
        assert!(cursor.len() + keys.iter().map(Vec::len).sum::<usize>() <= most);
    }
    if let Some(Answer::Fence(Some(text))) = Verb::ReadFence.read(reply.clone()) {
        assert!(text.len() <= most);
    }
    assert_eq!(
        read_count(reply).is_some(),
        matches!(reply, Reply::Int(0..))
    );
    if let Some(listeners) = read_listeners(reply, b"c") {
        assert_eq!(numbers(reply), [listeners as i64]);
    }
    let is_list = matches!(reply, Reply::List(_));
    assert!(is_list || shared_stats::read(reply).is_none(), "{reply:?}");
    for verb in [Verb::AddStats, Verb::Asking, Verb::Count, Verb::Ping] {
        let is_said = match verb {
            Verb::AddStats => matches!(reply, Reply::Int(0 | 1)),
            Verb::Count => matches!(reply, Reply::Int(0..)),
            Verb::Ping => matches!(reply, Reply::Status(said) if said == "PONG"),
            _ => matches!(reply, Reply::Status(said) if said == "OK"),
        };
        assert_eq!(verb.read(reply.clone()).is_some(), is_said, "{reply:?}");
    }
    check_undone(reply, 1);
    check_undone(reply, 3);
}

fn check_undone(reply: &Reply, ids: usize) {
    let Some(Answer::Undone(undone)) = Verb::Undo(ids).read(reply.clone()) else {
        return;
    };
    assert!(undone.removed.iter().all(|id| *id < ids), "{reply:?}");
    if ids > 1 {
        let said = undone.removed.iter().map(|id| *id as i64 + 1);
        let skipped = usize::from(undone.other.is_none());
        assert!(
            said.eq(numbers(reply).into_iter().skip(skipped)),
            "{reply:?}"
        );
    }
}
