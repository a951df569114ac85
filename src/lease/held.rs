//! A lease in use, shared by its guards, the timer and the renewals.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::clock::{Instant, nap};
use crate::config::{LeaseTerms, OnLost, OnRenew};
use crate::holder_id::HolderId;
use crate::lease::handoff::{HandoffRun, NoHandoff};
use crate::lease::release::Release;
use crate::lease::state::LeaseState;
use crate::lease::status::LeaseStatus;
use crate::lost::Lost;
use crate::name::Name;
use crate::protocol::one_or_many::OneOrMany;
use crate::protocol::primitive::Primitive;
use crate::redis::ServerVotes;
use crate::replicas::Replicas;
use crate::sync::{Condvar, Mutex};
use crate::token::FencingToken;

pub(crate) struct HeldLease {
    pub(crate) keys: Arc<dyn Primitive>,
    pub(crate) id: HolderId,
    /// The granted tokens: one for each name, or one for all names.
    pub(crate) tokens: OneOrMany<FencingToken>,
    /// The votes of the servers of a quorum; `None` for one server.
    pub(crate) votes: Option<Arc<ServerVotes>>,
    /// Distinguishes leases that are due at the same instant in the timer's order.
    pub(crate) serial: u64,
    /// The replicas that must acknowledge its renewals.
    pub(crate) replicas: Option<Replicas>,
    /// Decides whether the lease can be handed off.
    pub(crate) run: HandoffRun,
    pub(crate) cell: LeaseCell,
    /// The keys under which it is renewed after its downgrade.
    pub(crate) downgraded: OnceLock<Arc<dyn Primitive>>,
}

/// The time of one holder in a lease: from a grant or hand-off to the release or next hand-off.
pub(crate) struct Holding {
    /// The first of its tokens: identifies this holder among those of the same lease.
    pub(crate) token: FencingToken,
    /// When this holder began; `None` while a hand-off waits to be taken, and after
    /// [`HeldLease::remove_holder`].
    pub(crate) since: Option<Instant>,
    /// The most hand-offs in a row that this holder allows.
    pub(crate) handoffs: u32,
    pub(crate) trace_id: Option<Arc<str>>,
    pub(crate) on_lost: Option<Arc<OnLost>>,
    pub(crate) on_renew: Option<Arc<OnRenew>>,
}

/// The mutable part of a lease. Only the methods of [`HeldLease`] use it.
pub(crate) struct LeaseCell {
    state: Mutex<State>,
    /// Notified when a renewal or change of ttl has ended.
    answered: Condvar,
    /// When the lease is due in the timer's order; changes under the timer's lock.
    armed: Mutex<Option<Instant>>,
}

struct State {
    lease: LeaseState,
    holding: Holding,
    listeners: Vec<Sender<Lost>>,
    /// The loss was announced to the callback and the waiters.
    announced: bool,
    /// The holder has released the lease, whether it was held or lost.
    released_by_holder: bool,
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

impl LeaseCell {
    pub(crate) fn new(lease: LeaseState, holding: Holding) -> Self {
        let state = State {
            lease,
            holding,
            listeners: Vec::new(),
            announced: false,
            released_by_holder: false,
        };
        Self {
            state: Mutex::new(state),
            answered: Condvar::new(),
            armed: Mutex::new(None),
        }
    }
}

impl HeldLease {
    /// Returns the release of the lease, to be repeated until `until`.
    pub(crate) fn to_release(&self, until: Instant) -> Release {
        Release {
            votes: self.votes.clone(),
            ..Release::new(Arc::clone(&self.keys), self.id.clone(), until)
        }
    }

    /// Returns the release of the lease, to be repeated until the key has expired.
    pub(crate) fn to_lasting_release(&self, now: Instant) -> Release {
        self.to_release(now.after(self.lease(|lease| lease.key_may_last())))
    }

    /// Returns the repetition of a release that was sent before, until the key has expired.
    pub(crate) fn to_repeated_release(&self, now: Instant) -> Release {
        Release {
            was_sent: true,
            ..self.to_lasting_release(now)
        }
    }

