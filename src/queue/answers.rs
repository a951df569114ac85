//! What a call may say of a name when its time is over: that it is taken, or that Redis could not be asked. No I/O, no clock.

use std::time::Duration;

use crate::clock::Instant;

/// How long before its deadline a call asks a last time: enough for an answer from most servers.
const LAST_ATTEMPT: Duration = Duration::from_millis(250);

/// A call does not say `None` on a refusal older than this without asking once more.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// From when until when a call waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) start: Instant,
    pub(crate) deadline: Instant,
}

impl Span {
    /// When the call asks for the last answer that it needs.
    pub(crate) fn last_attempt(self) -> Instant {
        let half = self.start.until(self.deadline) / 2;
        self.deadline.before(LAST_ATTEMPT.min(half))
    }

    /// When a call that was refused at `now` must ask again, whatever it hears until then.
    pub(crate) fn asks_again_by(self, now: Instant) -> Instant {
        let last_attempt = self.last_attempt();
        if now < last_attempt && now.after(FRESH_FOR) < self.deadline {
            last_attempt
        } else {
            Instant::NEVER
        }
    }

    /// Whether an answer can come in time to what is asked at `now`, if the last one `took` so long. On a server that
    /// works, a question that is cut off would turn a refusal into an error.
    pub(crate) fn has_time(self, now: Instant, took: Duration) -> bool {
        now.after(took.saturating_mul(2)) < self.deadline
    }
}

/// What Redis last said about a name to the waiters of this client.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Answers {
    refused: Option<Refusal>,
    unanswered: Option<Unanswered>,
}

#[derive(Clone, Copy, Debug)]
struct Refusal {
    at: Instant,
    /// Until then, as Redis said, its holder keeps the name.
    until: Instant,
}

/// A command sent since the last answer.
#[derive(Clone, Copy, Debug)]
struct Unanswered {
    since: Instant,
    /// No answer will come; until then it may.
    has_failed: bool,
}

impl Answers {
    /// Somebody asks Redis at `now`.
    pub(crate) fn asked(&mut self, now: Instant) {
        self.unanswered.get_or_insert(Unanswered {
            since: now,
            has_failed: false,
        });
    }

    /// No answer came to what was asked.
    pub(crate) fn failed(&mut self, now: Instant) {
        self.asked(now);
        if let Some(asked) = &mut self.unanswered {
            asked.has_failed = true;
        }
    }

    /// Redis answered, and said nothing about this name.
    pub(crate) fn answered(&mut self) {
        self.unanswered = None;
    }

    /// At `now` somebody held the name, for `remaining` more; `None` for ever.
    pub(crate) fn refused(&mut self, now: Instant, remaining: Option<Duration>) {
        self.unanswered = None;
        self.refused = Some(Refusal {
            at: now,
            until: remaining.map_or(Instant::NEVER, |remaining| now.after(remaining)),
        });
    }

    fn refusal_in(&self, span: Span) -> Option<Refusal> {
        self.refused.filter(|refusal| refusal.at >= span.start)
    }

    /// Whether a call whose time is over may say that somebody else holds the name. Its last definite answer was a
    /// refusal, and either the holder keeps the name until the deadline, or nothing that was asked since is unanswered.
    pub(crate) fn is_taken(&self, span: Span) -> bool {
        // What was asked a moment ago may be on its way, as it always is on a server that works.
        let counts = |asked: Unanswered| asked.has_failed || asked.since <= span.last_attempt();
        let is_unanswered = self.unanswered.is_some_and(counts);
        self.refusal_in(span)
            .is_some_and(|refusal| refusal.until >= span.deadline || !is_unanswered)
    }

