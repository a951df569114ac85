//! A breadth-first search through all states.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use crate::promise::{Promise, Step};
use crate::protocol::Protocol;
use crate::state::State;

pub(crate) enum Outcome {
    /// No promise is broken in any state; contains the number of states.
    Holds(usize),
    /// A broken promise, and the shortest sequence of steps that breaks it.
    Breaks(Promise, Vec<Step>),
}

/// A state, the step that led to it, and the index of the state before.
struct Seen {
    state: State,
    step: Step,
    before: usize,
}

/// Searches all states for one in which a promise is broken.
pub(crate) fn search(protocol: &Protocol, promises: &[Promise]) -> Outcome {
    let start = protocol.start();
    let mut known: HashSet<(u128, u64), BuildHasherDefault<Mixed>> = HashSet::default();
    known.insert(start.pack());
    let mut seen = vec![Seen {
        state: start,
        step: Step::Tick,
        before: 0,
    }];
    let mut broken = None;
    let mut now = 0;
    while now < seen.len() {
        let state = seen[now].state;
        protocol.each_next(&state, |step, next| {
            let promise = promises.iter().find(|p| p.is_broken(&state, step));
            if let Some(promise) = promise {
                broken.get_or_insert((*promise, step));
            } else if known.insert(next.pack()) {
                seen.push(Seen {
                    state: next,
                    step,
                    before: now,
                });
            }
        });
        if let Some((promise, last)) = broken {
            return Outcome::Breaks(promise, steps_to(&seen, now, last));
        }
        now += 1;
    }
    Outcome::Holds(seen.len())
}

fn steps_to(seen: &[Seen], mut at: usize, last: Step) -> Vec<Step> {
    let mut steps = vec![last];
    while at > 0 {
        steps.push(seen[at].step);
        at = seen[at].before;
    }
    steps.reverse();
    steps
}

/// A hash for packed states: much faster than the standard library's in a debug build.
#[derive(Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn write(&mut self, _: &[u8]) {
        unreachable!("only numbers are hashed");
    }

    fn write_u128(&mut self, number: u128) {
        self.write_u64((number as u64).rotate_left(29) ^ (number >> 64) as u64);
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0.rotate_left(23) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = (mixed ^ mixed >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