    /// Returns the keys under which the lease is renewed.
    pub(crate) fn renewed_keys(&self) -> &Arc<dyn Primitive> {
        self.downgraded.get().unwrap_or(&self.keys)
    }

    /// Returns true if the lock can have other holders at the same time.
    pub(crate) fn is_shared(&self) -> bool {
        self.renewed_keys().is_shared()
    }

    /// Returns the token of the current holder.
    pub(crate) fn token(&self) -> FencingToken {
        self.cell.state.lock().holding.token
    }

    /// Returns the token of `name` for the holder of `token`; `None` if the lease does not include
    /// it.
    pub(crate) fn token_of(&self, name: &Name, token: FencingToken) -> Option<FencingToken> {
        let n = self.keys.names.iter().position(|held| held == name)?;
        // Only a lease of one name is handed off.
        Some(match &*self.tokens {
            [_] => token,
            each => each.get(n).copied().unwrap_or(token),
        })
    }

    /// Returns when the current holder began; `None` while a hand-off waits to be taken, and after
    /// [`remove_holder`](Self::remove_holder).
    pub(crate) fn since(&self) -> Option<Instant> {
        self.cell.state.lock().holding.since
    }

    /// Records that no call takes the lease: its end is not counted, and no callback runs then.
    ///
    /// Returns the callbacks. The caller must drop them outside any lock: they may own a user's
    /// closure.
    pub(crate) fn remove_holder(&self) -> (Option<Arc<OnLost>>, Option<Arc<OnRenew>>) {
        let holding = &mut self.cell.state.lock().holding;
        holding.since = None;
        (holding.on_lost.take(), holding.on_renew.take())
    }

    pub(crate) fn trace_id(&self) -> Option<Arc<str>> {
        self.cell.state.lock().holding.trace_id.clone()
    }

    pub(crate) fn on_renew(&self) -> Option<Arc<OnRenew>> {
        self.cell.state.lock().holding.on_renew.clone()
    }

    /// Returns the status at `now`. A lease found to have ended stays lost for all callers.
    pub(crate) fn status(&self, now: Instant) -> LeaseStatus {
        self.with_state(|state| state.lease.status(now))
    }

    /// Returns the status at `now` for the holder of `token`; an earlier holder has released it.
    pub(crate) fn status_for(&self, token: FencingToken, now: Instant) -> LeaseStatus {
        self.with_state(|state| state.status_for(token, now))
    }

    /// Ends the lease as lost, unless it has ended or is being released.
    pub(crate) fn lose(&self, lost: Lost, now: Instant) {
        self.with_state(|state| state.lease.lose(lost, now));
    }

    /// Begins the release by the holder of `token`, and returns the status before it.
    ///
    /// `None` if this holder has released the lease before.
    pub(crate) fn release(&self, token: FencingToken, now: Instant) -> Option<LeaseStatus> {
        self.with_state(|state| {
            if state.holding.token != token
                || std::mem::replace(&mut state.released_by_holder, true)
            {
                return None;
            }
            let status = state.lease.release(now);
            if let LeaseStatus::Held(_) = status {
                // Disconnects the listeners' channels.
                state.listeners.clear();
            }
            Some(status)
        })
    }

    /// Hands the lease off at `now`, from the holder of `token` to a waiter that wants it on
    /// `terms`.
    ///
    /// Returns the token of the next holder, and the [`Holding`] of the previous one. The caller
    /// must drop that outside any lock: it may own a user's closure.
    pub(crate) fn hand_off(
        &self,
        token: FencingToken,
        terms: &LeaseTerms,
        has_renewed: bool,
        now: Instant,
    ) -> Result<(FencingToken, Holding), NoHandoff> {
        self.with_state(|state| {
            let State { lease, holding, .. } = state;
            // As in `release`: a holder may call twice.
            if holding.token != token
                || state.released_by_holder
                || self.replicas != terms.replicas
                || !matches!(lease.status(now), LeaseStatus::Held(_))
            {
                return Err(NoHandoff::Release);
            }
            let handoffs = holding.handoffs.min(terms.handoffs);
            let run = &self.run;
            let token = run.step(lease, token, terms, handoffs, has_renewed, now)?;
            lease.hand_off(now, Duration::MAX);
            // Disconnects the listeners' channels.
            state.listeners.clear();
            let next = Holding {
                token,
                since: None,
                handoffs,
                trace_id: None,
                on_lost: None,
                on_renew: None,
            };
            Ok((token, std::mem::replace(&mut state.holding, next)))
        })
    }

