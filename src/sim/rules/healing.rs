//! Rules of healing: when a member of a quorum gets the key of a lease back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::rounds::{Client, WALL, granted, refused};
use crate::clock::Instant;
use crate::error::{Cause, Error};
use crate::holder_id::HolderId;
use crate::kernel::command::{Attempt, What};
use crate::kernel::effects::Effects;
use crate::kernel::fault::Fault;
use crate::kernel::held::HeldLease;
use crate::kernel::operation::Wanted;
use crate::lease::status::LeaseStatus;
use crate::lost::Lost;
use crate::mutant::{Mutant, is_needed};
use crate::protocol::answer::Answer;
use crate::runtime::commands::ForServer;
use crate::sim::rules::{SECOND, at};

/// Returns the commands of a renewal at `ms`.
fn renewal(client: &mut Client, lease: &Arc<HeldLease>, ms: u64) -> Vec<ForServer> {
    let fx = &mut Effects::default();
    let id = lease.id.as_str().as_bytes();
    client.kernel.doubt(&"a".into(), id, at(ms), fx);
    client.due(at(ms))
}

/// The members with these numbers confirm a renewal, and the others say that the key is gone.
/// Returns what is sent then.
fn renewed(client: &mut Client, renewal: &[ForServer], by: &[usize], ms: u64) -> Vec<ForServer> {
    let mut more = Vec::new();
    for out in renewal {
        assert!(matches!(out.command.what, What::Renew { .. }), "{out:?}");
        let answer = if by.contains(&out.server) {
            Answer::Ours
        } else {
            Answer::Gone
        };
        more.extend(client.end(out, Ok(answer), at(ms)));
    }
    more
}

/// The third member has lost the key, and its connection. Returns its join.
fn joins(client: &mut Client, lease: &Arc<HeldLease>, ms: u64) -> ForServer {
    client.link += 1;
    let first = renewal(client, lease, ms);
    assert_eq!(first.len(), 3);
    assert!(renewed(client, &first, &[0, 1], ms + 1).is_empty());
    let again = client.due(at(ms + 2));
    assert_eq!(
        again.len(),
        2,
        "at once, without the empty member: {again:?}"
    );
    let mut join = renewed(client, &again, &[0, 1], ms + 3);
    assert_eq!(join.len(), 1, "{join:?}");
    join.remove(0)
}

fn id_of(join: &ForServer) -> &HolderId {
    join.command.acquires().expect("a join acquires")
}

#[test]
fn a_member_that_lost_its_data_joins_under_the_next_number_with_the_last_token() {
    let mut client = Client::new();
    let lease = client.acquired();
    let join = joins(&mut client, &lease, 100);
    assert_eq!((join.server, id_of(&join)), (2, &lease.id.numbered(1)));
    let What::Acquire { attempt, .. } = &join.command.what else {
        panic!("{join:?}")
    };
    let Attempt::Join(token) = *attempt else {
        panic!("{attempt:?}")
    };
    assert!(token >= WALL + 3, "the last of its block: {token}");
    client.end(&join, Ok(granted()), at(110));
    let next = renewal(&mut client, &lease, 200);
    let asked: Vec<&What> = next.iter().map(|out| &out.command.what).collect();
    let is_numbered = |what: &&&What| matches!(what, What::Renew { id, .. } if id.number() == 1);
    assert_eq!(
        (asked.len(), asked.iter().filter(is_numbered).count()),
        (3, 1)
    );
    // It votes: the lease outlasts the loss of another member.
    renewed(&mut client, &next, &[1, 2], 201);
    let mut fx = Effects::default();
    let status = lease.status(at(202), &mut fx);
    assert!(matches!(status, LeaseStatus::Held(_)), "{status:?}");
}

