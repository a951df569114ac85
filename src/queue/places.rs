//! The calls of this client that wait in queues in Redis. No I/O, no clock.

use std::collections::HashMap;
use std::sync::Arc;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::name::{Name, NameTable};
use crate::parker::Parker;
use crate::protocol::place::TokenBlock;
use crate::protocol::primitive::{Admission, Primitive};
use crate::queue::name_places::NamePlaces;
use crate::queue::recent::{ContendedNames, counts};
use crate::sync::Mutex;

/// The places of this client's calls in the queues in Redis, as far as known.
///
/// A holder id is granted at most once. A grant counts only while its call waits under that id. A
/// call whose place is gone enters again under another id.
#[derive(Debug, Default)]
pub(crate) struct Places {
    pub(super) state: Mutex<PlacesState>,
}

#[derive(Debug, Default)]
pub(super) struct PlacesState {
    /// The names, by their admission: one refresh has the places of one admission.
    pub(super) names: [NameTable<NamePlaces>; Admission::ALL.len()],
    /// The lock that each holder id waits for: a grant message contains the id only.
    pub(super) owners: HashMap<HolderId, (Admission, Name)>,
    pub(super) next_serial: u64,
    contended: ContendedNames,
}

/// The state of a name whose calls share a place in Redis, as far as this client knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedPlace {
    /// A call of this client has the place, is entering, or has left the place to the others.
    pub(crate) is_taken: bool,
    /// When Redis last refused the name to this client; or until when no client asks for it, after
    /// a plain release.
    pub(crate) contended: Instant,
}

impl SharedPlace {
    /// Returns whether others wanted the name, too, a moment before `now`.
    pub(crate) fn is_contended(&self, now: Instant) -> bool {
        counts(self.contended, now)
    }
}

impl PlacesState {
    /// Returns the names of the locks that have one holder at a time.
    fn exclusive(&mut self) -> &mut NameTable<NamePlaces> {
        &mut self.names[Admission::Exclusive as usize]
    }
}

impl Places {
    /// Records that Redis has granted the lock to `id`. Does nothing if no call waits under it.
    pub(crate) fn granted(&self, id: &HolderId, tokens: TokenBlock) {
        // Not while the mutex is locked: the woken waiter locks it at once.
        if let Some(parker) = self.grant(id, tokens) {
            parker.unpark();
        }
    }

