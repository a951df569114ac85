//! A breadth-first search through all states.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::rules::{Broken, Rules};
use crate::state::State;
use crate::steps::{Step, each_next};

/// Searches all states; returns a broken promise and the shortest sequence of steps to it.
pub(crate) fn holds(rules: &Rules, start: State) -> Result<(), (Broken, Vec<Step>)> {
    let mut known: HashMap<State, (), BuildHasherDefault<Mixed>> = HashMap::default();
    let mut seen = vec![(start, Step::Tick, 0)];
    known.insert(start, ());
    let mut now = 0;
    while now < seen.len() {
        let state = seen[now].0;
        if let Some(broken) = state.broken(rules) {
            let mut steps = Vec::new();
            while now > 0 {
                steps.push(seen[now].1);
                now = seen[now].2;
            }
            steps.reverse();
            return Err((broken, steps));
        }
        each_next(&state, rules, |step, next| {
            if known.insert(next, ()).is_none() {
                seen.push((next, step, now));
            }
        });
        now += 1;
    }
    println!("{} states", seen.len());
    Ok(())
}

/// Returns for how many ticks the lock can be free while a client waits.
pub(crate) fn longest_stall(rules: &Rules, start: State) -> u8 {
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

/// A hash for small fields: much faster than the standard library's in a debug build.
#[derive(Default)]
pub(crate) struct Mixed(u64);

impl Hasher for Mixed {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u8(*byte);
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0.rotate_left(23) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