/// A full server, for example, which has room again later. Nobody has deleted the key there.
#[test]
fn a_member_that_refused_the_lock_with_an_error_joins_over_the_same_connection() {
    let mut client = Client::new();
    let full = Err(Fault::Rejected(Error::Closed));
    let lease = client.acquired_by([Ok(granted()), Ok(granted()), full]);
    let first = renewal(&mut client, &lease, 100);
    assert_eq!(first.len(), 3, "it may have the key");
    renewed(&mut client, &first, &[0, 1], 101);
    let again = client.due(at(102));
    let join = renewed(&mut client, &again, &[0, 1], 103);
    assert_eq!(join.len(), 1, "{join:?}");
    assert_eq!(id_of(&join[0]), &lease.id.numbered(1));
}

/// The third member joins in none of these renewals, although its connection has ended.
fn joins_no_more(client: &mut Client, lease: &Arc<HeldLease>) {
    client.link += 1;
    for ms in [200, 300] {
        let next = renewal(client, lease, ms);
        assert_eq!(next.len(), 2);
        assert!(renewed(client, &next, &[0, 1], ms + 1).is_empty());
    }
}

#[test]
fn a_member_whose_key_was_deleted_joins_no_more() {
    let mut client = Client::new();
    let lease = client.acquired();
    let first = renewal(&mut client, &lease, 100);
    renewed(&mut client, &first, &[0, 1], 101);
    joins_no_more(&mut client, &lease);
}

/// An operator releases the lock there, and then the connection breaks.
#[test]
fn a_member_that_has_announced_a_release_joins_no_more() {
    let mut client = Client::new();
    let lease = client.acquired();
    client.engine.deleted(2, &lease.id);
    joins_no_more(&mut client, &lease);
}

/// Two addresses lead to one server.
#[test]
fn a_member_that_refuses_a_join_because_of_its_own_lease_does_not_count() {
    let mut client = Client::new();
    let lease = client.acquired();
    let join = joins(&mut client, &lease, 100);
    client.end(&join, Ok(refused(lease.id.as_str())), at(110));
    assert_eq!(
        client.links.ran_twice.load(Ordering::Relaxed),
        1,
        "the names are compared"
    );
    let next = renewal(&mut client, &lease, 200);
    assert_eq!(next.len(), 2);
}

#[test]
fn a_join_without_a_reply_is_undone_and_the_next_one_has_another_number() {
    let mut client = Client::new();
    let lease = client.acquired();
    let join = joins(&mut client, &lease, 100);
    let lost = Err(Fault::Unknown(Cause::text("reset")));
    client.end(&join, lost, at(110));
    let undo = client.due(at(110));
    let of_join = |out: &ForServer| match &out.command.what {
        What::Undo { ids } => ids.as_slice() == [lease.id.numbered(1)] && out.server == 2,
        _ => false,
    };
    assert!(undo.len() == 1 && of_join(&undo[0]), "{undo:?}");
    let next = renewal(&mut client, &lease, 200);
    let join = renewed(&mut client, &next, &[0, 1], 201);
    assert_eq!(join.len(), 1, "{join:?}");
    assert_eq!(id_of(&join[0]), &lease.id.numbered(2));
}

/// A key that another client has left there keeps the member from joining until it expires.
#[test]
fn joins_that_take_nothing_use_up_no_numbers() {
    let mut client = Client::new();
    let lease = client.acquired();
    let mut join = joins(&mut client, &lease, 100);
    let refusals = [
        Ok(refused("x")),
        Ok(Answer::TooLow(9)),
        Err(Fault::NotRun(Cause::text("down"))),
    ];
    for (ms, end) in [200, 300, 400].into_iter().zip(refusals) {
        assert_eq!(id_of(&join), &lease.id.numbered(1));
        client.end(&join, end, at(ms));
        let next = renewal(&mut client, &lease, ms + 10);
        join = renewed(&mut client, &next, &[0, 1], ms + 11).remove(0);
    }
    assert_eq!(id_of(&join), &lease.id.numbered(1));
}

