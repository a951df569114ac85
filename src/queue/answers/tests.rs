//! Tests of the replies about a name, and of what they allow at a deadline.

use super::*;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn at(n: u64) -> Instant {
    Instant::START.after(ms(n))
}

/// From 1 s to 4 s; its last attempt is at 3.75 s.
fn span() -> Span {
    Span {
        start: at(1_000),
        deadline: at(4_000),
        last_reply_took: ms(10),
    }
}

fn refused(now: u64, remaining: u64) -> Answers {
    let mut answers = Answers::default();
    answers.refused(at(now), at(now), Some(ms(remaining)));
    answers
}

/// A refusal by this holder, for 10 ms more.
fn by(holder: &str) -> Arc<RefusedName> {
    Arc::new(RefusedName {
        name: 0,
        holder: holder.into(),
        remaining: Some(ms(10)),
        detail: None,
    })
}

#[test]
fn a_recent_refusal_counts_and_no_reply_does_not() {
    assert!(!Answers::default().is_taken(span()), "no refusal yet");
    assert!(refused(3_500, 10).is_taken(span()));
}

#[test]
fn a_refusal_before_the_call_does_not_count() {
    assert!(!refused(999, 60_000).is_taken(span()));
    assert!(refused(1_000, 60_000).is_taken(span()));
}

#[test]
fn a_late_refusal_does_not_replace_that_of_a_later_command() {
    let mut answers = refused(1_500, 60_000);
    answers.refused(at(999), at(1_600), Some(ms(60_000)));
    assert!(answers.is_taken(span()));
}

#[test]
fn a_later_command_without_a_reply_outweighs_a_refusal() {
    let mut answers = refused(3_000, 500);
    answers.asked(at(3_600));
    answers.failed(at(3_900));
    assert!(!answers.is_taken(span()));
    answers.asked(at(3_950));
    assert!(!answers.is_taken(span()));
    answers.refused(at(3_960), at(3_960), Some(ms(1)));
    assert!(answers.is_taken(span()), "answered after all");
    let mut unsent = refused(3_000, 500);
    unsent.failed(at(3_900));
    assert!(!unsent.is_taken(span()));
}

#[test]
fn a_refusal_that_lasts_until_the_deadline_counts_despite_later_failures() {
    let unanswered = |mut answers: Answers| {
        answers.failed(at(3_900));
        answers
    };
    assert!(!unanswered(refused(3_000, 999)).is_taken(span()));
    assert!(unanswered(refused(3_000, 1_000)).is_taken(span()));
    let mut endless = Answers::default();
    endless.refused(at(1_500), at(1_500), None);
    assert!(unanswered(endless).is_taken(span()));
}

#[test]
fn a_command_sent_a_moment_ago_does_not_count_as_unanswered() {
    let asked = |now| {
        let mut answers = refused(3_000, 500);
        answers.asked(at(now));
        answers
    };
    assert!(asked(3_951).is_taken(span()));
    assert!(!asked(3_950).is_taken(span()), "for too long");
    let mut again = asked(3_700);
    again.asked(at(3_990));
    assert!(!again.is_taken(span()), "the first is unanswered");
}

#[test]
fn a_command_counts_as_unanswered_after_twice_the_time_of_the_last_reply() {
    let distant = Span {
        last_reply_took: ms(150),
        ..span()
    };
    let mut answers = refused(3_000, 500);
    answers.asked(at(3_701));
    assert!(answers.is_taken(distant));
    // The reply may have been one to another call.
    let mut by_other = Answers::default();
    by_other.asked(at(2_000));
    by_other.refused(at(2_000), at(2_150), Some(ms(500)));
    by_other.asked(at(3_701));
    assert!(by_other.is_taken(span()));
    for mut answers in [refused(3_000, 500), by_other] {
        answers.refused(at(3_000), at(3_000), Some(ms(500)));
        answers.asked(at(3_700));
        assert!(!answers.is_taken(distant));
    }
}

#[test]
fn a_key_that_expired_shortly_before_the_deadline_is_not_said_to_be_held_if_nothing_answers() {
    // Another waiter asks when the key expires; its own deadline is later.
    for expires in 3_010..=3_950 {
        let mut answers = refused(3_000, expires - 3_000);
        answers.asked(at(expires));
        assert!(!answers.is_taken(span()), "asked at {expires} ms");
    }
}

#[test]
fn a_command_in_flight_at_the_deadline_does_not_matter_if_the_key_lasts_longer() {
    let mut answers = refused(3_500, 500);
    for sent in [3_510, 3_750, 3_999] {
        answers.asked(at(sent));
        assert!(answers.is_taken(span()), "asked at {sent} ms");
    }
}

