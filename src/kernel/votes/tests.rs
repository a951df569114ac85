//! Tests of the votes: how many decide a call, and what they decide.

use super::*;
use crate::protocol::answer::Wanted;
use crate::protocol::one_or_many::OneOrMany;
use crate::token::FencingToken;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const TOKEN: FencingToken = FencingToken::new(7);

const ACQUIRE: Verb = Verb::Acquire(Wanted {
    names: 1,
    reserved: 0,
    proposed: Some(7),
});

fn granted() -> Option<Answer> {
    Some(Answer::Granted(OneOrMany::One(TOKEN)))
}

fn refused_by(holder: &str, remaining: Option<Duration>) -> Answer {
    Answer::Refused(RefusedName {
        name: 0,
        holder: holder.into(),
        remaining,
        detail: None,
    })
}

fn refused(holder: &str, left: u64) -> Option<Answer> {
    Some(refused_by(holder, Some(ms(left))))
}

/// Returns the verdict of `all` servers on an acquiring call, after these votes.
fn acquire<const N: usize>(all: usize, votes: [Option<Answer>; N]) -> Verdict {
    let mut counted = Votes::new(ACQUIRE, Majority::of(all));
    for vote in votes {
        assert!(!counted.is_won(), "decided too early");
        counted.count(vote);
    }
    counted.verdict()
}

fn decided(answer: Option<Answer>) -> Verdict {
    answer.map_or(Verdict::Open, Verdict::Decided)
}

#[test]
fn a_majority_of_grants_acquires() {
    assert_eq!(acquire(3, [granted()]), Verdict::Open);
    assert_eq!(acquire(3, [granted(), granted()]), decided(granted()));
    assert_eq!(acquire(3, [granted(), None, granted()]), decided(granted()));
    assert_eq!(
        acquire(5, [granted(), refused("x", 1), granted(), granted()]),
        decided(granted())
    );
    assert_eq!(acquire(1, [granted()]), decided(granted()));
    assert_eq!(
        acquire(2, [granted()]),
        Verdict::Open,
        "half is not a majority"
    );
    assert_eq!(acquire(4, [granted(), granted(), None]), Verdict::Open);
}

#[test]
fn too_few_answers_are_no_refusal() {
    assert_eq!(acquire(3, [None, None]), Verdict::Unknown);
    assert_eq!(acquire(3, [refused("x", 1), None, None]), Verdict::Unknown);
    assert_eq!(acquire(2, [granted(), None]), Verdict::Unknown);
}

#[test]
fn a_refusal_names_the_holder_of_a_majority() {
    assert_eq!(
        acquire(3, [refused("x", 9), refused("x", 5)]),
        decided(refused("x", 9))
    );
    assert_eq!(
        acquire(3, [granted(), refused("x", 9), refused("x", 5)]),
        decided(refused("x", 5)),
        "one expired key is enough"
    );
    assert_eq!(
        acquire(3, [refused("x", 9), refused("y", 5)]),
        Verdict::Open,
        "one holder may have two"
    );
    assert_eq!(
        acquire(3, [refused("x", 9), refused("y", 5), granted()]),
        Verdict::Decided(Answer::Split)
    );
    assert_eq!(
        acquire(3, [granted(), refused("x", 9), None]),
        Verdict::Decided(Answer::Split)
    );
    assert_eq!(
        acquire(5, [refused("y", 1), refused("y", 1), refused("x", 1)]),
        Verdict::Open,
        "x may still get three"
    );
    let endless = Some(refused_by("x", None));
    assert_eq!(
        acquire(3, [refused("x", 5), endless]),
        Verdict::Decided(refused_by("x", None))
    );
}

#[test]
fn a_token_that_is_too_low_is_reported_with_the_highest_counter() {
    let low = |last| Some(Answer::TooLow(last));
    assert_eq!(
        acquire(3, [low(9), granted(), granted()]),
        decided(granted())
    );
    assert_eq!(
        acquire(3, [low(9), low(12)]),
        Verdict::Decided(Answer::TooLow(12))
    );
    assert_eq!(
        acquire(3, [low(9), granted(), refused("x", 1)]),
        Verdict::Decided(Answer::TooLow(9))
    );
    assert_eq!(
        acquire(3, [low(9), refused("x", 1), refused("x", 1)]),
        decided(refused("x", 1))
    );
}

#[test]
fn a_holder_needs_a_majority_and_lasts_as_long_as_it() {
    let seen = |value: &str, left, token| {
        let token = Some(FencingToken::new(token));
        let holder = Holder::new(value.into(), Some(ms(left)), token);
        Some(Answer::Holder(Some(holder)))
    };
    let read = |votes: &[Option<Answer>]| {
        let mut counted = Votes::new(Verb::Inspect, Majority::of(3));
        votes.iter().for_each(|vote| counted.count(vote.clone()));
        counted.verdict()
    };
    assert_eq!(
        read(&[seen("x", 9, 7), seen("x", 5, 8)]),
        decided(seen("x", 5, 8))
    );
    assert_eq!(read(&[seen("x", 9, 7), seen("y", 5, 8)]), Verdict::Open);
    let free = || Some(Answer::Holder(None));
    assert_eq!(read(&[free(), seen("y", 5, 8), free()]), decided(free()));
    assert_eq!(
        read(&[free(), seen("x", 9, 7), seen("y", 5, 8)]),
        decided(free())
    );
    assert_eq!(read(&[free(), seen("x", 9, 7), None]), Verdict::Unknown);
    assert_eq!(read(&[None, None]), Verdict::Unknown);
    let endless = Holder::new("x".into(), None, None);
    let endless = || Some(Answer::Holder(Some(endless.clone())));
    assert_eq!(read(&[endless(), endless()]), decided(endless()));
}

#[test]
fn a_ping_needs_replies_of_a_majority() {
    let ping = |votes: &[Option<Answer>]| {
        let mut counted = Votes::new(Verb::Ping, Majority::of(3));
        votes.iter().for_each(|vote| counted.count(vote.clone()));
        counted.verdict()
    };
    let pong = || Some(Answer::Done);
    assert_eq!(ping(&[pong(), None]), Verdict::Open);
    assert_eq!(ping(&[pong(), None, pong()]), decided(pong()));
    assert_eq!(ping(&[None, None]), Verdict::Unknown);
}

#[test]
fn a_lease_needs_a_majority_of_all() {
    let counted = |all, votes: &[Option<Answer>]| {
        let mut counted = Votes::new(Verb::Renew, Majority::of(all));
        votes.iter().for_each(|vote| counted.count(vote.clone()));
        counted.verdict()
    };
    let ours = || Some(Answer::Ours);
    let gone = || Some(Answer::Gone);
    let taken = || Some(Answer::Foreign(b"x".to_vec()));
    assert_eq!(counted(3, &[ours(), ours()]), decided(ours()));
    assert_eq!(counted(3, &[ours(), None]), Verdict::Open);
    assert_eq!(counted(3, &[ours(), None, None]), Verdict::Unknown);
    assert_eq!(counted(3, &[ours(), gone(), None]), Verdict::Unknown);
    assert_eq!(counted(3, &[gone(), gone()]), decided(gone()));
    assert_eq!(counted(3, &[gone(), taken()]), decided(gone()));
    assert_eq!(counted(3, &[taken(), taken()]), decided(taken()));
    assert_eq!(counted(5, &[gone(), gone(), ours()]), Verdict::Open);
    assert_eq!(
        counted(4, &[gone(), gone()]),
        decided(gone()),
        "two of four are too few to keep"
    );
    assert_eq!(counted(5, &[None, None, None]), Verdict::Unknown);
}
