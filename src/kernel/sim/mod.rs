//! A simulation of clients and one server in virtual time: it runs the kernel over random plans.

mod check;
mod line;
mod plan;
mod quorum;
#[cfg(test)]
mod rules;
mod server;
mod world;

use plan::{Family, Plan, plan};
use world::{Report, Violation, World};

use crate::kernel::mutant::{Mutant, switch_on};
use crate::random;

/// A run that violated a property.
struct Failure {
    violation: Violation,
    trace: Vec<String>,
}

fn run(plan: &Plan, is_traced: bool) -> Result<Report, Box<Failure>> {
    random::seed(Some(plan.seed));
    if plan.family == Family::Quorum {
        return run_quorum(plan, is_traced);
    }
    let mut world = World::new(plan.clone(), is_traced);
    let end = world.run();
    random::seed(None);
    match end {
        Ok(()) => Ok(world.report),
        Err(violation) => Err(Box::new(Failure {
            violation,
            trace: world.log.into(),
        })),
    }
}

fn run_quorum(plan: &Plan, is_traced: bool) -> Result<Report, Box<Failure>> {
    let mut world = quorum::World::new(plan.clone(), is_traced);
    let end = world.run();
    random::seed(None);
    match end {
        Ok(()) => Ok(world.report),
        Err(violation) => Err(Box::new(Failure {
            violation,
            trace: world.log.into(),
        })),
    }
}

/// Makes a plan smaller as long as it `fails`.
fn shrink(plan: &Plan, fails: impl Fn(&Plan) -> bool) -> Plan {
    let mut best = plan.clone();
    while let Some(smaller) = smaller_plans(&best).into_iter().find(&fails) {
        best = smaller;
    }
    best
}

/// Returns plans that are one step smaller, the smallest first.
fn smaller_plans(plan: &Plan) -> Vec<Plan> {
    let mut smaller: Vec<Plan> = Vec::new();
    let mut with = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan.clone();
        change(&mut plan);
        smaller.push(plan);
    };
    with(&|it| it.clients -= 1);
    with(&|it| it.threads -= 1);
    with(&|it| it.ops /= 2);
    with(&|it| it.ops -= 1);
    with(&|it| it.names = 1);
    with(&|it| it.handoffs = 0);
    with(&|it| it.backoff = 0);
    with(&|it| it.drifts.fill(0));
    for n in 0..plan.kinds.len() {
        with(&|it| {
            it.kinds.remove(n);
        });
    }
    for n in 0..plan.faults.len() {
        with(&|it| {
            it.faults.remove(n);
        });
    }
    let shown = plan.to_string();
    smaller.retain(|it| {
        it.clients > 0
            && it.threads > 0
            && it.ops > 0
            && !it.kinds.is_empty()
            && !names_missing(it)
            && it.to_string() != shown
    });
    smaller
}

/// Returns whether a fault names a client or thread that the plan does not have.
fn names_missing(plan: &Plan) -> bool {
    use plan::{Actor, Fault};
    plan.faults.iter().any(|(_, fault)| {
        let (client, thread) = match fault {
            Fault::Cut(client, Actor::Caller(thread), _)
            | Fault::Slow(client, Actor::Caller(thread), _)
            | Fault::Stop(client, Some(Actor::Caller(thread)), _)
            | Fault::StopNext(client, Actor::Caller(thread), _)
            | Fault::Twice(client, Actor::Caller(thread))
            | Fault::Panic(client, thread)
            | Fault::Cancel(client, thread) => (*client, *thread),
            Fault::Cut(client, ..)
            | Fault::Suspend(client, _)
            | Fault::Link(client, ..)
            | Fault::Slow(client, ..)
            | Fault::Stop(client, ..)
            | Fault::Kill(client)
            | Fault::Shutdown(client)
            | Fault::LoseMessages(client, _)
            | Fault::Twice(client, _)
            | Fault::StopNext(client, ..) => (*client, 0),
            _ => (0, 0),
        };
        client >= plan.clients || thread >= plan.threads
    })
}

/// All families, or the one that `SIM_FAMILY` names.
fn families() -> impl Iterator<Item = Family> {
    let only = std::env::var("SIM_FAMILY").ok();
    let is_wanted = move |family: &Family| {
        let name = format!("{family:?}");
        only.as_ref().is_none_or(|only| *only == name)
    };
    Family::ALL.into_iter().filter(is_wanted)
}

fn number(name: &str, default: u64) -> u64 {
    let set = std::env::var(name).ok();
    set.and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn plan_from_env() -> Option<Plan> {
    let line = std::env::var("SIM_PLAN").ok()?;
    Some(line.parse().unwrap_or_else(|error| panic!("{error:?}")))
}

/// Runs seeds of a family; panics with a shrunk plan and its trace if a property is violated.
fn run_family(family: Family, seeds: std::ops::Range<u64>) {
    let mut sum = Report::default();
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let plan = plan(family, seed);
        match run(&plan, false) {
            Ok(report) => sum.add(&report),
            Err(failure) => report_failure(&plan, &failure),
        }
    }
    println!("{family:?}: {count} seeds, {sum:?}");
}

