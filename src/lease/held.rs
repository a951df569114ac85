//! A lease in use: what its guards, the timer and the renewals share.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::{Condvar, Mutex};

use crate::clock::{Instant, nap};
use crate::config::{LeaseTerms, OnLost, OnRenew};
use crate::holder::HolderId;
use crate::lease::handoff::{HandoffDecision, HandoffRun};
use crate::lease::state::{LeaseState, LeaseStatus};
use crate::lost::Lost;
use crate::name::Name;
use crate::protocol::kind::Keys;
use crate::protocol::one_or_many::OneOrMany;
use crate::redis::ServerVotes;
use crate::replicas::Replicas;
use crate::token::FencingToken;

pub(crate) struct HeldLease {
    pub(crate) keys: Arc<Keys>,
    pub(crate) id: HolderId,
    /// As they were granted: one for each name, or one for all of them.
    pub(crate) tokens: OneOrMany<FencingToken>,
    /// Which servers took it, where there are several.
    pub(crate) votes: Option<Arc<ServerVotes>>,
    /// Names this hold in the timer's order; two may be due at the same instant.
    pub(crate) serial: u64,
    /// Who must acknowledge its renewals.
    pub(crate) replicas: Option<Replicas>,
    /// Whom it may be handed on to, and for how long.
    pub(crate) run: HandoffRun,
    pub(crate) live: Live,
}

/// One holder's time with a lease.
pub(crate) struct Holding {
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
    lease: LeaseState,
    holding: Holding,
    listeners: Vec<Sender<Lost>>,
    /// The loss was told to the callbacks and the waiters.
    told: bool,
    /// The holder has let go, of what was held or of what was lost.
    let_go: bool,
}

impl State {
    fn status_for(&mut self, token: FencingToken, now: Instant) -> LeaseStatus {
        if self.holding.token == token {
            self.lease.status(now)
        } else {
            LeaseStatus::Released
        }
    }
}

