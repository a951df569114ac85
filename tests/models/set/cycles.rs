//! A search for cycles among all states.

use crate::search::{Found, explore};

use super::rules::{Broken, CLIENTS, Rules};
use super::state::{Phase, Reply, State};
use super::steps::{Step, client_of};

/// All states, and the steps between them.
struct Graph {
    found: Found<Rules>,
    steps: Vec<Vec<(Step, usize)>>,
}

impl Graph {
    fn of(rules: &Rules, start: State) -> Result<Self, (Broken, Vec<Step>)> {
        let mut steps = Vec::new();
        let found = explore(rules, start, usize::MAX, |from, step, to| {
            steps.resize_with(from + 1, Vec::new);
            steps[from].push((step, to));
        })?;
        steps.resize_with(found.states.len(), Vec::new);
        println!("{} states", found.states.len());
        Ok(Self { found, steps })
    }
}

fn acquires(step: Step) -> bool {
    matches!(
        step,
        Step::Reads(_, Reply::Granted) | Step::ReadsGrant(_) | Step::Enters(_, true)
    )
}

/// Searches for steps that go round for ever although nobody acquires anything.
pub fn never_goes_round(rules: &Rules, start: State) -> Result<(), (Broken, Vec<Step>)> {
    let graph = Graph::of(rules, start)?;
    let found = cycle(&graph, |_| true, |step| !acquires(step), |_| true);
    result(&graph, found, Broken::GoesRound)
}

/// Searches for steps that go round for ever while the first client wants its set.
pub fn first_never_starves(rules: &Rules, start: State) -> Result<(), (Broken, Vec<Step>)> {
    let graph = Graph::of(rules, start)?;
    let is_first = |step: Step| client_of(step) == Some(0);
    let goes_on = |step: Step| !(is_first(step) && acquires(step));
    let found = cycle(&graph, |_| true, goes_on, is_first);
    // Others go on while the first client cannot act.
    let waits = |at: usize| {
        matches!(graph.found.states[at].phases[0], Phase::Waiting(..))
            && !graph.steps[at].iter().any(|(step, _)| is_first(*step))
    };
    let found = found.or_else(|| cycle(&graph, waits, goes_on, |_| true));
    result(&graph, found, Broken::Starves)
}

fn result(graph: &Graph, found: Option<usize>, broken: Broken) -> Result<(), (Broken, Vec<Step>)> {
    match found {
        Some(at) => Err((broken, graph.found.way_to(at))),
        None => Ok(()),
    }
}

/// The steps on the cycles among states that can all be reached from each other.
#[derive(Clone, Copy, Default)]
struct Round {
    is_wanted: bool,
    /// For each client: whether it takes a step there, or has no step that it must take in one of
    /// the states.
    is_fair: [bool; CLIENTS],
}

/// Returns a state on a cycle of `states` along `steps`, one of which is `wanted`.
///
/// A cycle counts only if it is fair to every client: the client takes a step on it, or has no step
/// that it must take in one of its states.
fn cycle(
    graph: &Graph,
    states: impl Fn(usize) -> bool,
    steps: impl Fn(Step) -> bool,
    wanted: impl Fn(Step) -> bool,
) -> Option<usize> {
    let edges: Vec<Vec<(Step, usize)>> = (0..graph.found.states.len())
        .map(|from| {
            let all = graph.steps[from].iter().copied();
            let there = all.filter(|(step, to)| states(from) && states(*to) && steps(*step));
            there.collect()
        })
        .collect();
    let components = components(&edges);
    let mut rounds = vec![Round::default(); graph.found.states.len()];
    for (from, edges) in edges.iter().enumerate() {
        let round = &mut rounds[components[from]];
        for (client, is_fair) in round.is_fair.iter_mut().enumerate() {
            let mut all = graph.steps[from].iter();
            let must_act = graph.found.states[from].phases[client] != Phase::Out;
            *is_fair |= !must_act || !all.any(|(step, _)| client_of(*step) == Some(client));
        }
        for (step, _) in edges
            .iter()
            .filter(|(_, to)| components[from] == components[*to])
        {
            round.is_wanted |= wanted(*step);
            if let Some(client) = client_of(*step) {
                round.is_fair[client] = true;
            }
        }
    }
    (0..edges.len()).find(|from| {
        let round = rounds[components[*from]];
        round.is_wanted && round.is_fair == [true; CLIENTS]
    })
}

/// Returns for each state the number of its strongly connected component (Tarjan 1972).
fn components(edges: &[Vec<(Step, usize)>]) -> Vec<usize> {
    const NEW: usize = usize::MAX;
    let mut index = vec![NEW; edges.len()];
    let mut low = vec![NEW; edges.len()];
    let mut component = vec![NEW; edges.len()];
    let (mut open, mut count, mut components) = (Vec::new(), 0, 0);
    for root in 0..edges.len() {
        let mut path = match index[root] {
            NEW => vec![(root, 0)],
            _ => Vec::new(),
        };
        while let Some((at, next)) = path.last_mut() {
            let at = *at;
            if index[at] == NEW {
                (index[at], low[at]) = (count, count);
                count += 1;
                open.push(at);
            }
            if let Some((_, to)) = edges[at].get(*next) {
                *next += 1;
                if index[*to] == NEW {
                    path.push((*to, 0));
                } else if component[*to] == NEW {
                    low[at] = low[at].min(index[*to]);
                }
                continue;
            }
            path.pop();
            if let Some((before, _)) = path.last() {
                low[*before] = low[*before].min(low[at]);
            }
            if low[at] == index[at] {
                loop {
                    let member = open.pop().expect("the state is open");
                    component[member] = components;
                    if member == at {
                        break;
                    }
                }
                components += 1;
            }
        }
    }
    component
}
