//! The schedule of all leases: when the engine must renew one, or tell its loss.

use std::sync::Arc;

use crate::clock::{Instant, LONGEST_SLEEP};
use crate::lease::held::HeldLease;
use crate::lease::schedule::Leases;
use crate::lease::status::{Due, RENEWAL_WINDOW};
use crate::runtime::wake::Wake;
use crate::sync::Mutex;

pub(crate) struct Timer {
    state: Mutex<State>,
    wake: Arc<Wake>,
}

struct State {
    leases: Leases,
    /// When the engine's sleep ends; `Instant::START` while it is awake.
    sleeps_until: Instant,
    /// The next sleep may be long if there is still no lease.
    is_idle: bool,
    /// Leases are no longer accepted.
    drained: bool,
}

impl Timer {
    pub(in crate::runtime) fn new(wake: Arc<Wake>) -> Self {
        let state = State {
            leases: Leases::default(),
            sleeps_until: Instant::START,
            is_idle: false,
            drained: false,
        };
        Self {
            state: Mutex::new(state),
            wake,
        }
    }

    /// Schedules the next action for the lease, as of `now`, and replaces an earlier schedule.
    /// Returns false if the lease has ended or is being released.
    pub(crate) fn schedule(&self, hold: &Arc<HeldLease>, now: Instant) -> bool {
        let mut state = self.state.lock();
        // The lease is read under the timer's lock. Otherwise an outdated action could replace the
        // one that another thread scheduled after it changed the lease. A lease that was released
        // meanwhile could be added, and nothing would remove it.
        let (at, by) = match hold.lease(|lease| lease.due(now)) {
            Due::At { best, latest } => (best, latest),
            Due::Renewal => (now, now),
            Due::Nothing => return false,
        };
        if !state.drained {
            state.leases.arm(hold, at);
            if by < state.sleeps_until {
                self.wake.wake();
            }
        }
        true
    }

    /// Wakes the engine, whose clock has jumped.
    #[cfg(feature = "testing")]
    pub(crate) fn wake(&self) {
        self.wake.wake();
    }

    /// Removes a lease from the schedule.
    pub(crate) fn forget(&self, hold: &HeldLease) {
        let forgotten = self.state.lock().leases.disarm(hold);
        // The last reference may own a user's closure, which must not be dropped under the lock.
        drop(forgotten);
    }

    /// Returns true if any lease is in use.
    pub(crate) fn has_leases(&self) -> bool {
        !self.state.lock().leases.is_empty()
    }

    /// Returns all leases in use.
    pub(crate) fn all(&self) -> Vec<Arc<HeldLease>> {
        self.state.lock().leases.all()
    }

    /// Removes and returns all leases, and accepts no more.
    pub(crate) fn drain(&self) -> Vec<Arc<HeldLease>> {
        let mut state = self.state.lock();
        state.drained = true;
        state.leases.drain()
    }

    /// Returns the leases that are due within `RENEWAL_WINDOW`, if one is due at `now`.
    pub(in crate::runtime) fn take_due(&self, now: Instant) -> Vec<Arc<HeldLease>> {
        let mut state = self.state.lock();
        let mut due = Vec::new();
        if state.leases.next() <= now {
            while let Some(hold) = state.leases.next_due(now.after(RENEWAL_WINDOW)) {
                due.push(hold);
            }
        }
        due
    }

    /// Begins a sleep at `now`: until a lease is due, or until `other`. Returns its end.
    ///
    /// From here on, whoever schedules a lease that is due earlier wakes the engine.
    pub(in crate::runtime) fn begin_sleep(&self, now: Instant, other: Instant) -> Instant {
        let mut state = self.state.lock();
        let is_empty = state.leases.is_empty();
        // The first sleep without leases ends within `LONGEST_SLEEP`. A lease that is due later
        // need not wake the engine, so a caller that locks and unlocks repeatedly does not wake it
        // each time.
        let longest = match is_empty && state.is_idle {
            true => Instant::NEVER,
            false => now.after(LONGEST_SLEEP),
        };
        state.is_idle = is_empty && !state.is_idle;
        state.sleeps_until = state.leases.next().min(other).min(longest);
        state.sleeps_until
    }

    /// Ends a sleep: the engine looks at the leases before it sleeps again.
    pub(in crate::runtime) fn end_sleep(&self) {
        self.state.lock().sleeps_until = Instant::START;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::held::tests::held_for_an_hour;
    use crate::runtime::tests::runtime_of;
    use std::thread;
    use std::time::Duration;

    /// Otherwise each of them would wake the engine.
    #[test]
    fn short_leases_keep_the_engine_from_a_long_sleep() {
        let timer = Timer::new(Arc::new(Wake::new().unwrap()));
        let begin = || {
            let now = Instant::now();
            timer.begin_sleep(now, Instant::NEVER) == Instant::NEVER
        };
        assert!(!begin());
        assert!(begin(), "without leases it sleeps until it is woken");
        for _ in 0..3 {
            // It is woken by a lease that has ended since.
            let hold = held_for_an_hour(Instant::now());
            assert!(timer.schedule(&hold, Instant::now()));
            timer.forget(&hold);
            timer.end_sleep();
            assert!(!begin());
            timer.end_sleep();
            assert!(begin());
        }
    }

    #[test]
    fn lease_that_the_engine_works_on_is_in_use() {
        let timer = Timer::new(Arc::new(Wake::new().unwrap()));
        let hold = held_for_an_hour(Instant::now());
        hold.lease(|lease| lease.suspect(Instant::now()));
        assert!(timer.schedule(&hold, Instant::now()));
        assert_eq!(timer.take_due(Instant::now()).len(), 1);
        assert!(timer.has_leases());
        assert_eq!(timer.all().len(), 1);
        timer.forget(&hold);
        assert!(timer.all().is_empty());
    }

    /// One thread suspects a lease, for example because its slot has moved, while another handles
    /// the reply to a renewal. An outdated action must not replace a newer one in the schedule.
    #[test]
    fn lease_suspected_while_its_renewal_ends_is_checked_at_once() {
        let runtime = runtime_of("redis://127.0.0.1:1");
        let hold = held_for_an_hour(Instant::now());
        let is_late = |_: &u32| {
            let request = hold.lease(|lease| lease.begin_renewal(Instant::now()));
            let request = request.expect("no other renewal is in flight");
            thread::scope(|scope| {
                // While this thread holds the timer's lock, the other one suspects the lease and
                // waits for the lock. Most likely it changes the schedule after this thread.
                let schedule = runtime.timer.state.lock();
                scope.spawn(|| runtime.suspect(&hold));
                let began = Instant::now();
                while began.until(Instant::now()) < Duration::from_micros(100) {
                    thread::yield_now();
                }
                let now = Instant::now();
                hold.lease(|lease| lease.confirmed(now, now, request));
                drop(schedule);
                runtime.reschedule(&hold);
            });
            runtime.timer.state.lock().leases.next() > Instant::now()
        };
        let late = (0..2_000).filter(is_late).count();
        assert_eq!(
            late, 0,
            "rounds in which the timer would check the lease later"
        );
    }
}
