//! A simulation of clients and one server in virtual time: it runs the kernel over random plans.

mod check;
mod line;
mod plan;
mod quorum;
mod rules;
mod server;
mod world;

use std::cell::Cell;
use std::time::Duration;

use plan::{Family, Plan, plan};
use world::{Checked, Report, Violation, World};

use crate::clock::Instant;
use crate::kernel::mutant::{Mutant, switch_on};
use crate::random;

/// A run that violated a property.
struct Failure {
    violation: Violation,
    trace: Vec<String>,
}

fn run(plan: &Plan, is_traced: bool) -> Result<Report, Box<Failure>> {
    random::seed(Some(plan.seed));
    let (end, report, log) = if plan.family == Family::Quorum {
        let mut world = quorum::World::new(plan.clone(), is_traced);
        (checked(|| world.run()), world.report, world.log)
    } else {
        let mut world = World::new(plan.clone(), is_traced);
        (checked(|| world.run()), world.report, world.log)
    };
    random::seed(None);
    match end {
        Ok(()) => Ok(report),
        Err(violation) => Err(Box::new(Failure {
            violation,
            trace: log.into(),
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

/// The most steps of one event: a call of the kernel takes a few for each name.
const MOST_STEPS: u32 = 10_000;

thread_local! {
    static STEPS: Cell<u32> = const { Cell::new(0) };
}

/// A loop in the kernel goes on.
///
/// # Panics
///
/// If it has gone on so often since the last event that it seems to have no end.
pub(super) fn count_step() {
    let steps = STEPS.get() + 1;
    assert!(steps <= MOST_STEPS, "a call of the kernel does not return");
    STEPS.set(steps);
}

/// An event begins.
pub(super) fn begin_event() {
    STEPS.set(0);
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
    with(&|it| it.linger /= 2);
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

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn plan_from_env() -> Option<Plan> {
    let line = std::env::var("SIM_PLAN").ok()?;
    Some(line.parse().unwrap_or_else(|error| panic!("{error:?}")))
}

/// Runs seeds of a family: `SIM_SEEDS` or 300 of them, from `SIM_FIRST` or 0 on. With
/// `SIM_SECONDS`, which all families share, as many new seeds as there is time for. With
/// `SIM_PLAN`, that plan alone. The kernel makes the mistake `SIM_MUTANT`, if there is one.
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
        (None, None) => {
            let first = first.unwrap_or(0);
            let seeds = first..first + number("SIM_SEEDS").unwrap_or(300);
            Box::new(seeds.map(move |seed| plan(family, seed)))
        }
    };
    let mut sum = Report::default();
    let mut count = 0;
    for plan in plans {
        match run(&plan, false) {
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
const CAUGHT_BY_RULES: [Mutant; 4] = [
    Mutant::WakeUpIsPromisedOnce,
    Mutant::NewsEndTheReleaseInFlight,
    Mutant::LateShorteningIsForgotten,
    Mutant::EndedUndoRefuses,
];

/// Looks for a plan that catches each mutant, or those with `SIM_MUTANT` in their name. Prints it
/// as a line of `mutants.txt`.
///
/// # Panics
///
/// If there is no such plan.
fn search_mutants() {
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
                    match first_that_catches(mutant) {
                        Some(plan) => println!("{mutant:?} {plan}"),
                        None => missed.lock().expect("no panic").push(mutant),
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
/// finds another.
#[test]
fn each_mutant_is_caught() {
    match std::env::var_os("SIM_MUTANTS") {
        Some(_) => search_mutants(),
        None => check_known_plans(),
    }
}

/// Panics if a mutant is not caught by its plan in `mutants.txt`.
fn check_known_plans() {
    let known: Vec<(&str, Plan)> = include_str!("mutants.txt")
        .lines()
        .map(|line| {
            let (mutant, plan) = line.split_once(' ').expect("a mutant and its plan");
            (mutant, plan.parse().expect("a plan"))
        })
        .collect();
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

fn assert_keeps(plan: &str) {
    let end = run(&plan.parse().expect("a plan"), false);
    assert!(end.is_ok(), "{:?}", end.err().map(|it| it.violation));
}

/// Two threads carried out their effects in the wrong order: that of an entry which had ended, and
/// that of the next one.
#[test]
fn a_late_unlisten_leaves_a_newer_subscription() {
    assert_keeps(
        "seed=60109 family=Calm clients=3 threads=3 ops=1 names=2 kinds=NoQueue ttl=4000000 \
         handoffs=0 backoff=0 drifts=0,0,0 faults=",
    );
}

/// The reply that refused a call arrived after the message about the end of what had refused it.
#[test]
fn a_call_refused_by_what_has_ended_asks_at_once() {
    assert_keeps(
        "seed=30 family=Calm servers=1 clients=4 threads=1 ops=15 names=2 kinds=NoQueue \
         ttl=4000000 handoffs=0 backoff=0 drifts=0,0,0,0 faults=",
    );
}

/// The id of a lease that its own client is releasing is no refusal, but it leaves a place: its
/// grant came by a message that the client did not listen to.
#[test]
fn a_place_behind_a_lease_of_its_own_client_hears_its_grant() {
    assert_keeps(
        "seed=1089945596723 family=Calm servers=1 clients=2 threads=1 ops=2 names=1 kinds=Fair \
         ttl=1694000 handoffs=0 backoff=0 drifts=0,0 faults=",
    );
}

/// The call waits for the lease of its own client, which ends by the client's clock.
#[test]
fn a_clock_that_is_set_forward_does_not_end_the_wait_for_an_own_lease() {
    assert_keeps(
        "seed=291528408039 family=Clocks servers=1 clients=1 threads=2 ops=1 names=1 kinds=Mutex \
         ttl=4398000 handoffs=0 backoff=0 drifts=0,0 faults=193220:Ahead.7294491",
    );
}

/// Its votes were as old as the server that hung: at a deadline they say nothing.
#[test]
fn a_split_vote_is_as_old_as_its_commands() {
    assert_keeps(
        "seed=516054237177 family=Quorum servers=5 clients=2 threads=1 ops=3 names=1 \
         kinds=NoQueue ttl=2422000 handoffs=0 backoff=0 drifts= \
         faults=135455:Server.3.Hang.14790000,217494:Stop.0.None.2192219,\
         898129:Stop.1.None.1849770,1068904:Link.1.2.Slow.281128,\
         1187148:Link.1.2.Cut.true,1207547:Server.0.FlushScripts,\
         1362989:StopNext.0.Engine.3520364,2893015:Link.0.0.Cut.false",
    );
}

/// The old master had run it, and its reply came after the client had learnt of the new one.
#[test]
fn a_release_that_meets_a_failover_is_repeated() {
    assert_keeps(
        "seed=593176543667 family=Failover servers=1 clients=3 threads=2 ops=2 names=1 \
         kinds=NoQueue ttl=4000000 handoffs=4 backoff=0 drifts=0,0,0 faults=16353:Snapshot,\
         28251:Failover,1054591:Cut.2.Sub.true,1341203:Cut.1.Engine.true,\
         3655787:StopNext.1.Sub.4746851",
    );
}

/// The last call in line counted the lease of its own client as its last refusal.
#[test]
fn a_call_that_its_own_client_refuses_leaves_no_place() {
    assert_keeps(
        "seed=76 family=Backoff servers=1 clients=3 threads=3 ops=6 names=2 kinds=Mutex,Fair \
         ttl=4000000 handoffs=0 backoff=400 drifts=0,0,0 faults=2431246:Slow.2.Sub.1135106",
    );
}

/// The last attempt of a call for a set was refused: the call did not return.
#[test]
fn a_set_without_queues_is_refused_after_its_last_attempt() {
    assert_keeps(
        "seed=1 family=Sets servers=1 clients=2 threads=2 ops=3 names=2 kinds=PlainSet ttl=4000000 \
         handoffs=0 backoff=1000 drifts=0,0 faults=",
    );
    assert_keeps(
        "seed=49 family=Quorum servers=3 clients=4 threads=2 ops=4 names=2 kinds=PlainSet \
         ttl=393000 handoffs=0 backoff=300 drifts= faults=729973:Link.3.2.Slow.119043,\
         826952:Link.3.2.Slow.371942,982387:Link.3.2.Cut.false,1012564:Link.3.1.Cut.false,\
         1012876:Link.3.2.Cut.false,1178164:Link.0.2.Slow.35495,2209278:Link.0.1.Cut.false,\
         2345471:Server.0.Foreign.0.361978,2577088:Link.0.2.Twice,2871206:Link.2.2.Cut.false,\
         3360828:Cancel.1.1,3469228:Link.3.0.Cut.true",
    );
}

/// The command of a set whose call had left refused a call for one of the names.
#[test]
fn a_call_refused_by_what_a_set_has_left_is_not_refused() {
    assert_keeps(
        "seed=20001371 family=Sets servers=1 clients=2 threads=1 ops=11 names=3 \
         kinds=PlainSet,NoQueue ttl=4000000 handoffs=0 backoff=0 drifts=0,0 \
         faults=1471340:Slow.0.Engine.440942",
    );
}

/// The client is closed, and its guard of the same set still lives.
#[test]
fn a_call_for_a_set_of_a_closed_client_says_so() {
    assert_keeps(
        "seed=20010374 family=Quorum servers=3 clients=2 threads=3 ops=6 names=2 kinds=PlainSet \
         ttl=1556000 handoffs=0 backoff=0 drifts= faults=151174:Server.0.Forget,\
         2420598:Link.0.2.Cut.true,2961530:Link.0.1.Twice,3900220:Shutdown.0",
    );
}

/// It had waited for the first name, and its deadline came while it asked for the second one.
#[test]
fn a_set_that_waited_for_one_of_its_names_is_refused_at_its_deadline() {
    assert_keeps(
        "seed=59 family=Sets servers=1 clients=3 threads=3 ops=11 names=2 kinds=Mutex,Set \
         ttl=2322000 handoffs=2 backoff=0 linger=0 drifts=0,0,0 faults=",
    );
}

/// A set of its client had kept the name when it would have asked, and got all its names later.
#[test]
fn a_call_behind_a_set_of_its_client_is_refused_at_its_deadline() {
    assert_keeps(
        "seed=1397 family=Sets servers=1 clients=2 threads=3 ops=5 names=2 kinds=Mutex,Set \
         ttl=2322000 handoffs=2 backoff=0 linger=0 drifts=0,0,0 faults=",
    );
}

/// Another call of its client held one of the names at its deadline.
#[test]
fn a_set_without_queues_behind_a_lease_of_its_client_is_refused_at_its_deadline() {
    assert_keeps(
        "seed=34 family=Sets servers=1 clients=2 threads=3 ops=7 names=3 \
         kinds=SlotSet.false,NoQueue ttl=2367000 handoffs=0 backoff=0 linger=0 drifts=0,0 faults=",
    );
}

/// The lock was released before its client heard the messages about it.
#[test]
fn a_set_without_queues_asks_when_messages_begin_to_come() {
    assert_keeps(
        "seed=491 family=Sets servers=1 clients=2 threads=2 ops=4 names=3 kinds=PlainSet,NoQueue \
         ttl=1469000 handoffs=0 backoff=0 linger=0 drifts=0,0 faults=",
    );
}

/// A set of its client gave the name back just before its deadline.
#[test]
fn a_call_behind_a_name_that_a_set_gives_back_is_refused_at_its_deadline() {
    assert_keeps(
        "seed=1097485983151 family=Linger servers=1 clients=3 threads=2 ops=7 names=2 \
         kinds=NoQueue,Set ttl=706000 handoffs=7 backoff=0 linger=35112 drifts=3725,382,-4852 \
         faults=",
    );
}

/// It had lingered, and the engine stood still until after its end.
#[test]
fn a_lingering_lease_that_expires_is_released() {
    assert_keeps(
        "seed=255072713177 family=Linger servers=1 clients=2 threads=3 ops=6 names=2 kinds=Mutex \
         ttl=4000000 handoffs=2 backoff=0 linger=1069412 drifts=0,0 \
         faults=330637:Twice.0.Caller.2,839445:Panic.0.2,1789914:Stop.0.Some.Caller.1.709889,\
         1892332:StopNext.1.Engine.7105080,2493042:Errors.1002530,3285692:Stall.2340255,\
         3444461:Twice.0.Engine,3929356:Delete.1",
    );
}

/// A call ended the linger, and its deadline came: nobody had held the lock.
#[test]
fn a_lingering_lease_is_no_proof_that_the_lock_was_taken() {
    assert_keeps(
        "seed=111482810161 family=Linger servers=1 clients=4 threads=2 ops=2 names=2 \
         kinds=Mutex,Mutex,Fair,Set ttl=1716000 handoffs=4 backoff=0 linger=146 \
         drifts=0,0,0,0 \
         faults=838191:Kill.1,988340:Cut.0.Caller.1.false,1304738:StopNext.2.Caller.0.5896205,\
         1679756:StopNext.1.Sub.1416116,2012889:Cut.3.Sub.true,2036962:Twice.0.Caller.0,\
         3844667:LoseMessages.0.312866",
    );
}

/// The client held the lock when it would have asked for the deadline, and lost it before that.
#[test]
fn a_call_behind_a_lease_that_is_lost_before_its_deadline_is_refused() {
    assert_keeps(
        "seed=815 family=Calm clients=2 threads=3 ops=6 names=1 kinds=Fair,Mutex ttl=4000000 \
         handoffs=1 backoff=0 drifts=0,0,0,0 faults=",
    );
}

/// The client stood still: the holder gave up before the engine read that its release had ended.
#[test]
fn a_release_that_ends_after_its_holder_has_left_proves_that_the_lock_was_taken() {
    assert_keeps(
        "seed=20060081 family=Quorum servers=3 clients=4 threads=3 ops=6 names=1 kinds=NoQueue \
         ttl=4000000 handoffs=4 backoff=0 drifts= faults=686679:Stop.0.None.2404580,\
         865457:Server.1.Foreign.0.294526,1205915:Server.1.Stall.956039,\
         2280625:Server.2.FlushScripts,2614868:Server.1.RestartEmpty,\
         3023492:Stop.3.Some.Sub.2579752",
    );
}

/// The holder had the lock until after the deadline, as far as the client knew, and released it.
#[test]
fn a_call_whose_refusal_ends_before_its_deadline_asks_again() {
    assert_keeps(
        "seed=20070374 family=Quorum servers=3 clients=4 threads=3 ops=11 names=1 kinds=NoQueue \
         ttl=4000000 handoffs=0 backoff=300 drifts= faults=",
    );
}

/// Each lease ended before its reply arrived, and calls of one client refused each other: that was
/// no silence. They ended once the link was fast.
#[test]
fn calls_that_get_no_lease_in_time_end_when_their_link_is_fast() {
    assert_keeps(
        "seed=1071754160308 family=ShortTtl servers=1 clients=3 threads=3 ops=29 names=1 \
         kinds=Mutex,Mutex,Fair ttl=491000 handoffs=1 backoff=0 drifts=-3241,3705,-4341 \
         faults=510488:Cut.0.Engine.true,760865:StopNext.0.Caller.0.459125,\
         1142332:Cut.1.Engine.false,1381116:Cut.0.Sub.true,1575070:Slow.1.Engine.247821",
    );
}

/// A proxy ran the command of a lease again, after its release and before the reply to that.
#[test]
fn command_that_runs_again_after_a_release_is_excused() {
    assert_keeps(
        "seed=912080084109 family=Backoff servers=1 clients=3 threads=3 ops=13 names=2 \
         kinds=Mutex ttl=2674000 handoffs=0 backoff=400 drifts=1994,-212,-3904 \
         faults=173684:LoseMessages.0.246854,548733:Twice.1.Engine,1463588:Stop.2.None.1977354,\
         1892468:LoseMessages.2.173302,2875145:Cut.1.Sub.false,3697384:Twice.0.Engine",
    );
}

/// The engine stood still: it had not begun the round that releases the lease.
#[test]
fn shutdown_leaves_a_release_to_its_round() {
    assert_keeps(
        "seed=67988440955 family=Quorum servers=3 clients=3 threads=2 ops=9 names=2 \
         kinds=PlainSet ttl=4000000 handoffs=0 backoff=0 drifts= \
         faults=1445974:Link.1.2.Slow.663379,1656962:Cancel.1.0,2010938:Server.0.Stall.2079797,\
         3134087:Stop.0.Some.Engine.3343295,3284659:Link.2.0.Cut.false,3358982:Shutdown.0,\
         3601150:Stop.0.None.411921,3905083:Stop.2.None.3596448",
    );
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
}
