//! A breadth-first search through all states of a model.

use std::env;
use std::fmt::Debug;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};

/// The steps that are possible in the states of a model, and the promises that hold in each.
pub trait Model {
    type State: Clone + Eq + Hash;
    type Step: Copy + Debug;
    type Broken;

    /// The fewest states of a search that finds no broken promise; with fewer, the search panics. A
    /// model in which hardly any step is possible keeps all its promises.
    const FEWEST: usize;

    /// Calls `take` with every step that is possible in this state, and the state after it.
    fn each_next(&self, state: &Self::State, take: impl FnMut(Self::Step, Self::State));

    /// Returns a promise that this state breaks.
    fn broken(&self, state: &Self::State) -> Option<Self::Broken>;

    /// Returns a promise that this step breaks, taken from this state.
    fn broken_by(&self, _: &Self::State, _: Self::Step) -> Option<Self::Broken> {
        None
    }

    /// Returns the promise that this state breaks if no step is possible in it.
    fn stuck(&self, _: &Self::State) -> Option<Self::Broken> {
        None
    }
}

/// A broken promise, and the shortest sequence of steps to it.
pub type Counterexample<M> = (<M as Model>::Broken, Vec<<M as Model>::Step>);

/// The states that a search has found.
pub(crate) struct Found<M: Model> {
    pub(crate) states: Vec<M::State>,
    /// For each state, the one before it on a shortest way from the start, and the step from there.
    before: Vec<(u32, Option<M::Step>)>,
    /// A hash table with open addressing: the upper half of a state's hash, and the state's index
    /// plus one. In an empty slot both are 0.
    slots: Vec<(u32, u32)>,
}

impl<M: Model> Found<M> {
    fn new(start: M::State) -> Self {
        let mut found = Self {
            states: Vec::new(),
            before: Vec::new(),
            slots: vec![(0, 0); 1 << 12],
        };
        found.insert(start, (0, None));
        found
    }

    /// Adds the state unless it is there already, and returns its index.
    fn insert(&mut self, state: M::State, before: (u32, Option<M::Step>)) -> usize {
        let hash = BuildHasherDefault::<Mixed>::default().hash_one(&state);
        let tag = (hash >> 32) as u32;
        let slot = self.slot(tag, |at| self.states[at] == state);
        if self.slots[slot].1 != 0 {
            return self.slots[slot].1 as usize - 1;
        }
        self.states.push(state);
        self.before.push(before);
        let count = u32::try_from(self.states.len()).expect("fewer than 2^32 states");
        self.slots[slot] = (tag, count);
        if self.states.len() > self.slots.len() / 2 {
            self.grow();
        }
        self.states.len() - 1
    }

    /// Returns the slot with this tag whose state `is_same`, by its index; without one, the empty
    /// slot for a new state with this tag.
    fn slot(&self, tag: u32, is_same: impl Fn(usize) -> bool) -> usize {
        let last = self.slots.len() - 1;
        let mut slot = tag as usize & last;
        while self.slots[slot].1 != 0
            && (self.slots[slot].0 != tag || !is_same(self.slots[slot].1 as usize - 1))
        {
            slot = (slot + 1) & last;
        }
        slot
    }

    fn grow(&mut self) {
        let more = vec![(0, 0); self.slots.len() * 4];
        for (tag, index) in std::mem::replace(&mut self.slots, more) {
            if index != 0 {
                let slot = self.slot(tag, |_| false);
                self.slots[slot] = (tag, index);
            }
        }
    }

    /// Returns the shortest sequence of steps from the start to a state.
    pub(crate) fn way_to(&self, mut at: usize) -> Vec<M::Step> {
        let mut way = Vec::new();
        while let (before, Some(step)) = self.before[at] {
            way.push(step);
            at = before as usize;
        }
        way.reverse();
        way
    }
}

/// Returns how many states a search covers that would otherwise take minutes: `few`, or all of them
/// if `LEASEHOLD_LONG_MODELS` is set.
pub(crate) fn most_states(few: usize) -> usize {
    match env::var_os("LEASEHOLD_LONG_MODELS") {
        Some(_) => usize::MAX,
        None => few,
    }
}

/// Searches all states; fails with a broken promise and the shortest sequence of steps to it.
///
/// Once `most` states are found, the search takes no further steps, and only checks those states.
pub(crate) fn holds<M: Model>(
    model: &M,
    start: M::State,
    most: usize,
) -> Result<(), Counterexample<M>> {
    let found = explore(model, start, most, |_, _, _| {})?;
    let count = found.states.len();
    println!("{count} states{}", if count < most { "" } else { ", cut" });
    Ok(())
}

/// Searches all states, and returns their number; or a broken promise, and the shortest sequence of
/// steps to it.
pub fn count_states<M: Model>(model: &M, start: M::State) -> Result<usize, Counterexample<M>> {
    let found = explore(model, start, usize::MAX, |_, _, _| {})?;
    Ok(found.states.len())
}

/// Like [`holds`], but returns the states. Calls `edge` for every step: with the index in
/// [`Found::states`] of the state before it, the step, and the index of the state after it.
///
/// Panics if there are fewer than [`Model::FEWEST`] states.
pub(crate) fn explore<M: Model>(
    model: &M,
    start: M::State,
    most: usize,
    mut edge: impl FnMut(usize, M::Step, usize),
) -> Result<Found<M>, Counterexample<M>> {
    let mut found = Found::<M>::new(start);
    let mut now = 0;
    while now < found.states.len() {
        let state = found.states[now].clone();
        let mut broken = model.broken(&state).map(|broken| (broken, None));
        if broken.is_none() && found.states.len() < most {
            let mut is_stuck = true;
            model.each_next(&state, |step, next| {
                is_stuck = false;
                if broken.is_none() {
                    broken = model
                        .broken_by(&state, step)
                        .map(|broken| (broken, Some(step)));
                }
                let to = found.insert(next, (now as u32, Some(step)));
                edge(now, step, to);
            });
            if is_stuck {
                broken = model.stuck(&state).map(|broken| (broken, None));
            }
        }
        if let Some((broken, last)) = broken {
            let mut way = found.way_to(now);
            way.extend(last);
            return Err((broken, way));
        }
        now += 1;
    }
    let count = found.states.len();
    assert!(count >= M::FEWEST, "the search ended after {count} states");
    Ok(found)
}

/// Asserts that a search found this promise broken; prints the steps to it.
#[track_caller]
pub fn assert_found<B: Debug + PartialEq, S: Debug>(found: Result<(), (B, Vec<S>)>, promise: B) {
    let (broken, steps) = found.expect_err("the flaw breaks a promise");
    println!("{steps:#?}");
    assert_eq!(broken, promise);
}

/// A hash for small fields: much faster than the standard library's.
#[derive(Default)]
struct Mixed(u64);

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

    fn write_u128(&mut self, number: u128) {
        self.write_u64((number as u64).rotate_left(29) ^ (number >> 64) as u64);
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
