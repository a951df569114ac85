//! A waiting call's place in a queue in Redis, as far as known. No I/O, no clock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::name::Name;
use crate::parker::Parker;
use crate::protocol::place::Refreshed;
use crate::protocol::primitive::{Admission, Primitive};
use crate::queue::answers::Answers;
use crate::queue::name_places::{NamePlaces, PlaceWaiter, RefreshPace, WaitingReply};
use crate::queue::places::{Places, PlacesState};
use crate::queue::position::{Grant, Position, Queue};

/// The handle of a waiting call. Dropping it removes the call's waiter from this client's tables. A
/// place in Redis stays.
#[derive(Debug)]
pub(crate) struct PlaceTicket<'a> {
    places: &'a Places,
    admission: Admission,
    name: &'a Name,
    serial: u64,
    parker: Parker,
}

impl Places {
    /// Adds a waiter, which sleeps on `parker`, for the lock of `keys`.
    pub(crate) fn join<'a>(
        &'a self,
        admission: Admission,
        keys: &'a Arc<dyn Primitive>,
        pace: RefreshPace,
        parker: Parker,
    ) -> PlaceTicket<'a> {
        let name = keys.key(0).name;
        let mut state = self.state.lock();
        let serial = state.next_serial;
        state.next_serial += 1;
        let places = state.names[admission as usize].entry(name.clone());
        let places = places.or_insert_with(|| NamePlaces::new(keys));
        let waiter = PlaceWaiter::new(serial, parker.clone(), pace);
        places.waiters.push(waiter);
        PlaceTicket {
            places: self,
            admission,
            name,
            serial,
            parker,
        }
    }
}

