//! The two keys of a read-write lock. `tests/checks/rw_model` describes the model.

mod client;
mod server;
mod state;

pub use client::Step;
pub use state::{Broken, Client, Command, Flaw, Id, Key, Phase, Reply, Rules, State, Wants};

use crate::search::{self, Model};

impl Model for Rules {
    type State = State;
    type Step = Step;
    type Broken = Broken;

    const FEWEST: usize = 100_000;

    fn each_next(&self, state: &State, mut take: impl FnMut(Step, State)) {
        client::each_next(state, self, |step, next| take(step, next.normalized()));
    }

    fn broken(&self, state: &State) -> Option<Broken> {
        state.broken()
    }
}

/// Searches all states; returns a broken promise and the shortest sequence of steps to it.
pub fn holds(rules: &Rules, start: State) -> Result<(), (Broken, Vec<Step>)> {
    search::holds(rules, start, usize::MAX)
}

/// The same for a search that takes minutes: covers the first states, unless
/// `LEASEHOLD_LONG_MODELS` is set.
pub fn long_holds(rules: &Rules, start: State) -> Result<(), (Broken, Vec<Step>)> {
    search::holds(rules, start, search::most_states(280_000))
}
