//! A simulation of clients and of 1 to 5 servers in virtual time: it runs the kernel over random
//! plans.

mod check;
mod line;
mod look;
mod plan;
mod rules;
mod seeds;
mod server;
mod world;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use plan::families::plan;
use plan::{Family, Plan};
use world::{Checked, Report, Violation, World};

use crate::clock::Instant;
use crate::kernel::bounds::{bound_of, lower};
use crate::mutant::{Mutant, switch_on};
use crate::random;

/// A run that violated a property.
struct Failure {
    violation: Violation,
    trace: Vec<String>,
}

fn run(plan: &Plan, is_traced: bool) -> Result<Report, Box<Failure>> {
    random::seed(Some(plan.seed));
    lower(plan.low);
    let mut world = World::new(plan.clone(), is_traced);
    let end = checked(|| world.run());
    random::seed(None);
    lower(None);
    match end {
        Ok(()) => {
            if is_traced {
                let mut digest = DefaultHasher::new();
                world.log.hash(&mut digest);
                world.report.steps = digest.finish();
            }
            Ok(world.report)
        }
        Err(violation) => Err(Box::new(Failure {
            violation,
            trace: std::mem::take(&mut world.log).into(),
        })),
    }
}

/// A panic is a violation, too: the run of a plan must end with its plan and its last steps.
fn checked(run: impl FnOnce() -> Checked) -> Checked {
    let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    end.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|it| (*it).into()));
        Err(Violation {
            property: "no panic",
            text: text.unwrap_or_default(),
        })
    })
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
    with(&|it| it.servers = it.servers.min(3));
    with(&|it| it.clients -= 1);
    with(&|it| it.threads -= 1);
    with(&|it| it.ops /= 2);
    with(&|it| it.ops -= 1);
    with(&|it| it.names = 1);
    with(&|it| it.handoffs = 0);
    with(&|it| it.backoff = 0);
    with(&|it| it.linger /= 2);
    with(&|it| it.low = None);
    with(&|it| it.by_engine = false);
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

