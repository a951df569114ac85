//! Rules of the virtual server: one end for each command, and what one member can do to it.

use std::sync::Arc;

use super::rounds::{Client, granted, refused};
use crate::clock::Instant;
use crate::error::Cause;
use crate::kernel::bounds::{Bound, lower};
use crate::kernel::call::{Call, Step};
use crate::kernel::command::{Attempt, Command, What};
use crate::kernel::effects::Effects;
use crate::kernel::failure::Failure;
use crate::kernel::fault::Fault;
use crate::kernel::held::HeldLease;
use crate::kernel::unlock::Unlock;
use crate::kernel::waiter::Outcome;
use crate::majority::Majority;
use crate::mutant::{Mutant, is_needed};
use crate::protocol::answer::{Answer, Undone};
use crate::quorum::{Event, Quorum, Turn};
use crate::runtime::commands::ForServer;
use crate::sim::rules::{ONE_SERVER, SECOND, at};

fn reset() -> Result<Answer, Fault> {
    Err(Fault::Unknown(Cause::text("reset")))
}

/// The answer to an undo of what is not there.
fn nothing() -> Result<Answer, Fault> {
    Ok(Answer::Undone(Undone {
        removed: Vec::new(),
        other: None,
    }))
}

/// Returns the lease of a call, if it was granted one by now.
fn lease_of(client: &Client, call: &mut Call, now: Instant) -> Option<Arc<HeldLease>> {
    match call.woken(&client.kernel, now, &mut Effects::default()) {
        Step::Done(Outcome::Lease(lease, _)) => Some(lease),
        Step::Park(_) => None,
        step => panic!("{step:?}"),
    }
}

fn leaves(client: &Client, call: &mut Call, now: Instant) {
    let fx = &mut Effects::default();
    call.leave(&client.kernel, Failure::Cancelled, now, fx);
}

/// Returns the members that get an undo.
fn undone(out: &[ForServer]) -> Vec<usize> {
    let undos = out
        .iter()
        .filter(|out| matches!(out.command.what, What::Undo { .. }));
    undos.map(|out| out.server).collect()
}

#[test]
fn a_command_ends_once_whatever_comes_late() {
    is_needed(Mutant::TicketEndsTwice, || {
        let lock = Client::new().lock;
        let mut quorum = Quorum::new(Majority::of(3), SECOND, 0);
        let id = lock.fresh_id("o");
        let what = What::Acquire {
            id: id.clone(),
            ttl: 10 * SECOND,
            tokens: 1,
            attempt: Attempt::Once,
        };
        let mut turn = Turn::new(at(0), &ONE_SERVER);
        quorum.submit(1, Command::new(&lock, what), &mut turn);
        quorum.due(&mut turn);
        let sent = std::mem::take(&mut turn.send);
        for (_, part, _) in sent {
            quorum.ended(part, (Ok(granted()), 1), &mut turn);
        }
        quorum.leave(&[id], &mut turn);
        quorum.due(&mut turn);
        let ended = |event: &&Event| matches!(event, Event::Ended(1, ..));
        turn.events.iter().filter(ended).count() == 1
    });
}

#[test]
fn a_late_grant_of_an_earlier_proposal_is_no_vote_for_the_next() {
    is_needed(Mutant::LateVoteCounts, || {
        let mut client = Client::new();
        let mut call = client.call(at(0));
        let first = client.due(at(0));
        client.end(&first[0], Ok(Answer::TooLow(9)), at(1));
        let undo = client.end(&first[1], Ok(Answer::TooLow(9)), at(1));
        assert_eq!(undone(&undo), [2], "behind the proposal");
        let next = client.due(at(1));
        assert_eq!(next.len(), 3);
        let of = |out: &ForServer| out.command.acquires().cloned();
        assert_ne!(of(&first[2]), of(&next[2]));
        client.end(&first[2], Ok(granted()), at(2));
        client.end(&next[0], Ok(granted()), at(2));
        lease_of(&client, &mut call, at(2)).is_none()
    });
}

#[test]
fn a_call_that_leaves_ends_its_round_at_once() {
    let mut client = Client::new();
    let mut call = client.call(at(0));
    let out = client.due(at(0));
    client.end(&out[0], Ok(granted()), at(1));
    leaves(&client, &mut call, at(2));
    assert_eq!(undone(&client.due(at(2))), [0, 1, 2]);
}

#[test]
fn a_grant_in_the_turn_in_which_its_call_leaves_is_given_back() {
    let mut client = Client::new();
    let mut call = client.call(at(0));
    let out = client.due(at(0));
    client.end(&out[0], Ok(granted()), at(1));
    leaves(&client, &mut call, at(2));
    client.end(&out[1], Ok(granted()), at(2));
    assert_eq!(undone(&client.due(at(2))), [0, 1, 2]);
}

/// The engine stands still for a minute. The ttl is 10 s.
#[test]
fn a_grant_that_is_read_after_its_ttl_is_given_back() {
    is_needed(Mutant::RoundCountsFromReply, || {
        let mut client = Client::new();
        let mut call = client.call(at(0));
        for out in client.due(at(0)) {
            client.end(&out, Ok(granted()), at(60_000));
        }
        lease_of(&client, &mut call, at(60_000)).is_none()
            && undone(&client.due(at(60_000))) == [0, 1, 2]
    });
}

