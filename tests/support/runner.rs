//! Runs the tests of a binary: first most of them, many at a time, then those that measure short
//! times, fewer at a time. Prints how long each phase and the slowest tests took.

use std::any::Any;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Conclusion, Failed, Trial};
use parking_lot::Mutex;

use super::child::{self, Child};
use super::permit;
use super::{chaos, contention, counter, terminal};

/// Threads for tests that mostly sleep: more than there are processors.
const THREADS: usize = 12;

/// Threads for tests that assert narrow bounds: more would disturb the measurements.
const TIMED_THREADS: usize = 3;

/// How many of the slowest tests are printed.
const SLOWEST: usize = 30;

/// The tests and the roles of a binary.
#[derive(Clone, Copy, Debug)]
pub struct Tests {
    /// Tests that wait, or assert only wide bounds.
    pub at_once: &'static [Listed],
    /// Tests that assert narrow bounds: they run after all others.
    pub timed: &'static [Listed],
    /// Tests that change their process for good: each runs in a process of its own.
    pub in_own_process: &'static [Listed],
    /// The functions that child processes run.
    pub roles: &'static [Listed],
}

/// The functions that one module lists with [`tests!`](crate::tests), [`timed!`](crate::timed),
/// [`own_process!`](crate::own_process) or [`roles!`](crate::roles).
#[derive(Clone, Copy, Debug)]
pub struct Listed {
    /// The module's path, which starts with the binary's name.
    pub module: &'static str,
    pub functions: &'static [(&'static str, fn())],
}

impl Listed {
    /// Returns the functions with the names that the command line selects by, such as
    /// `list::thousands_of_locks_are_listed_page_by_page`.
    fn named(&self) -> impl Iterator<Item = (String, fn())> {
        let module = self.module.split_once("::").map(|(_, module)| module);
        let name = move |function: &str| match module {
            Some(module) => format!("{module}::{function}"),
            None => function.to_owned(),
        };
        self.functions
            .iter()
            .map(move |(function, run)| (name(function), *run))
    }
}