impl PlaceTicket<'_> {
    fn with_places<T>(&self, act: impl FnOnce(&mut NamePlaces) -> T) -> T {
        self.with_owners(|places, _| act(places))
    }

    fn with_waiter<T>(&self, act: impl FnOnce(&mut PlaceWaiter) -> T) -> T {
        self.with_places(|places| act(places.waiter(self.serial)))
    }

    fn with_owners<T>(
        &self,
        act: impl FnOnce(&mut NamePlaces, &mut HashMap<HolderId, (Admission, Name)>) -> T,
    ) -> T {
        let PlacesState { names, owners, .. } = &mut *self.places.state.lock();
        // The waiter keeps the entry in the table until the ticket is dropped.
        let places = names[self.admission as usize].get_mut(self.name);
        act(places.expect("an entry with a waiter in it"), owners)
    }

    /// Records that the call is about to enter the queue under `id`.
    ///
    /// A grant to `id` is recorded from now on. It counts once a reply has confirmed the place.
    ///
    /// Returns false if the calls share a place and another call now has it: this call must not
    /// enter. Both calls may have found no place before either entered.
    pub(crate) fn begin_entering(&self, id: &HolderId) -> bool {
        self.with_owners(|places, owners| {
            if places.is_taken_by_other(self.serial) {
                return false;
            }
            owners.insert(id.clone(), (self.admission, self.name.clone()));
            places.waiter(self.serial).wait_under(Some(id.clone()));
            true
        })
    }

    /// Records the reply to a command that made a place. The lock is held for `remaining` more;
    /// `None` if its key does not expire.
    pub(crate) fn note_entered(&self, reply: WaitingReply, remaining: Option<Duration>) {
        self.with_places(|places| {
            let waiter = places.waiter(self.serial);
            waiter.refused(reply, remaining);
            if waiter.pace.backoff.is_some() {
                // A call that receives grant messages can take the shared place over from this
                // one, which receives none.
                places.wake_without_place(self.serial);
            }
        });
    }

    /// Returns whether the call has a place, or is entering.
    pub(crate) fn has_place(&self) -> bool {
        self.with_waiter(|waiter| waiter.id.is_some())
    }

    /// Leaves the place to the other calls of this client that share it, if `others_wait`.
    ///
    /// Returns the id that the caller must remove from the queue in Redis, if no other call can use
    /// its place.
    pub(crate) fn hand_over(&self, others_wait: bool) -> Option<HolderId> {
        self.with_owners(|places, owners| {
            let id = places.hand_over(self.serial, others_wait)?;
            owners.remove(&id);
            Some(id)
        })
    }

    /// Ends the wait under the current id: a grant to it no longer counts.
    ///
    /// Returns the id, unless the call has none.
    pub(crate) fn forget_id(&self) -> Option<HolderId> {
        self.with_owners(|places, owners| {
            let id = places.waiter(self.serial).wait_under(None)?;
            owners.remove(&id);
            Some(id)
        })
    }

    /// Records that the call has failed to enter. Another call that would share its place may enter
    /// now.
    pub(crate) fn note_not_entered(&self) {
        self.forget_id();
        self.with_places(|places| places.wake_without_place(self.serial));
    }

    /// Returns whether any call of this client for the name can receive a grant message.
    pub(crate) fn any_subscribed(&self) -> bool {
        let is_subscribed = |waiter: &PlaceWaiter| waiter.pace.backoff.is_none();
        self.with_places(|places| places.waiters.iter().any(is_subscribed))
    }

    /// Returns how many replies said that the call waits.
    pub(crate) fn refusals(&self) -> u32 {
        self.with_waiter(|waiter| waiter.refusals)
    }

    /// Takes the grant to the call, if there is one, and ends the wait under its id.
    pub(crate) fn take_grant(&self) -> Option<Grant> {
        let grant = self.with_waiter(|waiter| waiter.grant())?;
        self.forget_id();
        Some(grant)
    }

    /// Records the replies to a refresh of `ids`.
    pub(crate) fn note_refreshed(
        &self,
        ids: &[HolderId],
        answers: &[Refreshed],
        reply: WaitingReply,
    ) {
        self.with_owners(|places, owners| {
            for id in places.note_refreshed(ids, answers, reply) {
                owners.remove(&id);
            }
        });
    }

    /// Leaves a due refresh to another waiter: no reply to this call could arrive before its
    /// deadline.
    pub(crate) fn pass_refresh_on(&self) {
        self.with_places(|places| places.pass_refresh_on(self.serial));
    }

    /// Records that a refresh failed; none is due again before `no_refresh_before`.
    pub(crate) fn note_not_refreshed(&self, no_refresh_before: Instant) {
        self.with_places(|places| places.note_not_refreshed(no_refresh_before));
    }
}

impl Queue for PlaceTicket<'_> {
    /// The caller must report the outcome of a refresh with
    /// [`note_refreshed`](Self::note_refreshed) or
    /// [`note_not_refreshed`](Self::note_not_refreshed), or leave it to another waiter with
    /// [`pass_refresh_on`](Self::pass_refresh_on).
    fn position(&self, now: Instant, _must_try: bool) -> Position {
        let position = self.with_places(|places| places.position(self.serial, now));
        if let Position::Granted(_) = position {
            self.forget_id();
        }
        position
    }

    fn parker(&self) -> &Parker {
        &self.parker
    }

    fn about_to_try(&self, now: Instant) -> bool {
        self.with_places(|places| places.answers.asked(now));
        // The local queue reports whether other calls wait. Without a local queue, leases are not
        // handed off.
        false
    }

    fn answers(&self) -> Answers {
        self.with_places(|places| places.answers.clone())
    }

    fn update_answers(&self, act: &mut dyn FnMut(&mut Answers)) {
        self.with_places(|places| act(&mut places.answers));
    }
}

impl Drop for PlaceTicket<'_> {
    fn drop(&mut self) {
        self.forget_id();
        let mut state = self.places.state.lock();
        let names = &mut state.names[self.admission as usize];
        let Some(places) = names.get_mut(self.name) else {
            return;
        };
        places.remove(self.serial);
        if places.waiters.is_empty() && places.left.is_none() {
            names.remove(self.name);
        }
    }
}
