//! The search through all states of the model.

use std::hash::{Hash, Hasher};

use crate::search::{Model, count_states};

use super::promise::{Promise, Step};
use super::protocol::Protocol;
use super::state::State;

struct Search<'a> {
    protocol: &'a Protocol,
    promises: &'a [Promise],
}

/// A state that is equal to those that differ only in the order of servers.
#[derive(Clone)]
struct Packed {
    state: State,
    packed: (u128, u64),
}

impl From<State> for Packed {
    fn from(state: State) -> Self {
        let packed = state.pack();
        Self { state, packed }
    }
}

impl PartialEq for Packed {
    fn eq(&self, other: &Self) -> bool {
        self.packed == other.packed
    }
}

impl Eq for Packed {}

impl Hash for Packed {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.packed.hash(hasher);
    }
}

impl Model for Search<'_> {
    type State = Packed;
    type Step = Step;
    type Broken = Promise;

    /// Each test knows the number of its states.
    const FEWEST: usize = 1;

    fn each_next(&self, state: &Packed, mut take: impl FnMut(Step, Packed)) {
        self.protocol
            .each_next(&state.state, |step, next| take(step, next.into()));
    }

    fn broken(&self, _: &Packed) -> Option<Promise> {
        None
    }

    fn broken_by(&self, before: &Packed, step: Step) -> Option<Promise> {
        let mut promises = self.promises.iter().copied();
        promises.find(|promise| promise.is_broken(&before.state, step))
    }
}

/// Returns the number of states; or a broken promise, and the shortest sequence of steps that
/// breaks it.
pub fn search(protocol: &Protocol, promises: &[Promise]) -> Result<usize, (Promise, Vec<Step>)> {
    let search = Search { protocol, promises };
    count_states(&search, protocol.start().into())
}