/// Returns whether a fault names a client, a thread or a server that the plan does not have.
fn names_missing(plan: &Plan) -> bool {
    plan.faults.iter().any(|(_, fault)| {
        let [client, thread] = fault.of();
        client >= plan.clients || thread >= plan.threads || fault.server() >= plan.servers
    })
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn plan_from_env() -> Option<Plan> {
    let line = std::env::var("SIM_PLAN").ok()?;
    Some(line.parse().unwrap_or_else(|error| panic!("{error:?}")))
}

/// The most plans of a family in `make test`: its fixed list, and those in `seeds.rs`.
const MOST_PLANS: usize = 100;

/// Returns the plans of a family that each run of the tests repeats: those that show a mistake, and
/// some seeds. A new plan that violates a property joins `seeds.rs`.
fn fixed_list(family: Family) -> impl Iterator<Item = Plan> {
    let known = known_plans().into_iter().map(|(_, plan)| plan);
    let known = known.filter(move |plan| plan.family == family);
    known.chain((0..family.seeds()).map(move |seed| plan(family, seed)))
}

/// Runs the fixed list of a family, or `SIM_SEEDS` seeds from `SIM_FIRST` or 0 on. With
/// `SIM_SECONDS`, which all families share, as many new seeds as there is time for. With
/// `SIM_PLAN`, that plan alone. The kernel makes the mistake `SIM_MUTANT`, and has a lower bound
/// `SIM_LOW`, if there is one.
///
/// # Panics
///
/// If a property is violated; with a plan made smaller, and its last steps.
fn run_family(family: Family) {
    if let Ok(name) = std::env::var("SIM_MUTANT") {
        let mut mutants = Mutant::ALL.iter().copied();
        switch_on(mutants.find(|mutant| format!("{mutant:?}") == name));
    }
    let first = number("SIM_FIRST");
    let plans: Box<dyn Iterator<Item = Plan>> = match (plan_from_env(), number("SIM_SECONDS")) {
        (Some(plan), _) => Box::new(std::iter::once(plan).filter(|it| it.family == family)),
        (None, Some(seconds)) => {
            let share = Duration::from_secs(seconds) / Family::ALL.len() as u32;
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            let end = Instant::now().after(share * threads.min(Family::ALL.len()) as u32);
            let first = first.unwrap_or_else(|| random::uuid().as_u64_pair().0 >> 24);
            Box::new(
                (first..)
                    .map(move |seed| plan(family, seed))
                    .take_while(move |_| Instant::now() < end),
            )
        }
        (None, None) if first.is_none() && number("SIM_SEEDS").is_none() => {
            Box::new(fixed_list(family))
        }
        (None, None) => {
            let first = first.unwrap_or(0);
            let seeds = first..first + number("SIM_SEEDS").unwrap_or(family.seeds());
            Box::new(seeds.map(move |seed| plan(family, seed)))
        }
    };
    let is_traced = std::env::var("SIM_DIGEST").is_ok();
    let low = std::env::var("SIM_LOW").ok();
    let low = low.map(|name| bound_of(&name).expect("SIM_LOW is a bound"));
    let mut sum = Report::default();
    let mut count = 0;
    for mut plan in plans {
        plan.low = low.or(plan.low);
        match run(&plan, is_traced) {
            Ok(report) => sum.add(&report),
            Err(failure) => report_failure(&plan, &failure),
        }
        count += 1;
    }
    println!("{family:?}: {count} seeds, {sum:?}");
}

/// Panics with the plan, made smaller unless `SIM_SHRINK` is 0, and the last steps of its run:
/// `SIM_TRACE` of them, or 200.
fn report_failure(plan: &Plan, failure: &Failure) -> ! {
    let Violation { property, text } = &failure.violation;
    let shrunk = match number("SIM_SHRINK") {
        Some(0) => plan.clone(),
        _ => shrink(plan, |plan| {
            run(plan, false).is_err_and(|it| it.violation.property == *property)
        }),
    };
    let again = run(&shrunk, true).err();
    let (text, trace) = again.map_or_else(
        || (text.clone(), Vec::new()),
        |it| (it.violation.text, it.trace),
    );
    let lines = number("SIM_TRACE").unwrap_or(200) as usize;
    let trace = &trace[trace.len().saturating_sub(lines)..];
    panic!(
        "{}\n{:?} seed {}: {property}: {text}\nSIM_PLAN='{shrunk}'",
        trace.join("\n"),
        plan.family,
        plan.seed
    );
}

/// Returns whether the run of a plan violates a property if the kernel makes a mistake, and only
/// then.
fn catches(mutant: Mutant, plan: &Plan) -> bool {
    switch_on(Some(mutant));
    let end = run(plan, false);
    switch_on(None);
    end.is_err() && run(plan, false).is_ok()
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

/// Returns the first plan that catches a mutant, made smaller: among `SIM_SEEDS` or 2,000 seeds of
/// each family, or of `SIM_FAMILY`; or of plans like `SIM_PLAN`.
fn first_that_catches(mutant: Mutant) -> Option<Plan> {
    let only = std::env::var("SIM_FAMILY").ok();
    let families = || {
        let all = Family::ALL.into_iter();
        all.filter(|family| {
            only.as_ref()
                .is_none_or(|only| *only == format!("{family:?}"))
        })
    };
    let like = plan_from_env();
    let plans = |seed| -> Vec<Plan> {
        match &like {
            Some(like) => vec![Plan {
                seed,
                ..like.clone()
            }],
            None => families().map(|family| plan(family, seed)).collect(),
        }
    };
    let first = number("SIM_FIRST").unwrap_or(0);
    let seeds = first..first + number("SIM_SEEDS").unwrap_or(2_000);
    let found = seeds.flat_map(plans).find(|plan| catches(mutant, plan))?;
    Some(shrink(&found, |plan| catches(mutant, plan)))
}

/// The tests in `rules` catch these.
const CAUGHT_BY_RULES: [Mutant; 21] = [
    Mutant::LaterAttemptStaysLater,
    Mutant::WakeUpIsPromisedOnce,
    Mutant::NewsEndTheReleaseInFlight,
    Mutant::LateShorteningIsForgotten,
    Mutant::EndedUndoRefuses,
    Mutant::LateReaderIsSilence,
    Mutant::LateReaderIsOverdue,
    Mutant::PlainReleasesAddUp,
    Mutant::ReleaseMessageProvesNothing,
    Mutant::JoinBringsTheFirstToken,
    Mutant::OwnIdJoins,
    Mutant::LeaseIsForgottenEarly,
    Mutant::MessageIsNotTranslated,
    Mutant::JoinedIsAnotherHolder,
    Mutant::TicketEndsTwice,
    Mutant::MemberVotesTwice,
    Mutant::JoinVotesAtOnce,
    Mutant::HangingMemberIsAwaited,
    Mutant::FullMemberRefuses,
    Mutant::HealsBeforeTheOthers,
    Mutant::LateJoinRevives,
];

/// Prints which plan of the fixed lists first catches each mutant, or those with `SIM_MUTANT` in
/// their name.
///
/// # Panics
///
/// If there is none.
fn search_lists() {
    for_each_mutant(|mutant| {
        let mut plans = Family::ALL.into_iter().flat_map(fixed_list);
        let found = plans.find(|plan| catches(mutant, plan));
        if let Some(plan) = &found {
            println!("{mutant:?}: {:?} {}", plan.family, plan.seed);
        }
        found.is_some()
    });
}

/// Looks for a plan that catches each mutant, or those with `SIM_MUTANT` in their name. Prints it
/// as a line of `mutants.txt`.
///
/// # Panics
///
/// If there is no such plan.
fn search_mutants() {
    for_each_mutant(|mutant| {
        let found = first_that_catches(mutant);
        if let Some(plan) = &found {
            println!("{mutant:?} {plan}");
        }
        found.is_some()
    });
}

/// Tries each mutant, or those with `SIM_MUTANT` in their name, on all processors.
///
/// # Panics
///
/// If one is not `caught`.
fn for_each_mutant(caught: impl Fn(Mutant) -> bool + Sync) {
    let only = std::env::var("SIM_MUTANT").unwrap_or_default();
    std::panic::set_hook(Box::new(|_| {}));
    let left = std::sync::Mutex::new(Mutant::ALL.iter().copied().filter(|mutant| {
        !CAUGHT_BY_RULES.contains(mutant) && format!("{mutant:?}").contains(&only)
    }));
    let missed = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(mutant) = { left.lock().expect("no panic").next() } {
                    if !caught(mutant) {
                        missed.lock().expect("no panic").push(mutant);
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().expect("no panic");
    drop(std::panic::take_hook());
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

/// `mutants.txt` has a plan that catches each mutant. If a change makes one fail, `make mutants`
/// finds another. `SIM_MUTANTS=list` looks in the fixed lists only.
#[test]
fn each_mutant_is_caught() {
    match std::env::var("SIM_MUTANTS").as_deref() {
        Ok("list") => search_lists(),
        Ok(_) => search_mutants(),
        Err(_) => check_known_plans(),
    }
}

#[test]
fn a_family_has_at_most_100_plans() {
    let kept = include_str!("seeds.rs");
    for family in Family::ALL {
        let kept = kept.matches(&format!("family={family:?} ")).count();
        let count = kept + fixed_list(family).count();
        assert!(count <= MOST_PLANS, "{family:?}: {count}");
    }
}

/// Returns each mutant in `mutants.txt` with the plan that catches it.
fn known_plans() -> Vec<(&'static str, Plan)> {
    let lines = include_str!("mutants.txt").lines();
    lines
        .map(|line| {
            let (mutant, plan) = line.split_once(' ').expect("a mutant and its plan");
            (mutant, plan.parse().expect("a plan"))
        })
        .collect()
}

/// Panics if a mutant is not caught by its plan in `mutants.txt`.
fn check_known_plans() {
    let known = known_plans();
    let mut missed = Vec::new();
    for &mutant in Mutant::ALL {
        let name = format!("{mutant:?}");
        let plan = known.iter().find(|(known, _)| *known == name);
        match plan {
            Some((_, plan)) if catches_soon(mutant, plan) => {}
            None if CAUGHT_BY_RULES.contains(&mutant) => {}
            _ => missed.push(mutant),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
    assert_eq!(known.len() + CAUGHT_BY_RULES.len(), Mutant::ALL.len());
}

/// A test for each family, so that they run in parallel.
macro_rules! families {
    ($($test:ident $family:ident)+) => {
        mod properties {
            use super::{Family, run_family};
            $(
                #[test]
                fn $test() {
                    run_family(Family::$family);
                }
            )+

            #[test]
            fn each_family_has_a_test() {
                assert_eq!(Family::ALL.len(), [$(Family::$family),+].len());
            }
        }
    };
}

families! {
    calm Calm
    faults Faults
    short_ttls ShortTtl
    failovers Failover
    readers_writers_and_permits Shared
    ends Ending
    backoff Backoff
    clock_steps Clocks
    sets Sets
    rejections Rejections
    slot_moves Moves
    lingering_leases Linger
    quorums Quorum
    restarts Restarts
    forced_releases Force
    crowds Crowd
}