/// Lists the tests of a module that wait, or assert an upper bound of a second or more, or of
/// 250 ms or more compared with a plain wait. The compiler reports a test that is not listed as
/// dead code.
#[macro_export]
macro_rules! tests {
    ($($(#[$cfg:meta])* $test:path),* $(,)?) => {
        $crate::listed!(TESTS, $($(#[$cfg])* $test),*);
    };
}

/// Lists the tests of a module that install a logger or a recorder for their process.
#[macro_export]
macro_rules! own_process {
    ($($(#[$cfg:meta])* $test:path),* $(,)?) => {
        $crate::listed!(OWN_PROCESS, $($(#[$cfg])* $test),*);
    };
}

/// Lists the tests of a module that assert narrower bounds and would fail on a busy machine.
#[macro_export]
macro_rules! timed {
    ($($(#[$cfg:meta])* $test:path),* $(,)?) => {
        $crate::listed!(TIMED, $($(#[$cfg])* $test),*);
    };
}

/// Lists the functions that child processes run, for `Child::spawn("module::role", ...)`.
#[macro_export]
macro_rules! roles {
    ($($role:path),* $(,)?) => {
        $crate::listed!(ROLES, $($role),*);
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! listed {
    ($list:ident, $($(#[$cfg:meta])* $function:path),*) => {
        pub(crate) const $list: $crate::Listed = $crate::Listed {
            module: module_path!(),
            functions: &[$($(#[$cfg])* (stringify!($function), $function)),*],
        };
    };
}

/// Runs a role if this is a child process, else the tests that the command line selects. The filter
/// may have several parts with commas between them: `lock::,waking::` selects two modules.
pub fn run(tests: &Tests) -> ExitCode {
    let shared: [(&str, fn()); 4] = [
        ("counter", counter::counter),
        ("contender", contention::contender),
        ("survivor", chaos::survivor),
        (terminal::SESSION, terminal::session),
    ];
    let listed = tests.roles.iter().chain(tests.in_own_process);
    let listed: Vec<_> = listed.flat_map(Listed::named).collect();
    let listed = listed.iter().map(|(name, role)| (name.as_str(), *role));
    let all_roles: Vec<_> = listed.chain(shared).collect();
    if child::run_role(&all_roles) {
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments::from_args();
    let times = Times::default();
    let mut at_once = in_this_process(tests.at_once);
    at_once.extend(in_own_processes(tests.in_own_process));
    let phases = [
        (THREADS, at_once),
        (TIMED_THREADS, in_this_process(tests.timed)),
    ];
    // A failure does not stop the later phase.
    let failed = phases
        .into_iter()
        .filter(|(_, tests)| !tests.is_empty())
        .filter(|(threads, tests)| run_phase(&arguments, *threads, tests, &times).has_failed())
        .count();
    times.print_slowest();
    match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(101),
    }
}

/// A test with its name.
type Named = (String, Arc<dyn Fn() + Send + Sync>);

fn in_this_process(listed: &[Listed]) -> Vec<Named> {
    let tests = one_of_each_module_in_turn(listed);
    tests
        .map(|(name, test)| (name, Arc::new(test) as Arc<dyn Fn() + Send + Sync>))
        .collect()
}

fn in_own_processes(listed: &[Listed]) -> impl Iterator<Item = Named> {
    one_of_each_module_in_turn(listed).map(|(name, _)| {
        let role = name.clone();
        let run = move || drop(Child::spawn(&role, &[]).wait().succeeded());
        (name, Arc::new(run) as Arc<dyn Fn() + Send + Sync>)
    })
}

fn run_phase(arguments: &Arguments, threads: usize, tests: &[Named], times: &Times) -> Conclusion {
    let mut arguments = arguments.clone();
    let threads = *arguments.test_threads.get_or_insert(threads);
    let parts = arguments.filter.take_if(|filter| filter.contains(','));
    let is_selected = |name: &str| match &parts {
        Some(parts) => parts.split(',').any(|part| name.contains(part)),
        None => true,
    };
    let trial = |(name, test): &Named| {
        let (name, test, times) = (name.clone(), Arc::clone(test), times.clone());
        Trial::test(name.clone(), move || {
            let began = Instant::now();
            let end = in_own_thread(name.clone(), test);
            times.0.lock().push((began.elapsed(), name));
            end
        })
    };
    let tests = tests.iter().filter(|(name, _)| is_selected(name));
    let began = Instant::now();
    let conclusion = libtest_mimic::run(&arguments, tests.map(trial).collect());
    let count = conclusion.num_passed + conclusion.num_failed;
    if count > 0 {
        let took = began.elapsed().as_secs_f64();
        println!("{count} tests, {threads} at a time: {took:.1} s\n");
    }
    conclusion
}

/// How long each test took.
#[derive(Clone, Default)]
struct Times(Arc<Mutex<Vec<(Duration, String)>>>);

impl Times {
    fn print_slowest(&self) {
        let mut times = self.0.lock();
        if times.len() < 2 {
            return;
        }
        times.sort_by(|a, b| b.cmp(a));
        let sum: Duration = times.iter().map(|(took, _)| took).sum();
        let (count, sum) = (times.len(), sum.as_secs_f64());
        println!("The slowest of {count} tests, which took {sum:.1} s one after the other:");
        for (took, name) in times.iter().take(SLOWEST) {
            println!("{:8.2} s  {name}", took.as_secs_f64());
        }
        println!();
    }
}

/// Returns the first test of each module, then the second of each, and so on.
///
/// The tests of one module often need the same resource: many servers, the processor, or only time.
/// Started one after the other, they would run together and wait for each other while the rest of
/// the machine is idle.
fn one_of_each_module_in_turn(listed: &[Listed]) -> impl Iterator<Item = (String, fn())> {
    let of_all = listed.iter().flat_map(|module| module.named().enumerate());
    let mut tests: Vec<_> = of_all.collect();
    tests.sort_by_key(|(n, _)| *n);
    tests.into_iter().map(|(_, test)| test)
}

/// Runs a test in a thread with the test's name: panic messages and the watchdog print that name.
fn in_own_thread(name: String, test: Arc<dyn Fn() + Send + Sync>) -> Result<(), Failed> {
    let thread = thread::Builder::new().name(name);
    let running = thread.spawn(move || permit::in_test(|| test()))?;
    running.join().map_err(|panic| message(&*panic).into())
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_owned()
}