/// The lease is released while its join is under way: the release is behind it.
#[test]
fn a_join_under_way_is_released_with_its_lease() {
    let mut client = Client::new();
    let lease = client.acquired();
    let join = joins(&mut client, &lease, 100);
    let (fx, now) = (&mut Effects::default(), at(110));
    client
        .kernel
        .begin_unlock(&lease, lease.token(), false, now, fx);
    let out = client.due(now);
    let leaves: Vec<(usize, u16)> = out
        .iter()
        .filter_map(|out| match &out.command.what {
            What::Leave { id, .. } => Some((out.server, id.number())),
            _ => None,
        })
        .collect();
    assert_eq!(leaves, [(0, 0), (1, 0), (2, 1)]);
    let resends = |at: Instant| client.engine.may_resend(&client.kernel, join.no, at);
    assert!(!resends(now), "its release is behind it");
}

/// The third member refused the lock. Another holder takes both others, and one of them is heard.
#[test]
fn a_lease_is_taken_if_another_holder_has_what_its_majority_needs() {
    let mut client = Client::new();
    let refused = Ok(refused("y"));
    let lease = client.acquired_by([Ok(granted()), Ok(granted()), refused]);
    let renewal = renewal(&mut client, &lease, 100);
    assert_eq!(renewal.len(), 2);
    let taken = Ok(Answer::Foreign(b"x".to_vec()));
    client.end(&renewal[0], taken, at(101));
    let mut fx = Effects::default();
    let status = lease.status(at(102), &mut fx);
    assert!(
        matches!(status, LeaseStatus::Lost(Lost::Taken)),
        "{status:?}"
    );
}

/// A second holder takes one member after the other, and renewals come in between.
#[test]
fn a_member_that_another_holder_has_counts_for_that_later_too() {
    let mut client = Client::new();
    let lease = client.acquired();
    for (ms, taken) in [(100, 2), (200, 1)] {
        for out in renewal(&mut client, &lease, ms) {
            let answer = if out.server == taken {
                Answer::Foreign(b"x".to_vec())
            } else {
                Answer::Ours
            };
            client.end(&out, Ok(answer), at(ms + 1));
        }
    }
    let mut fx = Effects::default();
    let status = lease.status(at(300), &mut fx);
    assert!(
        matches!(status, LeaseStatus::Lost(Lost::Taken)),
        "{status:?}"
    );
}

/// A key that was deleted at one member may have been deleted at the others since.
#[test]
fn a_member_joins_only_if_the_others_have_the_key_after_its_loss() {
    is_needed(Mutant::HealsBeforeTheOthers, || {
        let mut client = Client::new();
        let lease = client.acquired();
        client.link += 1;
        let mut first = renewal(&mut client, &lease, 100);
        first.rotate_right(1);
        if !renewed(&mut client, &first, &[0, 1], 101).is_empty() {
            return false;
        }
        let again = client.due(at(102));
        assert!(renewed(&mut client, &again, &[], 103).is_empty());
        client.due(at(300)).is_empty()
    });
}

#[test]
fn a_join_that_is_granted_after_the_loss_of_its_lease_is_undone() {
    is_needed(Mutant::LateJoinRevives, || {
        let mut client = Client::new();
        let lease = client.acquired();
        let join = joins(&mut client, &lease, 100);
        for out in renewal(&mut client, &lease, 200) {
            if out.server < 2 {
                client.end(&out, Ok(Answer::Gone), at(201));
            }
        }
        client.end(&join, Ok(granted()), at(202));
        let is_undone = |out: &ForServer| match &out.command.what {
            What::Undo { ids } => ids.contains(&lease.id.numbered(1)) && out.server == 2,
            _ => false,
        };
        client.due(at(203)).iter().any(is_undone)
    });
}

/// Returns the commands of a change of ttl at `ms`.
fn set_ttl(client: &mut Client, lease: &Arc<HeldLease>, ttl: Duration, ms: u64) -> Vec<ForServer> {
    let fx = &mut Effects::default();
    let operate = (client.kernel).operate(lease, lease.token(), Wanted::SetTtl(ttl), at(ms), fx);
    operate.expect("it is held");
    let change = client.due(at(ms));
    assert_eq!(change.len(), 3);
    change
}