    /// Records a grant; returns the parker of its call.
    fn grant(&self, id: &HolderId, tokens: TokenBlock) -> Option<Parker> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let (admission, name) = state.owners.get(id)?;
        let places = state.names[*admission as usize].get_mut(name)?;
        let waiter = places.with_id(id)?;
        let is_first = waiter.note_grant(tokens);
        is_first.then(|| waiter.parker.clone())
    }

    /// Makes a refresh of all places of the name that `id` waits for due at once. Does nothing if
    /// no call waits under `id`.
    pub(crate) fn refresh_place_now(&self, id: &HolderId) {
        let state = &mut *self.state.lock();
        if let Some((admission, name)) = state.owners.get(id)
            && let Some(places) = state.names[*admission as usize].get_mut(name)
        {
            places.refresh_now();
        }
    }

    /// Makes a refresh of the places of `name` due at once. Returns whether it has any place.
    pub(crate) fn refresh_now(&self, name: &Name) -> bool {
        let mut has_place = false;
        for names in &mut self.state.lock().names {
            if let Some(places) = names.get_mut(name) {
                places.refresh_now();
                has_place |= places.has_place();
            }
        }
        has_place
    }

    /// Makes a refresh of the places of all names with this channel due at once. All semaphores
    /// have the same channel.
    pub(crate) fn refresh_channel(&self, channel: &[u8]) {
        let mut state = self.state.lock();
        let names = state.names.iter_mut().flat_map(HashMap::values_mut);
        for places in names.filter(|places| places.keys.key(0).channel == channel) {
            places.refresh_now();
        }
    }

    /// Makes a refresh of the places of `name` due after a plain release: at `first_at` if `first`
    /// is one of them, otherwise at `others_at`.
    pub(crate) fn refresh_in_turn(
        &self,
        name: &Name,
        first: &HolderId,
        first_at: Instant,
        others_at: Instant,
    ) {
        for names in &mut self.state.lock().names {
            if let Some(places) = names.get_mut(name) {
                let has_first = places.with_id(first).is_some();
                places.refresh_after_plain(if has_first { first_at } else { others_at });
            }
        }
    }

    /// Records that others want the lock: Redis refused it to this client at `since`, or a plain
    /// release leaves it to other programs until `since`.
    pub(crate) fn note_contended(&self, name: &Name, since: Instant) {
        self.state.lock().contended.note(name, since);
    }

    /// Returns what this client knows about a name whose calls share a place.
    pub(crate) fn shared(&self, name: &Name) -> SharedPlace {
        let mut state = self.state.lock();
        let places = state.exclusive().get(name);
        let is_taken = places.is_some_and(NamePlaces::has_place);
        SharedPlace {
            is_taken,
            contended: state.contended.since(name),
        }
    }

    /// Returns whether a call has left its place to the others, and none has taken it over yet.
    pub(crate) fn is_left(&self, name: &Name) -> bool {
        let mut state = self.state.lock();
        let places = state.exclusive().get(name);
        places.is_some_and(|places| places.left.is_some())
    }

    /// Takes the place that a call has left to the others, because those have left, too. The caller
    /// must leave the queue in Redis with the keys and the id that this returns.
    pub(crate) fn take_left(&self, name: &Name) -> Option<(Arc<dyn Primitive>, HolderId)> {
        let mut state = self.state.lock();
        let names = state.exclusive();
        let places = names.get_mut(name)?;
        let id = places.left.take()?.id?;
        let keys = Arc::clone(&places.keys);
        if places.waiters.is_empty() {
            names.remove(name);
        }
        state.owners.remove(&id);
        Some((keys, id))
    }

    pub(crate) fn names(&self) -> Vec<Name> {
        let state = self.state.lock();
        state
            .names
            .iter()
            .flat_map(HashMap::keys)
            .cloned()
            .collect()
    }

    /// Returns how many calls have a place in Redis.
    pub(crate) fn count(&self) -> usize {
        let state = self.state.lock();
        let names = state.names.iter().flat_map(HashMap::values);
        let waiters = names.flat_map(|places| &places.waiters);
        let have_place = waiters.filter(|waiter| waiter.seen_waiting.is_some());
        have_place.count()
    }

    #[cfg(test)]
    pub(crate) fn anybody(&self) -> bool {
        !self.state.lock().names.iter().all(HashMap::is_empty)
    }

    /// Wakes all waiters, and ends the pause after a failed refresh. Returns how many there are.
    pub(crate) fn wake_all(&self) -> usize {
        let mut state = self.state.lock();
        let mut count = 0;
        for places in state.names.iter_mut().flat_map(HashMap::values_mut) {
            places.no_refresh_before = Instant::START;
            let waiters = places.waiters.iter();
            count += waiters.map(|waiter| waiter.parker.unpark()).count();
        }
        count
    }

    /// Removes and returns the holder ids whose place a reply has confirmed: they must leave the
    /// queue in Redis. Some may have a grant that no call has taken.
    ///
    /// A later grant message to any current id is ignored.
    pub(crate) fn leave_all(&self) -> Vec<(Arc<dyn Primitive>, HolderId)> {
        let mut state = self.state.lock();
        state.owners.clear();
        let mut left = Vec::new();
        for places in state.names.iter_mut().flat_map(HashMap::values_mut) {
            // A call whose first reply is outstanding leaves by itself.
            let waiters = places.waiters.iter_mut().chain(&mut places.left);
            let placed = waiters.filter(|waiter| waiter.seen_waiting.is_some());
            let ids = placed.filter_map(|waiter| waiter.id.take());
            left.extend(ids.map(|id| (Arc::clone(&places.keys), id)));
        }
        left
    }
}

#[cfg(test)]
pub(super) mod tests;