impl Live {
    pub(crate) fn new(lease: LeaseState, holding: Holding) -> Self {
        let state = State {
            lease,
            holding,
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

impl HeldLease {
    /// That of who holds it now.
    pub(crate) fn token(&self) -> FencingToken {
        self.live.state.lock().holding.token
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
        self.live.state.lock().holding.since
    }

    pub(crate) fn trace_id(&self) -> Option<Arc<str>> {
        self.live.state.lock().holding.trace_id.clone()
    }

    pub(crate) fn on_renew(&self) -> Option<Arc<OnRenew>> {
        self.live.state.lock().holding.on_renew.clone()
    }

    /// How the lease stands at `now`, whoever holds it. Whoever finds it ended latches that for all.
    pub(crate) fn status(&self, now: Instant) -> LeaseStatus {
        self.latching_state(|state| state.lease.status(now))
    }

    /// How the lease stands at `now` for the holder that has `token`: released, for an earlier one.
    pub(crate) fn status_for(&self, token: FencingToken, now: Instant) -> LeaseStatus {
        self.latching_state(|state| state.status_for(token, now))
    }

    /// Ends the lease, unless it has ended or is being released.
    pub(crate) fn lose(&self, lost: Lost) {
        self.latching_state(|state| state.lease.lose(lost));
    }

    /// The holder that has `token` lets go: how the lease stood until then. `None` if it has let go before.
    pub(crate) fn release(&self, token: FencingToken, now: Instant) -> Option<LeaseStatus> {
        self.latching_state(|state| {
            if state.holding.token != token || std::mem::replace(&mut state.let_go, true) {
                return None;
            }
            let standing = state.lease.release(now);
            if let LeaseStatus::Held(_) = standing {
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
        terms: &LeaseTerms,
        has_renewed: bool,
        now: Instant,
    ) -> (HandoffDecision, Option<Holding>) {
        self.latching_state(|state| {
            let State { lease, holding, .. } = state;
            // In step with `release`, for one that calls twice.
            if holding.token != token
                || state.let_go
                || !matches!(lease.status(now), LeaseStatus::Held(_))
            {
                return (HandoffDecision::Release, None);
            }
            let handoffs = holding.handoffs.min(terms.handoffs);
            let fits = self.replicas == terms.replicas;
            let step = match self
                .run
                .step(lease, token, terms, handoffs, has_renewed, now)
            {
                step if fits => step,
                _ => HandoffDecision::Release,
            };
            let HandoffDecision::HandOffOutcome(next) = step else {
                return (step, None);
            };
            lease.hand_on(now, Duration::MAX);
            // Disconnects those who listen.
            state.listeners.clear();
            let next = Holding {
                token: next,
                since: None,
                handoffs,
                trace_id: None,
                on_lost: None,
                on_renew: None,
            };
            (step, Some(std::mem::replace(&mut state.holding, next)))
        })
    }

    /// The waiter to whom the lease was handed under the token of `tenure` takes it; false if it is lost.
    pub(crate) fn take(&self, holding: Holding, now: Instant, max_hold: Duration) -> bool {
        self.latching_state(|state| {
            if !matches!(state.status_for(holding.token, now), LeaseStatus::Held(_)) {
                return false;
            }
            state.lease.hand_on(now, max_hold);
            state.holding = holding;
            true
        })
    }

    /// A receiver of its own: one message on loss, then, or on release, disconnected.
    pub(crate) fn listen(&self, token: FencingToken, now: Instant) -> Receiver<Lost> {
        let (sender, receiver) = bounded(1);
        self.latching_state(|state| match state.status_for(token, now) {
            LeaseStatus::Released => {}
            LeaseStatus::Held(_) | LeaseStatus::Lost(_) => state.listeners.push(sender),
        });
        receiver
    }

    /// What renewals ask for, in ms, for log lines.
    pub(crate) fn ttl_ms(&self) -> u64 {
        self.lease(|lease| lease.ttl()).as_millis() as u64
    }

    /// The loss, and the holder's callback, for the one call that then tells it to that and to the waiters.
    pub(crate) fn take_unannounced_loss(&self) -> Option<(Lost, Option<Arc<OnLost>>)> {
        let mut state = self.live.state.lock();
        let lost = state.lease.lost().filter(|_| !state.told)?;
        state.told = true;
        Some((lost, state.holding.on_lost.clone()))
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
    pub(crate) fn lease<T>(&self, act: impl FnOnce(&mut LeaseState) -> T) -> T {
        act(&mut self.live.state.lock().lease)
    }

    /// As [`lease`](Self::lease), for the answer to a renewal or extend.
    pub(crate) fn answered<T>(&self, act: impl FnOnce(&mut LeaseState) -> T) -> T {
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
        ask: impl Fn(&mut LeaseState, Instant) -> Option<T>,
    ) -> Option<T> {
        let mut state = self.live.state.lock();
        loop {
            let now = Instant::now();
            if state.holding.token != token {
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

impl std::fmt::Debug for HeldLease {
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

    const TERMS: LeaseTerms = LeaseTerms {
        ttl: Duration::from_secs(10),
        renew_every: Some(Duration::from_secs(3)),
        max_hold: Duration::MAX,
        replicas: None,
        handoffs: 32,
    };

    fn now() -> Instant {
        Instant::START.after(Duration::from_secs(1))
    }

    fn holding(token: FencingToken) -> Holding {
        Holding {
            token,
            since: Some(now()),
            handoffs: 32,
            trace_id: None,
            on_lost: None,
            on_renew: None,
        }
    }

    fn hold() -> (HeldLease, FencingToken) {
        let token = FencingToken::new(7);
        let lease = LeaseState::granted(now(), now(), &TERMS).unwrap();
        let hold = HeldLease {
            keys: Arc::new(Keys::new("a".into(), "lock:", "lock_release:")),
            id: HolderId::fresh("o"),
            tokens: OneOrMany::One(token),
            votes: None,
            serial: 0,
            replicas: None,
            run: HandoffRun::new(token, 33, now()),
            live: Live::new(lease, holding(token)),
        };
        (hold, token)
    }

    #[test]
    fn an_earlier_holder_finds_it_released() {
        let (hold, first) = hold();
        let lost = hold.listen(first, now());
        let (step, before) = hold.hand_on(first, &TERMS, false, now());
        let HandoffDecision::HandOffOutcome(second) = step else {
            panic!("{step:?}")
        };
        assert!(second > first && before.is_some_and(|before| before.token == first));
        assert_eq!(lost.try_recv(), Err(TryRecvError::Disconnected));
        assert!(hold.take(holding(second), now(), Duration::MAX));

        assert_eq!(hold.status_for(first, now()), LeaseStatus::Released);
        assert_eq!(hold.release(first, now()), None);
        assert_eq!(
            hold.hand_on(first, &TERMS, false, now()).0,
            HandoffDecision::Release
        );
        let asked = hold.begin(first, now(), |lease, now| lease.ask_now(now));
        assert_eq!(asked, None);
        let late = hold.listen(first, now());
        assert_eq!(late.try_recv(), Err(TryRecvError::Disconnected));

        let lost = hold.listen(second, now());
        hold.lose(Lost::Taken);
        assert_eq!(lost.try_recv(), Ok(Lost::Taken));
        assert_eq!(hold.status_for(first, now()), LeaseStatus::Released);
        assert_eq!(
            hold.status_for(second, now()),
            LeaseStatus::Lost(Lost::Taken)
        );
        assert_eq!(
            hold.hand_on(second, &TERMS, false, now()).0,
            HandoffDecision::Release
        );
    }

    #[test]
    fn what_was_lost_before_it_was_taken_is_not_taken() {
        let (hold, first) = hold();
        let (HandoffDecision::HandOffOutcome(second), _) =
            hold.hand_on(first, &TERMS, false, now())
        else {
            panic!("nothing speaks against it")
        };
        hold.lose(Lost::Deleted);
        assert!(!hold.take(holding(second), now(), Duration::MAX));
        assert!(
            hold.take_unannounced_loss()
                .is_some_and(|(_, on_lost)| on_lost.is_none())
        );
    }

    #[test]
    fn who_held_it_for_max_hold_hands_nothing_on() {
        let (hold, first) = hold();
        let limit = Duration::from_millis(5);
        let (HandoffDecision::HandOffOutcome(second), _) =
            hold.hand_on(first, &TERMS, false, now())
        else {
            panic!("nothing speaks against it")
        };
        assert!(hold.take(holding(second), now(), limit));
        let end = now().after(limit);
        assert_eq!(
            hold.hand_on(second, &TERMS, false, end).0,
            HandoffDecision::Release
        );
        assert_eq!(hold.status(end), LeaseStatus::Lost(Lost::MaxHold));
    }

    #[test]
    fn who_wants_other_replicas_is_handed_nothing() {
        let (hold, first) = hold();
        let terms = LeaseTerms {
            replicas: Some(Replicas {
                wanted: 1,
                within: Duration::from_millis(100),
            }),
            ..TERMS
        };
        assert_eq!(
            hold.hand_on(first, &terms, false, now()).0,
            HandoffDecision::Release
        );
    }
}
