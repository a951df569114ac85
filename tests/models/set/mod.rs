//! Sets of names on the queues of locks. `tests/set_model` describes the model.

mod cycles;
mod rules;
mod state;
mod steps;

pub use cycles::{first_never_starves, never_goes_round};
pub use rules::{Broken, CLIENTS, Flaw, Rules, Wants};
pub use state::{Ask, Has, Id, Reply, State};
pub use steps::Step;

use crate::search::{self, Model};

impl Model for Rules {
    type State = State;
    type Step = Step;
    type Broken = Broken;

    const FEWEST: usize = 200;

    fn each_next(&self, state: &State, take: impl FnMut(Step, State)) {
        steps::each_next(state, self, take);
    }

    fn broken(&self, state: &State) -> Option<Broken> {
        state.broken(self)
    }

    fn stuck(&self, state: &State) -> Option<Broken> {
        state.anybody_waits().then_some(Broken::Deadlock)
    }
}

/// Searches all states; returns a broken promise and the shortest sequence of steps to it.
pub fn holds(rules: &Rules, start: State) -> Result<(), (Broken, Vec<Step>)> {
    search::holds(rules, start, usize::MAX)
}
