//! The queue of a lock. `tests/checks/queue_model` describes the model.

mod client;
mod faults;
mod grant;
mod network;
mod phase;
mod replies;
mod rules;
mod server;
mod state;
mod steps;
mod wire;

pub use phase::Phase;
pub use rules::{Broken, Flaw, Rules};
pub use state::{Client, Id, Kind, Listens, Mark, Place, State};
pub use steps::Step;
pub use wire::{Command, Entered, OnItsWay, Refreshed, Released, Tokens};

use crate::search::{self, Model};

impl Model for Rules {
    type State = State;
    type Step = Step;
    type Broken = Broken;

    const FEWEST: usize = 500;

    fn each_next(&self, state: &State, take: impl FnMut(Step, State)) {
        steps::each_next(state, self, take);
    }

    fn broken(&self, state: &State) -> Option<Broken> {
        state.broken(self)
    }
}

/// Searches all states; returns a broken promise and the shortest sequence of steps to it.
pub fn holds(rules: &Rules, start: State) -> Result<(), (Broken, Vec<Step>)> {
    search::holds(rules, start, usize::MAX)
}

/// The same for a search that takes minutes: covers the first states, unless
/// `LEASEHOLD_LONG_MODELS` is set.
pub fn long_holds(rules: &Rules, start: State) -> Result<(), (Broken, Vec<Step>)> {
    search::holds(rules, start, search::most_states(200_000))
}

/// Returns for how many ticks the lock can be free while a client waits.
pub fn longest_stall(rules: &Rules, start: State) -> u8 {
    let at_most = |max_stall| {
        let rules = Rules {
            max_stall,
            ..*rules
        };
        match holds(&rules, start) {
            Ok(()) => true,
            Err((Broken::Stalled, _)) => false,
            Err((broken, steps)) => panic!("{broken:?}: {steps:#?}"),
        }
    };
    (0..20).find(|most| at_most(*most)).expect("a stall ends")
}