#[test]
fn a_reply_about_another_name_ends_the_silence_but_is_no_refusal() {
    let mut answers = refused(3_000, 500);
    answers.failed(at(3_500));
    answers.answered();
    assert!(answers.is_taken(span()));
    let mut answers = Answers::default();
    answers.answered();
    assert!(!answers.is_taken(span()));
}

#[test]
fn a_refresh_on_a_slow_server_is_not_overdue_before_twice_the_time_of_the_last() {
    for (sent, is_taken) in [(3_101, true), (3_100, false)] {
        let mut answers = Answers::default();
        answers.asked(at(2_000));
        answers.refreshed(
            at(2_000),
            at(2_450),
            &[Refreshed::Waiting(Some(ms(10)))],
            &by(""),
        );
        answers.asked(at(sent));
        assert_eq!(answers.is_taken(span()), is_taken, "sent at {sent} ms");
    }
}

#[test]
fn a_refresh_that_finds_nobody_waiting_is_no_refusal() {
    let mut answers = refused(1_500, 10);
    answers.failed(at(2_000));
    answers.refreshed(at(2_000), at(2_010), &[Refreshed::Gone], &by(""));
    assert!(answers.is_taken(span()), "by the refusal before");
    assert!(!answers.is_taken(Span {
        start: at(1_501),
        ..span()
    }));
}

#[test]
fn a_call_that_was_never_refused_tries_again() {
    assert!(Answers::default().needs_another_reply(span()));
    assert!(refused(999, 60_000).needs_another_reply(span()));
}

#[test]
fn a_refusal_older_than_a_second_needs_another_reply() {
    assert!(refused(2_999, 60_000).needs_another_reply(span()));
    assert!(!refused(3_000, 1).needs_another_reply(span()));
    assert_eq!(span().asks_again_by(at(2_999)), at(3_750));
    assert_eq!(span().asks_again_by(at(3_000)), Instant::NEVER);
}

#[test]
fn a_fresh_or_lasting_refusal_needs_no_other_reply() {
    let mut answers = refused(3_750, 1);
    assert!(!answers.needs_another_reply(span()));
    answers.asked(at(3_800));
    assert!(!answers.needs_another_reply(span()));
    let mut good = refused(2_000, 60_000);
    good.failed(at(3_800));
    assert!(!good.needs_another_reply(span()));
}

#[test]
fn a_call_tries_itself_if_the_command_of_another_is_unanswered() {
    for has_failed in [false, true] {
        let mut answers = refused(3_500, 100);
        answers.asked(at(3_600));
        if has_failed {
            answers.failed(at(3_700));
        }
        assert!(answers.needs_another_reply(span()));
    }
}

#[test]
fn a_command_that_cannot_be_answered_in_time_is_not_sent() {
    assert!(span().has_time(at(3_979)));
    assert!(!span().has_time(at(3_980)));
    let unanswered = Span {
        last_reply_took: ms(0),
        ..span()
    };
    assert!(!unanswered.has_time(at(4_000)));
}

#[test]
fn a_call_to_a_distant_server_asks_while_there_is_time() {
    for (took, last_attempt) in [(10, 3_750), (83, 3_750), (150, 3_550), (900, 2_500)] {
        let distant = Span {
            last_reply_took: ms(took),
            ..span()
        };
        assert_eq!(distant.last_attempt(), at(last_attempt), "{took} ms");
    }
    for took in [125, 150, 300, 499] {
        let distant = Span {
            last_reply_took: ms(took),
            ..span()
        };
        assert!(distant.has_time(distant.last_attempt().after(ms(took / 2))));
    }
}

#[test]
fn a_short_call_makes_its_last_attempt_at_half_its_time() {
    let short = Span {
        start: at(0),
        deadline: at(100),
        last_reply_took: ms(10),
    };
    assert_eq!(short.last_attempt(), at(50));
    assert_eq!(short.asks_again_by(at(10)), Instant::NEVER);
    let endless = Span {
        start: at(0),
        deadline: Instant::NEVER,
        last_reply_took: ms(10),
    };
    assert!(endless.last_attempt() > at(u64::MAX / 2));
}

#[test]
fn a_refresh_keeps_the_age_of_the_same_holder() {
    let since = |answers: &Answers| {
        let said = answers.last_refusal().unwrap().said.clone().unwrap();
        (said.0.detail, said.1)
    };
    let waits = [Refreshed::Waiting(Some(ms(10)))];
    let first = Arc::new(RefusedName {
        detail: Some(7),
        ..(*by("a")).clone()
    });
    let mut answers = Answers::default();
    answers.refused_by(at(1), at(2), &first);
    answers.refreshed(at(3), at(4), &waits, &by("a"));
    assert_eq!(since(&answers), (Some(7), at(2)));
    assert_eq!(answers.last_refusal().unwrap().until, at(13));
    answers.refreshed(at(5), at(6), &waits, &by("b"));
    assert_eq!(since(&answers), (None, at(6)));
}