    /// Takes the lease that was handed off under the token of `holding`; false if it is lost.
    pub(crate) fn take(&self, holding: Holding, now: Instant, max_hold: Duration) -> bool {
        self.with_state(|state| {
            if !matches!(state.status_for(holding.token, now), LeaseStatus::Held(_)) {
                return false;
            }
            state.lease.hand_off(now, max_hold);
            state.holding = holding;
            true
        })
    }

    /// Returns a channel that receives one message on loss, and is disconnected on loss or release.
    pub(crate) fn listen(&self, token: FencingToken, now: Instant) -> Receiver<Lost> {
        let (sender, receiver) = bounded(1);
        self.with_state(|state| match state.status_for(token, now) {
            LeaseStatus::Released => {}
            LeaseStatus::Held(_) | LeaseStatus::Lost(_) => state.listeners.push(sender),
        });
        receiver
    }

    /// Returns the ttl that renewals set, in ms, for log records.
    pub(crate) fn ttl_ms(&self) -> u64 {
        self.lease(|lease| lease.ttl).as_millis() as u64
    }

    /// Returns the loss and the holder's callback to the one caller that must announce it.
    ///
    /// `None` if the lease is not lost, or another caller announces it.
    pub(crate) fn take_unannounced_loss(&self) -> Option<(Lost, Option<Arc<OnLost>>)> {
        let mut state = self.cell.state.lock();
        let lost = state.lease.lost().filter(|_| !state.announced)?;
        state.announced = true;
        Some((lost, state.holding.on_lost.clone()))
    }

    /// Runs `act` on the state. If the lease is lost afterwards, sends the loss to the listeners.
    fn with_state<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.cell.state.lock();
        let result = act(&mut state);
        if let Some(lost) = state.lease.lost() {
            for listener in state.listeners.drain(..) {
                // Fails only if the receiver was dropped: each channel has room for one message.
                let _ = listener.try_send(lost);
            }
        }
        result
    }

    /// Reads or changes the lease under its lock.
    pub(crate) fn lease<T>(&self, act: impl FnOnce(&mut LeaseState) -> T) -> T {
        act(&mut self.cell.state.lock().lease)
    }

    /// Records the end of a renewal or change of ttl, and wakes the threads that wait for it.
    pub(crate) fn answered<T>(&self, act: impl FnOnce(&mut LeaseState) -> T) -> T {
        let result = self.lease(act);
        self.cell.answered.notify_all();
        result
    }

    /// Waits until no renewal or change of ttl is in flight, then begins one with `begin`.
    ///
    /// `None` if one is still in flight at `until`, if the lease has ended, or if `token` is not
    /// that of the current holder.
    pub(crate) fn begin<T>(
        &self,
        token: FencingToken,
        until: Instant,
        begin: impl Fn(&mut LeaseState, Instant) -> Option<T>,
    ) -> Option<T> {
        let mut state = self.cell.state.lock();
        loop {
            let now = Instant::now();
            if state.holding.token != token {
                return None;
            }
            if !state.lease.renewing || !state.lease.is_open() {
                return begin(&mut state.lease, now);
            }
            if now >= until {
                return None;
            }
            self.cell
                .answered
                .wait_for(&mut state, nap(now, until).max(Duration::from_millis(1)));
        }
    }

    pub(crate) fn arm(&self, at: Instant) {
        *self.cell.armed.lock() = Some(at);
    }

    pub(crate) fn disarm(&self) -> Option<Instant> {
        self.cell.armed.lock().take()
    }
}