/// Panics with the plan, made smaller unless `SIM_SHRINK` is 0, and the last steps of its run:
/// `SIM_TRACE` of them, or 200.
fn report_failure(plan: &Plan, failure: &Failure) -> ! {
    let Violation { property, text } = &failure.violation;
    let shrunk = match number("SIM_SHRINK", 1) {
        0 => plan.clone(),
        _ => shrink(plan, |plan| {
            run(plan, false).is_err_and(|it| it.violation.property == *property)
        }),
    };
    let again = run(&shrunk, true).err();
    let (text, trace) = again.map_or_else(
        || (text.clone(), Vec::new()),
        |it| (it.violation.text, it.trace),
    );
    let lines = number("SIM_TRACE", 200) as usize;
    let trace = &trace[trace.len().saturating_sub(lines)..];
    panic!(
        "{}\n{:?} seed {}: {property}: {text}\nSIM_PLAN='{shrunk}'",
        trace.join("\n"),
        plan.family,
        plan.seed
    );
}

/// Returns the first plan that catches a mutant.
fn first_that_catches(mutant: Mutant, seeds: u64) -> Option<Plan> {
    let seeds = number("SIM_FIRST", 0)..seeds;
    seeds.into_iter().find_map(|seed| {
        if let Some(like) = plan_from_env() {
            let plan = Plan { seed, ..like };
            return catches(mutant, &plan).then_some(plan);
        }
        let mut plans = families().map(|family| plan(family, seed));
        plans.find(|plan| catches(mutant, plan))
    })
}

/// Returns whether the run of a plan violates a property if the kernel makes a mistake.
fn catches(mutant: Mutant, plan: &Plan) -> bool {
    switch_on(Some(mutant));
    let end = std::panic::catch_unwind(|| run(plan, false));
    switch_on(None);
    random::seed(None);
    // A panic is an assertion of the kernel.
    !matches!(end, Ok(Ok(_)))
}

/// How many seeds of a known plan are tried: a change of the kernel moves the random numbers of all
/// runs.
const SEEDS_OF_KNOWN: u64 = 100;

/// Like [`catches`], for the seed of a plan and some that follow it.
fn catches_soon(mutant: Mutant, plan: &Plan) -> bool {
    let mut seeds = plan.seed..plan.seed + SEEDS_OF_KNOWN;
    seeds.any(|seed| {
        let plan = Plan {
            seed,
            ..plan.clone()
        };
        catches(mutant, &plan)
    })
}

/// Prints a line of `mutants.txt` for each mutant, or for those with `SIM_MUTANT` in their name: the
/// first plan that catches it, among `SIM_SEEDS` of each family or like `SIM_PLAN`, made smaller.
pub(crate) fn print_mutants() {
    let only = std::env::var("SIM_MUTANT").unwrap_or_default();
    std::panic::set_hook(Box::new(|_| {}));
    for mutant in Mutant::ALL {
        if !format!("{mutant:?}").contains(&only) {
            continue;
        }
        match first_that_catches(mutant, number("SIM_SEEDS", 200)) {
            Some(plan) => {
                let smaller = shrink(&plan, |plan| catches(mutant, plan));
                println!("{mutant:?} {smaller}");
            }
            None => println!("{mutant:?} is not caught"),
        }
    }
}

/// Runs the seeds of each family: `SIM_SEEDS` of them from `SIM_FIRST` on; of `SIM_FAMILY` alone if
/// set. Runs only the plan in `SIM_PLAN` if that is set. The kernel makes the mistake `SIM_MUTANT`.
pub(crate) fn main() {
    if let Ok(name) = std::env::var("SIM_MUTANT") {
        let mut mutants = Mutant::ALL.into_iter();
        switch_on(mutants.find(|mutant| format!("{mutant:?}") == name));
    }
    if let Some(plan) = plan_from_env() {
        match run(&plan, false) {
            Ok(report) => return println!("{report:?}"),
            Err(failure) => report_failure(&plan, &failure),
        }
    }
    let (first, seeds) = (number("SIM_FIRST", 0), number("SIM_SEEDS", 1));
    for family in families() {
        run_family(family, first..first + seeds);
    }
}

#[test]
fn all_families_keep_the_properties() {
    main();
}

/// `mutants.txt` has a plan that catches each mutant. If a change makes one fail, `SIM_MUTANTS=1`
/// finds another.
#[test]
fn each_mutant_is_caught() {
    match std::env::var_os("SIM_MUTANTS") {
        Some(_) => print_mutants(),
        None => check_known_plans(),
    }
}

/// Panics if a mutant is not caught by its plan in `mutants.txt`.
pub(crate) fn check_known_plans() {
    let known: Vec<(&str, Plan)> = include_str!("mutants.txt")
        .lines()
        .map(|line| {
            let (mutant, plan) = line.split_once(' ').expect("a mutant and its plan");
            (mutant, plan.parse().expect("a plan"))
        })
        .collect();
    // The tests in `rules` catch these.
    let others = [
        Mutant::WakeUpIsPromisedOnce,
        Mutant::NewsEndTheReleaseInFlight,
        Mutant::LateShorteningIsForgotten,
        Mutant::EndedUndoRefuses,
    ];
    let mut missed = Vec::new();
    for mutant in Mutant::ALL {
        let name = format!("{mutant:?}");
        let plan = known.iter().find(|(known, _)| *known == name);
        match plan {
            Some((_, plan)) if catches_soon(mutant, plan) => {}
            None if others.contains(&mutant) => {}
            _ => missed.push(mutant),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
    assert_eq!(known.len() + others.len(), Mutant::ALL.len());
}

/// Two threads carried out their effects in the wrong order: that of an entry which had ended, and
/// that of the next one.
#[test]
fn a_late_unlisten_leaves_a_newer_subscription() {
    let plan = "seed=60109 family=Calm clients=3 threads=3 ops=1 names=2 kinds=NoQueue ttl=4000000 \
                handoffs=0 backoff=0 drifts=0,0,0 faults=";
    let plan = plan.parse().expect("a plan");
    assert!(run(&plan, false).is_ok());
}
