//! Sets that have nothing while they wait.

use std::time::Duration;

use super::bed::{Bed, MS, held_by, is_needed};
use crate::cause::Cause;
use crate::kernel::effects::Effects;
use crate::kernel::failure::Failure;
use crate::kernel::fault::Fault;
use crate::kernel::unlock::Unlocked;
use crate::kernel::waiter::Wait;
use crate::lost::Lost;
use crate::mutant::Mutant;
use crate::name::Name;
use crate::set::acquire::{SetAcquire, SetOutcome, SetStep};
use crate::wait_policy::{Backoff, WaitPolicy};

impl Bed {
    /// Begins a set that waits for the second name, which somebody holds.
    fn watching(&mut self) -> SetAcquire {
        self.wait = Wait::Queue(WaitPolicy::Wake);
        self.server(&["SET", "lock:b", "somebody", "PX", "100000"]);
        let (set, step) = self.first_step();
        let (set, step) = self.go_on(set, step);
        assert!(matches!(step, SetStep::Park(_)), "{step:?}");
        assert_eq!(self.taken(), ["b"], "it has nothing");
        set
    }

    /// The messages of a name arrive from now on.
    fn listen(&self, name: &str) {
        let mut fx = Effects::default();
        let now = self.at();
        (self.kernel).listening_since(&Name::from(name), now, now, &mut fx);
    }

    fn announce(&self, name: &str) {
        let mut fx = Effects::default();
        (self.kernel).announced(&Name::from(name), b"somebody", self.at(), &mut fx);
    }
}

#[test]
fn a_message_wakes_a_set_that_watches() {
    let mut bed = Bed::without_queues();
    let set = bed.watching();
    bed.listen("b");
    // Messages may have been missed before.
    let (set, step) = bed.wake(set);
    assert!(matches!(step, SetStep::Park(_)), "{step:?}");
    bed.now += 10 * MS;
    let (set, step) = bed.wake(set);
    assert!(matches!(step, SetStep::Park(_)), "{step:?}");
    bed.server(&["DEL", "lock:b"]);
    bed.announce("b");
    let (set, step) = bed.wake(set);
    assert!(set.has_waited());
    assert_eq!(bed.unlock(&held_by(step)), Unlocked::Released);
    assert_eq!(bed.kernel.counts(), [0; 3]);
    // Nobody watches any more: the entry is gone once others may want it no more.
    bed.turn(3_000);
    assert!(!bed.kernel.listens(&Name::from("b")));
}

/// The name is released after the command that was refused, before the set watches it.
#[test]
fn a_message_before_the_watch_is_not_missed() {
    is_needed(Mutant::WatchAfterTheRefusal, || {
        let mut bed = Bed::without_queues();
        let _listens = bed.watching();
        bed.listen("b");
        let (mut set, mut fx) = (bed.set(), Effects::default());
        let now = bed.at();
        let SetStep::Send(commands, _) = set.begin(&bed.kernel, now, &mut fx) else {
            panic!("it sends its commands");
        };
        let ends = bed.run_all(&commands);
        bed.server(&["DEL", "lock:b"]);
        bed.announce("b");
        let step = set.replied(ends, [now; 2], &bed.kernel, &mut fx);
        let (_, step) = bed.go_on(set, step);
        matches!(step, SetStep::Done(SetOutcome::Held(_)))
    });
}

#[test]
fn without_messages_a_set_asks_again_after_pauses() {
    let mut bed = Bed::without_queues();
    let set = bed.watching();
    bed.server(&["DEL", "lock:b"]);
    let (_, step) = bed.turns(set, 100, 10);
    held_by(step);
}

#[test]
fn the_attempts_of_a_set_are_used_up() {
    let mut bed = Bed::without_queues();
    bed.server(&["SET", "lock:b", "somebody", "PX", "100000"]);
    let pauses = Backoff::new(Duration::from_millis(10), Duration::from_millis(20));
    bed.wait = Wait::Queue(WaitPolicy::Backoff(pauses.attempts(3)));
    let (set, step) = bed.first_step();
    let (set, step) = bed.go_on(set, step);
    assert!(matches!(step, SetStep::Park(_)), "{step:?}");
    let start = bed.now;
    let (_, step) = bed.turns(set, 100, 1);
    match step {
        SetStep::Done(SetOutcome::Refused(Some(by))) => assert_eq!(by.by.name, 1),
        step => panic!("{step:?}"),
    }
    assert!(
        bed.now - start < 40 * MS,
        "two pauses of at most 10 and 20 ms"
    );
}