impl std::fmt::Debug for HeldLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeldLease")
            .field("name", &self.keys.names)
            .field("id", &self.id)
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::protocol::keys::Keys;
    use crate::protocol::mutex::MutexKeys;
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
        (hold_on(&TERMS, now(), token), token)
    }

    /// A lease that was granted at `now`, for tests that last less than an hour.
    pub(crate) fn held_for_an_hour(now: Instant) -> Arc<HeldLease> {
        let terms = LeaseTerms {
            ttl: Duration::from_secs(3_600),
            renew_every: Some(Duration::from_secs(60)),
            ..TERMS
        };
        Arc::new(hold_on(&terms, now, FencingToken::new(7)))
    }

    fn hold_on(terms: &LeaseTerms, now: Instant, token: FencingToken) -> HeldLease {
        let lease = LeaseState::acquired(now, now, terms).unwrap();
        HeldLease {
            keys: MutexKeys::of(Keys::new("a".into(), "lock:", "lock_release:")),
            id: HolderId::fresh("o"),
            tokens: OneOrMany::One(token),
            votes: None,
            serial: 0,
            replicas: None,
            run: HandoffRun::new(token, 33, now),
            cell: LeaseCell::new(lease, holding(token)),
            downgraded: OnceLock::new(),
        }
    }

    /// Returns the tokens of the next holder and of the one before.
    fn hand_off(
        hold: &HeldLease,
        token: FencingToken,
    ) -> Result<(FencingToken, FencingToken), NoHandoff> {
        let outcome = hold.hand_off(token, &TERMS, false, now());
        outcome.map(|(next, before)| (next, before.token))
    }

    #[test]
    fn earlier_holder_finds_the_lease_released() {
        let (hold, first) = hold();
        let lost = hold.listen(first, now());
        let (second, before) = hand_off(&hold, first).unwrap();
        assert!(second > first && before == first);
        assert_eq!(lost.try_recv(), Err(TryRecvError::Disconnected));
        assert!(hold.take(holding(second), now(), Duration::MAX));

        assert_eq!(hold.status_for(first, now()), LeaseStatus::Released);
        assert_eq!(hold.release(first, now()), None);
        assert_eq!(hand_off(&hold, first), Err(NoHandoff::Release));
        let begun = hold.begin(first, now(), |lease, _| lease.begin_full_renewal(now()));
        assert_eq!(begun, None);
        let late = hold.listen(first, now());
        assert_eq!(late.try_recv(), Err(TryRecvError::Disconnected));

        let lost = hold.listen(second, now());
        hold.lose(Lost::Taken, now());
        assert_eq!(lost.try_recv(), Ok(Lost::Taken));
        assert_eq!(hold.status_for(first, now()), LeaseStatus::Released);
        assert_eq!(
            hold.status_for(second, now()),
            LeaseStatus::Lost(Lost::Taken)
        );
        assert_eq!(hand_off(&hold, second), Err(NoHandoff::Release));
    }

    #[test]
    fn lease_lost_before_its_hand_off_was_taken_is_not_taken() {
        let (hold, first) = hold();
        let (second, _) = hand_off(&hold, first).unwrap();
        hold.lose(Lost::Deleted, now());
        assert!(!hold.take(holding(second), now(), Duration::MAX));
        assert!(
            hold.take_unannounced_loss()
                .is_some_and(|(_, on_lost)| on_lost.is_none())
        );
    }

    #[test]
    fn holder_at_max_hold_hands_nothing_on() {
        let (hold, first) = hold();
        let limit = Duration::from_millis(5);
        let (second, _) = hand_off(&hold, first).unwrap();
        assert!(hold.take(holding(second), now(), limit));
        let end = now().after(limit);
        let late = hold.hand_off(second, &TERMS, false, end);
        assert_eq!(late.err(), Some(NoHandoff::Release));
        assert_eq!(hold.status(end), LeaseStatus::Lost(Lost::MaxHold));
    }

    #[test]
    fn waiter_with_other_replicas_is_handed_nothing() {
        let (hold, first) = hold();
        let terms = LeaseTerms {
            replicas: Some(Replicas {
                wanted: 1,
                within: Duration::from_millis(100),
            }),
            ..TERMS
        };
        let other = hold.hand_off(first, &terms, false, now());
        assert_eq!(other.err(), Some(NoHandoff::Release));
    }
}