    /// Whether a call asks once more before its deadline, rather than only wait for that.
    pub(crate) fn needs_another_reply(&self, span: Span) -> bool {
        let Some(refusal) = self.refusal_in(span) else {
            return true;
        };
        if refusal.at >= span.last_attempt() {
            return false;
        }
        match self.unanswered {
            // It was asked in vain, and the refusal before is good for the rest of the time.
            Some(asked) if asked.has_failed => refusal.until < span.deadline,
            Some(_) => true,
            None => refusal.at.after(FRESH_FOR) < span.deadline,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn at(n: u64) -> Instant {
        Instant::START.after(ms(n))
    }

    /// From 1 s to 4 s; its last look is at 3.75 s.
    fn span() -> Span {
        Span {
            start: at(1_000),
            deadline: at(4_000),
        }
    }

    fn refused(now: u64, remaining: u64) -> Answers {
        let mut answers = Answers::default();
        answers.refused(at(now), Some(ms(remaining)));
        answers
    }

    #[test]
    fn smoke() {
        assert!(!Answers::default().is_taken(span()), "nobody said so");
        assert!(refused(3_500, 10).is_taken(span()));
    }

    #[test]
    fn a_refusal_before_the_call_says_nothing() {
        assert!(!refused(999, 60_000).is_taken(span()));
        assert!(refused(1_000, 60_000).is_taken(span()));
    }

    #[test]
    fn what_was_asked_since_in_vain_outweighs_a_refusal() {
        let mut answers = refused(3_000, 500);
        answers.asked(at(3_600));
        answers.failed(at(3_900));
        assert!(!answers.is_taken(span()));
        answers.asked(at(3_950));
        assert!(!answers.is_taken(span()));
        answers.refused(at(3_960), Some(ms(1)));
        assert!(answers.is_taken(span()), "answered after all");
        let mut unsent = refused(3_000, 500);
        unsent.failed(at(3_900));
        assert!(!unsent.is_taken(span()));
    }

    #[test]
    fn a_refusal_for_the_rest_of_the_time_is_good_whatever_was_asked_since() {
        let unanswered = |mut answers: Answers| {
            answers.failed(at(3_900));
            answers
        };
        assert!(!unanswered(refused(3_000, 999)).is_taken(span()));
        assert!(unanswered(refused(3_000, 1_000)).is_taken(span()));
        let mut endless = Answers::default();
        endless.refused(at(1_500), None);
        assert!(unanswered(endless).is_taken(span()));
    }

    #[test]
    fn what_another_asked_a_moment_ago_may_be_on_its_way() {
        let asked = |now| {
            let mut answers = refused(3_000, 500);
            answers.asked(at(now));
            answers
        };
        assert!(asked(3_751).is_taken(span()));
        assert!(!asked(3_750).is_taken(span()), "for too long");
        let mut again = asked(3_700);
        again.asked(at(3_990));
        assert!(!again.is_taken(span()), "the first is unanswered");
    }

    #[test]
    fn an_answer_about_another_name_ends_the_silence_and_is_no_refusal() {
        let mut answers = refused(3_000, 500);
        answers.failed(at(3_500));
        answers.answered();
        assert!(answers.is_taken(span()));
        let mut answers = Answers::default();
        answers.answered();
        assert!(!answers.is_taken(span()));
    }

    #[test]
    fn who_was_never_refused_asks() {
        assert!(Answers::default().needs_another_reply(span()));
        assert!(refused(999, 60_000).needs_another_reply(span()));
    }

    #[test]
    fn a_refusal_older_than_a_second_is_asked_about_once_more() {
        assert!(refused(2_999, 60_000).needs_another_reply(span()));
        assert!(!refused(3_000, 1).needs_another_reply(span()));
        assert_eq!(span().asks_again_by(at(2_999)), at(3_750));
        assert_eq!(span().asks_again_by(at(3_000)), Instant::NEVER);
    }

    #[test]
    fn one_that_is_asked_about_is_not_asked_about_again() {
        let mut answers = refused(3_750, 1);
        assert!(!answers.needs_another_reply(span()));
        answers.asked(at(3_800));
        assert!(!answers.needs_another_reply(span()));
        let mut good = refused(2_000, 60_000);
        good.failed(at(3_800));
        assert!(!good.needs_another_reply(span()));
    }

    #[test]
    fn who_finds_another_without_an_answer_asks_itself() {
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
    fn what_cannot_be_answered_in_time_is_not_asked() {
        assert!(span().has_time(at(3_979), ms(10)));
        assert!(!span().has_time(at(3_980), ms(10)));
        assert!(!span().has_time(at(4_000), ms(0)));
    }

    #[test]
    fn a_short_call_asks_at_half_its_time() {
        let short = Span {
            start: at(0),
            deadline: at(100),
        };
        assert_eq!(short.last_attempt(), at(50));
        assert_eq!(short.asks_again_by(at(10)), Instant::NEVER);
        let endless = Span {
            start: at(0),
            deadline: Instant::NEVER,
        };
        assert!(endless.last_attempt() > at(u64::MAX / 2));
    }
}