#[test]
fn a_set_asks_once_more_before_its_deadline() {
    let mut bed = Bed::without_queues();
    bed.deadline = bed.at().after(Duration::from_secs(20));
    let set = bed.watching();
    bed.listen("b");
    let (set, step) = bed.turns(set, 3, 1);
    assert!(matches!(step, SetStep::Park(_)), "{step:?}");
    // Nobody announces it.
    bed.now += 19_700 * MS;
    let (set, step) = bed.wake(set);
    assert!(matches!(step, SetStep::Park(_)), "{step:?}");
    bed.server(&["DEL", "lock:b"]);
    let (_, step) = bed.turns(set, 30, 10);
    held_by(step);
}

#[test]
fn a_set_is_refused_at_its_deadline_by_the_last_holder() {
    let mut bed = Bed::without_queues();
    bed.deadline = bed.at().after(Duration::from_secs(5));
    let set = bed.watching();
    let (_, step) = bed.turns(set, 1_000, 10);
    match step {
        SetStep::Done(SetOutcome::Refused(Some(by))) => assert_eq!(by.by.name, 1),
        step => panic!("{step:?}"),
    }
    assert_eq!(bed.taken(), ["b"]);
}

#[test]
fn the_end_of_an_own_set_wakes_one_that_watches() {
    let mut bed = Bed::without_queues();
    let own = bed.held();
    bed.wait = Wait::Queue(WaitPolicy::Wake);
    let (set, step) = bed.first_step();
    assert!(matches!(step, SetStep::Park(_)), "{step:?}");
    assert_eq!(bed.unlock(&own), Unlocked::Released);
    let (_, step) = bed.wake(set);
    held_by(step);
}

#[test]
fn the_end_of_the_client_ends_a_set_that_watches() {
    let mut bed = Bed::without_queues();
    let set = bed.watching();
    let mut fx = Effects::default();
    bed.kernel.close(bed.at(), &mut fx);
    bed.carry_out(fx);
    let (_, step) = bed.wake(set);
    let is_closed = matches!(step, SetStep::Done(SetOutcome::Failed(Failure::Closed)));
    assert!(is_closed, "{step:?}");
}

#[test]
fn the_end_of_the_client_ends_a_held_set_once() {
    let mut bed = Bed::new();
    let lease = bed.held();
    let told = lease.listen(bed.at(), &mut Effects::default());
    let mut fx = Effects::default();
    bed.kernel.close(bed.at(), &mut fx);
    bed.carry_out(fx);
    assert_eq!(told.try_recv(), Ok(Lost::ShutDown));
    assert_eq!(bed.told.len(), 1);
    bed.turn(1);
    assert!(bed.taken().is_empty());
}

#[test]
fn a_set_gives_up_if_redis_is_silent() {
    for has_queues in [false, true] {
        let mut bed = if has_queues {
            Bed::new()
        } else {
            Bed::without_queues()
        };
        bed.deadline = bed.at().after(Duration::from_secs(1));
        let (mut set, mut fx) = (bed.set(), Effects::default());
        let mut step = set.begin(&bed.kernel, bed.at(), &mut fx);
        let mut tries = 0;
        let failure = loop {
            let now = bed.at();
            let not_run = || Err(Fault::NotRun(Cause::text("connection refused")));
            step = match step {
                SetStep::Send(commands, _) => {
                    tries += 1;
                    let ends = commands.iter().map(|_| not_run()).collect();
                    set.replied(ends, [now; 2], &bed.kernel, &mut fx)
                }
                SetStep::Park(until) => {
                    assert!(until > now);
                    bed.now += 1 + now.until(until).as_micros() as u64;
                    set.woken(&bed.kernel, bed.at(), &mut fx)
                }
                SetStep::Done(SetOutcome::Failed(failure)) => break failure,
                step => panic!("{step:?}"),
            };
        };
        assert!((3..30).contains(&tries), "{tries}");
        match failure {
            Failure::Unreachable { cause, .. } => {
                let cause = cause.expect("it is known").to_string();
                assert!(cause.contains("connection refused"), "{cause}");
            }
            failure => panic!("{failure:?}"),
        }
        assert!(bed.at() >= bed.deadline);
    }
}
