//! Runs the tests of a binary: first those that only wait, many at a time, then those that measure
//! time, fewer at a time.

use std::any::Any;
use std::process::ExitCode;
use std::thread;

use libtest_mimic::{Arguments, Conclusion, Failed, Trial};

use super::permit;
use super::{chaos, child, contention, counter, terminal};

/// Threads for tests that mostly sleep: more than there are processors.
const THREADS: usize = 12;

/// Threads for tests that measure time, with wide bounds.
const ROUGHLY_TIMED_THREADS: usize = 10;

/// Threads for tests with narrower bounds: more would disturb the measurements.
const TIMED_THREADS: usize = 3;

/// The functions that one module lists with [`tests!`](crate::tests),
/// [`roughly_timed!`](crate::roughly_timed), [`timed!`](crate::timed) or [`roles!`](crate::roles).
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

/// Lists the tests of a module that only wait. The compiler reports a test that is not listed as
/// dead code.
#[macro_export]
macro_rules! tests {
    ($($(#[$cfg:meta])* $test:path),* $(,)?) => {
        $crate::listed!(TESTS, $($(#[$cfg])* $test),*);
    };
}

/// Lists the tests of a module that assert an upper bound of a second or more, or of 250 ms or more
/// compared with a plain wait.
#[macro_export]
macro_rules! roughly_timed {
    ($($(#[$cfg:meta])* $test:path),* $(,)?) => {
        $crate::listed!(ROUGHLY_TIMED, $($(#[$cfg])* $test),*);
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
pub fn run(
    tests: &[Listed],
    roughly_timed: &[Listed],
    timed: &[Listed],
    roles: &[Listed],
) -> ExitCode {
    let shared: [(&str, fn()); 4] = [
        ("counter", counter::counter),
        ("contender", contention::contender),
        ("survivor", chaos::survivor),
        (terminal::SESSION, terminal::session),
    ];
    let listed: Vec<_> = roles.iter().flat_map(Listed::named).collect();
    let listed = listed.iter().map(|(name, role)| (name.as_str(), *role));
    let all_roles: Vec<_> = listed.chain(shared).collect();
    if child::run_role(&all_roles) {
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments::from_args();
    let phases = [
        (THREADS, tests),
        (ROUGHLY_TIMED_THREADS, roughly_timed),
        (TIMED_THREADS, timed),
    ];
    // A failure does not stop the later phases.
    let failed = phases
        .into_iter()
        .filter(|(_, listed)| !listed.is_empty())
        .filter(|(threads, listed)| run_with(&arguments, *threads, listed).has_failed())
        .count();
    match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(101),
    }
}

fn run_with(arguments: &Arguments, threads: usize, listed: &[Listed]) -> Conclusion {
    let mut arguments = arguments.clone();
    arguments.test_threads = arguments.test_threads.or(Some(threads));
    let trial =
        |(name, test): (String, fn())| Trial::test(name.clone(), move || in_own_thread(name, test));
    let parts = arguments.filter.take_if(|filter| filter.contains(','));
    let is_selected = |name: &str| match &parts {
        Some(parts) => parts.split(',').any(|part| name.contains(part)),
        None => true,
    };
    let tests = one_of_each_module_in_turn(listed).filter(|(name, _)| is_selected(name));
    libtest_mimic::run(&arguments, tests.map(trial).collect())
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
fn in_own_thread(name: String, test: fn()) -> Result<(), Failed> {
    let thread = thread::Builder::new().name(name);
    let running = thread.spawn(move || permit::in_test(test))?;
    running.join().map_err(|panic| message(&*panic).into())
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_owned()
}
