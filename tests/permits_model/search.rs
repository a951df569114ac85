//! A breadth-first search through all states.

use std::collections::HashSet;

use crate::state::{Broken, Rules, State};
use crate::steps::each_next;

/// Searches all states; returns a broken promise and the shortest sequence of steps to it.
pub(crate) fn holds(rules: &Rules, start: State) -> Result<(), (Broken, Vec<String>)> {
    let mut known = HashSet::from([start.clone()]);
    let mut seen = vec![(start, String::new(), 0)];
    let mut now = 0;
    while now < seen.len() {
        let state = seen[now].0.clone();
        if let Some(broken) = state.broken(rules) {
            let mut steps = Vec::new();
            while now > 0 {
                steps.push(seen[now].1.clone());
                now = seen[now].2;
            }
            steps.reverse();
            return Err((broken, steps));
        }
        each_next(&state, rules, |step, next| {
            let next = next.normalized();
            if known.insert(next.clone()) {
                seen.push((next, format!("{step:?}"), now));
            }
        });
        now += 1;
    }
    println!("{} states", seen.len());
    Ok(())
}
