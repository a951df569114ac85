//! A lease in use: what its guards, the timer and the renewals share.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::{Condvar, Mutex};

use crate::clock::{Instant, nap};
use crate::config::{OnLost, OnRenew, Terms};
use crate::holder::HolderId;
use crate::lease::handoff::{Run, Step};
use crate::lease::state::{Lease, Standing};
use crate::lost::Lost;
use crate::name::Name;
use crate::protocol::kind::Keys;
use crate::protocol::one_or_many::Few;
use crate::redis::Receipt;
use crate::replicas::Replicas;
use crate::token::FencingToken;

pub(crate) struct Hold {
    pub(crate) keys: Arc<Keys>,
    pub(crate) id: HolderId,
    /// As they were granted: one for each name, or one for all of them.
    pub(crate) tokens: Few<FencingToken>,
    /// Which servers took it, where there are several.
    pub(crate) receipt: Option<Arc<Receipt>>,
    /// Names this hold in the timer's order; two may be due at the same instant.
    pub(crate) serial: u64,
    /// Who must acknowledge its renewals.
    pub(crate) replicas: Option<Replicas>,
    /// Whom it may be handed on to, and for how long.
    pub(crate) run: Run,
    pub(crate) live: Live,
}

/// One holder's time with a lease.
pub(crate) struct Tenure {
    /// What tells this holder from others of the same lease: the first of its tokens.
    pub(crate) token: FencingToken,
    /// `None` until a holder that the lease was handed to has taken it.
    pub(crate) since: Option<Instant>,
    /// How often in a row the lease may go to another holder, for this one's part.
    pub(crate) handoffs: u32,
    pub(crate) trace_id: Option<Arc<str>>,
    pub(crate) on_lost: Option<Arc<OnLost>>,
    pub(crate) on_renew: Option<Arc<OnRenew>>,
}

/// What changes about a hold, for its own methods alone.
pub(crate) struct Live {
    state: Mutex<State>,
    /// Rung when a renewal or extend has come back.
    answered: Condvar,
    /// When the timer looks next; kept in step with its order under the timer's lock.
    armed: Mutex<Option<Instant>>,
}

struct State {
    lease: Lease,
    tenure: Tenure,
    listeners: Vec<Sender<Lost>>,
    /// The loss was told to the callbacks and the waiters.
    told: bool,
    /// The holder has let go, of what was held or of what was lost.
    let_go: bool,
}

impl State {
    fn stand_for(&mut self, token: FencingToken, now: Instant) -> Standing {
        if self.tenure.token == token {
            self.lease.stand(now)
        } else {
            Standing::Released
        }
    }
}

impl Live {
    pub(crate) fn new(lease: Lease, tenure: Tenure) -> Self {
        let state = State {
            lease,
            tenure,
            listeners: Vec::new(),
            told: false,
            let_go: false,
        };
        Self {
            state: Mutex::new(state),
            answered: Condvar::new(),
            armed: Mutex::new(None),
        }
    }
}

impl Hold {
    /// That of who holds it now.
    pub(crate) fn token(&self) -> FencingToken {
        self.live.state.lock().tenure.token
    }

    /// That of a name, if it is one of those that are held, for the holder that has `token`.
    pub(crate) fn token_of(&self, name: &Name, token: FencingToken) -> Option<FencingToken> {
        let n = self.keys.names.iter().position(|held| held == name)?;
        // What is handed on has one name.
        Some(match &*self.tokens {
            [_] => token,
            each => each.get(n).copied().unwrap_or(token),
        })
    }