#[test]
fn a_member_that_joins_does_not_count_for_the_renewal_under_way() {
    is_needed(Mutant::JoinVotesAtOnce, || {
        let mut client = Client::new();
        let lease = client.acquired();
        let join = joins(&mut client, &lease, 100);
        let change = set_ttl(&mut client, &lease, 20 * SECOND, 200);
        client.end(&change[0], Ok(Answer::Ours), at(201));
        client.end(&join, Ok(granted()), at(201));
        let is_confirmed = lease.covers(at(10_000));
        client.end(&change[2], Ok(Answer::Ours), at(202));
        assert!(lease.covers(at(10_000)), "it has voted itself");
        !is_confirmed
    });
}

/// Only two members have granted the lock, and the third has joined since.
#[test]
fn a_forced_release_ends_a_lease_that_the_other_members_have_joined() {
    let mut client = Client::new();
    let lease = client.acquired_by([Ok(granted()), Ok(granted()), Ok(refused("y"))]);
    let first = renewal(&mut client, &lease, 100);
    let join = renewed(&mut client, &first, &[0, 1], 101);
    assert_eq!(join.len(), 1, "{join:?}");
    client.end(&join[0], Ok(granted()), at(102));
    let next = renewal(&mut client, &lease, 200);
    renewed(&mut client, &next, &[2], 201);
    let mut fx = Effects::default();
    let status = lease.status(at(202), &mut fx);
    assert!(matches!(status, LeaseStatus::Lost(_)), "{status:?}");
}

/// A full server, for example.
#[test]
fn a_member_that_rejects_a_renewal_still_has_the_key() {
    let mut client = Client::new();
    let lease = client.acquired();
    for ms in [100, 200] {
        let renewal = renewal(&mut client, &lease, ms);
        assert_eq!(renewal.len(), 3);
        for out in renewal {
            let end = match out.server {
                2 => Err(Fault::Rejected(Error::Closed)),
                _ => Ok(Answer::Ours),
            };
            assert!(client.end(&out, end, at(ms + 1)).is_empty());
        }
    }
}

/// The reply to a join is lost, and its key refuses the next one.
#[test]
fn a_join_that_is_refused_by_an_earlier_one_is_repeated() {
    let mut client = Client::new();
    let lease = client.acquired();
    let join = joins(&mut client, &lease, 100);
    client.end(&join, Err(Fault::Unknown(Cause::text("reset"))), at(110));
    assert_eq!(client.due(at(110)).len(), 1, "its undo");
    for ms in [200, 300] {
        let next = renewal(&mut client, &lease, ms);
        let join = renewed(&mut client, &next, &[0, 1], ms + 1).remove(0);
        assert_eq!(id_of(&join), &lease.id.numbered(2));
        let earlier = lease.id.numbered(1);
        client.end(&join, Ok(refused(earlier.as_str())), at(ms + 2));
    }
    let compared = client.links.ran_twice.load(Ordering::Relaxed);
    assert_eq!(compared, 0, "no two addresses of one server");
}

/// A renewal has ended as unknown, and one of its replies comes while the next one is under way.
#[test]
fn a_late_reply_to_a_renewal_is_no_vote_in_the_next() {
    let mut client = Client::new();
    let lease = client.acquired();
    let first = renewal(&mut client, &lease, 100);
    client.due(at(1_101));
    let next = renewal(&mut client, &lease, 1_200);
    assert_eq!(next.len(), 3);
    client.end(&first[2], Ok(Answer::Gone), at(1_201));
    for (out, answer) in next.iter().zip([Answer::Ours, Answer::Gone, Answer::Ours]) {
        client.end(out, Ok(answer), at(1_202));
    }
    let mut fx = Effects::default();
    let status = lease.status(at(1_203), &mut fx);
    assert!(matches!(status, LeaseStatus::Held(_)), "{status:?}");
}

#[test]
fn a_doubt_during_a_change_of_ttl_renews_after_it() {
    let mut client = Client::new();
    let lease = client.acquired();
    let change = set_ttl(&mut client, &lease, 20 * SECOND, 100);
    assert!(renewal(&mut client, &lease, 101).is_empty());
    for out in &change {
        client.end(out, Ok(Answer::Ours), at(102));
    }
    assert_eq!(client.due(at(102)).len(), 3);
}