#[test]
fn no_call_waits_for_a_member_that_hangs() {
    is_needed(Mutant::HangingMemberIsAwaited, || {
        let mut client = Client::new();
        let mut call = client.call(at(0));
        let out = client.due(at(0));
        client.end(&out[0], Ok(granted()), at(1));
        client.end(&out[2], Ok(granted()), at(1));
        let Some(lease) = lease_of(&client, &mut call, at(1)) else {
            return false;
        };
        let fx = &mut Effects::default();
        let unlock = (client.kernel).begin_unlock(&lease, lease.token(), false, at(2), fx);
        let Unlock::Wait(cell) = unlock else {
            panic!("the engine sends the release");
        };
        let out = client.due(at(2));
        client.end(&out[0], Ok(Answer::Ours), at(3));
        client.end(&out[2], Ok(Answer::Ours), at(3));
        matches!(*cell.result.lock(), Some(Ok(())))
    });
}

/// A member had restarted, and the others do not answer.
#[test]
fn a_member_votes_once_on_a_release_that_is_tried_again() {
    is_needed(Mutant::MemberVotesTwice, || {
        let mut client = Client::new();
        let lease = client.acquired();
        let fx = &mut Effects::default();
        let unlock = (client.kernel).begin_unlock(&lease, lease.token(), false, at(10), fx);
        let Unlock::Wait(cell) = unlock else {
            panic!("the engine sends the release");
        };
        let ends = [reset(), Ok(Answer::Gone), reset()];
        let mut again = Vec::new();
        for (out, end) in client.due(at(10)).into_iter().zip(ends) {
            again.extend(client.end(&out, end, at(11)));
        }
        for out in again.iter().filter(|out| out.server == 1) {
            client.end(out, Ok(Answer::Gone), at(12));
        }
        cell.result.lock().is_none()
    });
}

/// Four calls are refused by another holder before the third member has answered. Returns its
/// commands.
fn unanswered(client: &mut Client) -> Vec<ForServer> {
    let mut of_third = Vec::new();
    for ms in 0..4 {
        let mut call = client.call(at(ms));
        for out in client.due(at(ms)) {
            if out.server == 2 {
                of_third.push(out);
            } else {
                of_third.extend(client.end(&out, Ok(refused("x")), at(ms)));
            }
        }
        leaves(client, &mut call, at(ms));
    }
    assert_eq!(undone(&of_third), [2; 4]);
    of_third
}

#[test]
fn a_member_that_has_not_answered_about_many_ids_of_a_name_is_not_asked_for_it() {
    lower(Some(Bound::Left));
    is_needed(Mutant::FullMemberRefuses, || {
        let mut client = Client::new();
        let of_third = unanswered(&mut client);
        let mut call = client.call(at(10));
        let out = client.due(at(10));
        if out.is_empty() {
            return false;
        }
        let servers: Vec<usize> = out.iter().map(|out| out.server).collect();
        assert_eq!(servers, [0, 1]);
        for out in out {
            client.end(&out, Ok(granted()), at(11));
        }
        let lease = lease_of(&client, &mut call, at(11)).expect("the others grant it");
        // It answers, and takes part again.
        for out in of_third {
            let end = match out.command.what {
                What::Undo { .. } => nothing(),
                _ => Ok(refused("x")),
            };
            client.end(&out, end, at(12));
        }
        let fx = &mut Effects::default();
        (client.kernel).begin_unlock(&lease, lease.token(), false, at(13), fx);
        for out in client.due(at(13)) {
            client.end(&out, Ok(Answer::Ours), at(14));
        }
        client.call(at(20));
        assert_eq!(client.due(at(20)).len(), 3);
        true
    });
    lower(None);
}

#[test]
fn a_shutdown_counts_an_id_that_more_members_may_have_than_may_fail() {
    let mut client = Client::new();
    let mut call = client.call(at(0));
    let out = client.due(at(0));
    client.end(&out[0], Ok(granted()), at(1));
    leaves(&client, &mut call, at(2));
    let undos = client.due(at(2));
    let mut counts = vec![client.engine.may_exist()];
    for undo in &undos {
        client.end(undo, nothing(), at(3));
        counts.push(client.engine.may_exist());
    }
    assert_eq!(counts, [1, 1, 0, 0]);
}

#[test]
fn a_shutdown_ends_open_rounds_and_waits_for_what_they_may_have_taken() {
    let mut client = Client::new();
    let _call = client.call(at(0));
    let out = client.due(at(0));
    client.end(&out[0], Ok(granted()), at(1));
    client.kernel.close(at(2), &mut Effects::default());
    let undos = client.due(at(2));
    assert_eq!(undone(&undos), [0, 1, 2]);
    for undo in &undos {
        assert!(!client.engine.has_released());
        client.end(undo, nothing(), at(3));
    }
    assert!(client.engine.has_released());
}

/// An hour after its loss, for example.
#[test]
fn a_release_of_a_lease_that_is_forgotten_reaches_all_members() {
    let lock = Client::new().lock;
    let mut quorum = Quorum::new(Majority::of(3), SECOND, 0);
    let id = lock.fresh_id("o");
    let of_one = What::Leave {
        id: id.clone(),
        may_be_plain: false,
    };
    let of_many = What::Undo {
        ids: vec![id.clone()],
    };
    for what in [of_one, of_many] {
        let mut turn = Turn::new(at(0), &ONE_SERVER);
        quorum.submit(1, Command::new(&lock, what), &mut turn);
        quorum.due(&mut turn);
        let reaches = |(member, _, command): (usize, u64, Command)| {
            let is_its = match &command.what {
                What::Leave { id: it, .. } => *it == id,
                What::Undo { ids } => ids.as_slice() == std::slice::from_ref(&id),
                _ => false,
            };
            assert!(is_its, "{command:?}");
            member
        };
        let reached: Vec<usize> = turn.send.into_iter().map(reaches).collect();
        assert_eq!(reached, [0, 1, 2]);
    }
}