    /// Since when who holds it now does so.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.live.state.lock().tenure.since
    }

    pub(crate) fn trace_id(&self) -> Option<Arc<str>> {
        self.live.state.lock().tenure.trace_id.clone()
    }

    pub(crate) fn on_renew(&self) -> Option<Arc<OnRenew>> {
        self.live.state.lock().tenure.on_renew.clone()
    }

    /// How the lease stands at `now`, whoever holds it. Whoever finds it ended latches that for all.
    pub(crate) fn stand(&self, now: Instant) -> Standing {
        self.latching_state(|state| state.lease.stand(now))
    }

    /// How the lease stands at `now` for the holder that has `token`: released, for an earlier one.
    pub(crate) fn stand_for(&self, token: FencingToken, now: Instant) -> Standing {
        self.latching_state(|state| state.stand_for(token, now))
    }

    /// Ends the lease, unless it has ended or is being released.
    pub(crate) fn lose(&self, lost: Lost) {
        self.latching_state(|state| state.lease.lose(lost));
    }

    /// The holder that has `token` lets go: how the lease stood until then. `None` if it has let go before.
    pub(crate) fn release(&self, token: FencingToken, now: Instant) -> Option<Standing> {
        self.latching_state(|state| {
            if state.tenure.token != token || std::mem::replace(&mut state.let_go, true) {
                return None;
            }
            let standing = state.lease.release(now);
            if let Standing::Held(_) = standing {
                // Disconnects those who listen.
                state.listeners.clear();
            }
            Some(standing)
        })
    }

    /// Hands the lease on at `now`, for the holder that has `token`, to a waiter that wants it on `terms`. The
    /// tenure that has ended is for the caller to drop, outside any lock: it may own a user's closure.
    pub(crate) fn hand_on(
        &self,
        token: FencingToken,
        terms: &Terms,
        has_renewed: bool,
        now: Instant,
    ) -> (Step, Option<Tenure>) {
        self.latching_state(|state| {
            let State { lease, tenure, .. } = state;
            // In step with `release`, for one that calls twice.
            if tenure.token != token
                || state.let_go
                || !matches!(lease.stand(now), Standing::Held(_))
            {
                return (Step::Release, None);
            }
            let handoffs = tenure.handoffs.min(terms.handoffs);
            let fits = self.replicas == terms.replicas;
            let step = match self
                .run
                .step(lease, token, terms, handoffs, has_renewed, now)
            {
                step if fits => step,
                _ => Step::Release,
            };
            let Step::HandOn(next) = step else {
                return (step, None);
            };
            lease.hand_on(now, Duration::MAX);
            // Disconnects those who listen.
            state.listeners.clear();
            let next = Tenure {
                token: next,
                since: None,
                handoffs,
                trace_id: None,
                on_lost: None,
                on_renew: None,
            };
            (step, Some(std::mem::replace(&mut state.tenure, next)))
        })
    }

    /// The waiter to whom the lease was handed under the token of `tenure` takes it; false if it is lost.
    pub(crate) fn take(&self, tenure: Tenure, now: Instant, max_hold: Duration) -> bool {
        self.latching_state(|state| {
            if !matches!(state.stand_for(tenure.token, now), Standing::Held(_)) {
                return false;
            }
            state.lease.hand_on(now, max_hold);
            state.tenure = tenure;
            true
        })
    }

    /// A receiver of its own: one message on loss, then, or on release, disconnected.
    pub(crate) fn listen(&self, token: FencingToken, now: Instant) -> Receiver<Lost> {
        let (sender, receiver) = bounded(1);
        self.latching_state(|state| match state.stand_for(token, now) {
            Standing::Released => {}
            Standing::Held(_) | Standing::Lost(_) => state.listeners.push(sender),
        });
        receiver
    }

    /// What renewals ask for, in ms, for log lines.
    pub(crate) fn ttl_ms(&self) -> u64 {
        self.lease(|lease| lease.ttl()).as_millis() as u64
    }

    /// The loss, and the holder's callback, for the one call that then tells it to that and to the waiters.
    pub(crate) fn untold(&self) -> Option<(Lost, Option<Arc<OnLost>>)> {
        let mut state = self.live.state.lock();
        let lost = state.lease.lost().filter(|_| !state.told)?;
        state.told = true;
        Some((lost, state.tenure.on_lost.clone()))
    }

    /// Acts on the state, and tells a loss to those who listen: they hear of it at once, whoever
    /// noticed it.
    fn latching_state<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.live.state.lock();
        let result = act(&mut state);
        if let Some(lost) = state.lease.lost() {
            for listener in state.listeners.drain(..) {
                // Each has room for its one message, and whoever dropped the other end wants none.
                let _ = listener.try_send(lost);
            }
        }
        result
    }

    /// Looks at, or changes, the lease under its lock.
    pub(crate) fn lease<T>(&self, act: impl FnOnce(&mut Lease) -> T) -> T {
        act(&mut self.live.state.lock().lease)
    }

    /// As [`lease`](Self::lease), for the answer to a renewal or extend.
    pub(crate) fn answered<T>(&self, act: impl FnOnce(&mut Lease) -> T) -> T {
        let result = self.lease(act);
        self.live.answered.notify_all();
        result
    }

    /// Begins a renewal or extend by `ask`, for the holder that has `token`, as soon as none is on its
    /// way; `None` past `until`, or once the lease has ended.
    pub(crate) fn begin<T>(
        &self,
        token: FencingToken,
        until: Instant,
        ask: impl Fn(&mut Lease, Instant) -> Option<T>,
    ) -> Option<T> {
        let mut state = self.live.state.lock();
        loop {
            let now = Instant::now();
            if state.tenure.token != token {
                return None;
            }
            if !state.lease.is_asking() || !state.lease.is_open() {
                return ask(&mut state.lease, now);
            }
            if now >= until {
                return None;
            }
            self.live
                .answered
                .wait_for(&mut state, nap(now, until).max(Duration::from_millis(1)));
        }
    }

    pub(crate) fn arm(&self, at: Instant) {
        *self.live.armed.lock() = Some(at);
    }

    pub(crate) fn disarm(&self) -> Option<Instant> {
        self.live.armed.lock().take()
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hold")
            .field("name", &self.keys.names)
            .field("id", &self.id)
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::TryRecvError;

    const TERMS: Terms = Terms {
        ttl: Duration::from_secs(10),
        renew_every: Some(Duration::from_secs(3)),
        max_hold: Duration::MAX,
        replicas: None,
        handoffs: 32,
    };

    fn now() -> Instant {
        Instant::START.after(Duration::from_secs(1))
    }

    fn tenure(token: FencingToken) -> Tenure {
        Tenure {
            token,
            since: Some(now()),
            handoffs: 32,
            trace_id: None,
            on_lost: None,
            on_renew: None,
        }
    }

    fn hold() -> (Hold, FencingToken) {
        let token = FencingToken::new(7);
        let lease = Lease::granted(now(), now(), &TERMS).unwrap();
        let hold = Hold {
            keys: Arc::new(Keys::new("a".into(), "lock:", "lock_release:")),
            id: HolderId::fresh("o"),
            tokens: Few::One(token),
            receipt: None,
            serial: 0,
            replicas: None,
            run: Run::new(token, 33, now()),
            live: Live::new(lease, tenure(token)),
        };
        (hold, token)
    }

    #[test]
    fn an_earlier_holder_finds_it_released() {
        let (hold, first) = hold();
        let lost = hold.listen(first, now());
        let (step, before) = hold.hand_on(first, &TERMS, false, now());
        let Step::HandOn(second) = step else {
            panic!("{step:?}")
        };
        assert!(second > first && before.is_some_and(|before| before.token == first));
        assert_eq!(lost.try_recv(), Err(TryRecvError::Disconnected));
        assert!(hold.take(tenure(second), now(), Duration::MAX));

        assert_eq!(hold.stand_for(first, now()), Standing::Released);
        assert_eq!(hold.release(first, now()), None);
        assert_eq!(hold.hand_on(first, &TERMS, false, now()).0, Step::Release);
        let asked = hold.begin(first, now(), |lease, now| lease.ask_now(now));
        assert_eq!(asked, None);
        let late = hold.listen(first, now());
        assert_eq!(late.try_recv(), Err(TryRecvError::Disconnected));

        let lost = hold.listen(second, now());
        hold.lose(Lost::Taken);
        assert_eq!(lost.try_recv(), Ok(Lost::Taken));
        assert_eq!(hold.stand_for(first, now()), Standing::Released);
        assert_eq!(hold.stand_for(second, now()), Standing::Lost(Lost::Taken));
        assert_eq!(hold.hand_on(second, &TERMS, false, now()).0, Step::Release);
    }

    #[test]
    fn what_was_lost_before_it_was_taken_is_not_taken() {
        let (hold, first) = hold();
        let (Step::HandOn(second), _) = hold.hand_on(first, &TERMS, false, now()) else {
            panic!("nothing speaks against it")
        };
        hold.lose(Lost::Deleted);
        assert!(!hold.take(tenure(second), now(), Duration::MAX));
        assert!(hold.untold().is_some_and(|(_, on_lost)| on_lost.is_none()));
    }

    #[test]
    fn who_held_it_for_max_hold_hands_nothing_on() {
        let (hold, first) = hold();
        let limit = Duration::from_millis(5);
        let (Step::HandOn(second), _) = hold.hand_on(first, &TERMS, false, now()) else {
            panic!("nothing speaks against it")
        };
        assert!(hold.take(tenure(second), now(), limit));
        let end = now().after(limit);
        assert_eq!(hold.hand_on(second, &TERMS, false, end).0, Step::Release);
        assert_eq!(hold.stand(end), Standing::Lost(Lost::MaxHold));
    }

    #[test]
    fn who_wants_other_replicas_is_handed_nothing() {
        let (hold, first) = hold();
        let terms = Terms {
            replicas: Some(Replicas {
                wanted: 1,
                within: Duration::from_millis(100),
            }),
            ..TERMS
        };
        assert_eq!(hold.hand_on(first, &terms, false, now()).0, Step::Release);
    }
}
