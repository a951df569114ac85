//! Promise: where the program itself ends its command, the command has ended before another one
//! can start under the lock.

use std::fs;
#[cfg(target_os = "linux")]
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
#[cfg(target_os = "linux")]
use rustix::process::kill_process;
use support::{Proxy, Server, TempDir, Traffic, eventually, let_pass, ms};

use super::{Program, WAIT_LIMIT, client, code, limit, program};

support::tests![
    command_ended_by_max_hold_is_dead_before_the_next_one_starts,
    command_ended_by_end_before_ends_although_redis_is_back,
    command_ended_by_end_before_is_killed_at_once_if_its_time_is_over,
    command_that_waited_in_the_queue_is_not_ended_at_once,
    #[cfg(target_os = "linux")]
    signal_during_the_first_renewal_ends_the_program,
    #[cfg(target_os = "linux")]
    lock_is_renewed_until_the_command_of_a_killed_supervisor_has_ended,
    end_before_must_leave_room_for_a_renewal
];

// The keys expire 150 ms after the leases have ended.
support::timed![command_ended_by_end_before_is_dead_before_the_next_one_starts];

/// The shell scripts of commands that go on after TERM. Each writes to the file `$1`.
const STUBBORN: [&str; 3] = [
    "trap '' TERM; while :; do echo first >>\"$1\"; sleep 0.01; done",
    // It is stopped when TERM is sent, and goes on when it is continued.
    "trap '' TERM; echo first >>\"$1\"; kill -STOP $$; while :; do echo first >>\"$1\"; sleep 0.01; done",
    // The command ends at once, and leaves a process behind.
    "(trap '' TERM; while :; do echo first >>\"$1\"; sleep 0.01; done) & echo first >>\"$1\"; \
     while :; do sleep 1; done",
];

/// A command of one host, and the next one of another host, which waits for the same lock. Both
/// write lines to one file.
struct Handover {
    first: Program,
    next: Program,
    log: PathBuf,
}

impl Handover {
    /// Starts both: the first command, which reaches the server at `url`, with these options.
    fn start(
        (server, url): (&Server, &str),
        (name, log): (&str, &Path),
        options: &[&str],
        script: &str,
    ) -> Self {
        let path = log.to_str().unwrap();
        let command = |script| ["--", "sh", "-c", script, "sh", path];
        let first = [&["run", name], options, limit(options), &command(script)].concat();
        let first = Program::start(url, &first);
        eventually(WAIT_LIMIT, || log.exists());
        let script = "for n in 1 2 3 4 5; do echo next >>\"$1\"; sleep 0.02; done";
        let next = [&["run", name][..], &command(script)].concat();
        Self {
            first,
            next: Program::start(&server.url(), &next),
            log: log.into(),
        }
    }

    /// Waits until both have ended, and checks that no line of the first command follows one of the
    /// next command. Returns the exit code of the first.
    #[track_caller]
    fn end(mut self) -> Option<i32> {
        assert_eq!(self.next.code(), Some(0), "{}", self.next.errors());
        let code = self.first.code();
        let log = fs::read_to_string(&self.log).unwrap();
        let (before, after) = log.split_once("next").unwrap();
        assert!(before.contains("first"), "{log}");
        let late = after.matches("first").count();
        assert_eq!(late, 0, "lines after the next command's start: {log}");
        code
    }
}

fn command_ended_by_max_hold_is_dead_before_the_next_one_starts() {
    let server = Server::start();
    let directory = TempDir::create();
    // The start of the command counts for --max-hold.
    let options = [
        "--ttl",
        "600ms",
        "--max-hold",
        "600ms",
        "--kill-after",
        "900ms",
    ];
    let options = options.as_slice();
    let start = |(name, script)| {
        let log = directory.join(name);
        Handover::start((&server, &server.url()), (name, &log), options, script)
    };
    let handovers = ["a", "b", "c"].into_iter().zip(STUBBORN).map(start);
    for handover in handovers.collect::<Vec<_>>() {
        assert_eq!(handover.end(), Some(124));
    }
}

/// The ttl less its margin is 1,348 ms, and renewals are 500 ms apart.
const END_BEFORE: [&str; 4] = ["--ttl", "1500ms", "--end-before", "800ms"];

fn command_ended_by_end_before_is_dead_before_the_next_one_starts() {
    let directory = TempDir::create();
    let (server, hung) = (Server::start(), Server::start());
    let (stalled, cut) = (Proxy::new(&server), Proxy::new(&server));
    let start = |server: &Server, url: String, name: &str, script: &str| {
        let log = directory.join(name);
        Handover::start((server, &url), (name, &log), &END_BEFORE, script)
    };
    let mut handovers = Vec::new();
    for (script, names) in STUBBORN.into_iter().zip(["abc", "def", "ghi"]) {
        let urls = [
            (&server, stalled.url()),
            (&server, cut.url()),
            (&hung, hung.url()),
        ];
        for (n, (server, url)) in urls.into_iter().enumerate() {
            handovers.push(start(server, url, &names[n..=n], script));
        }
    }
    stalled.set_all(Traffic::Stall);
    cut.set_all(Traffic::Cut);
    hung.pause();
    // Until the keys have expired.
    let_pass(ms(1_600));
    hung.resume();
    for handover in handovers {
        assert_eq!(handover.end(), Some(79));
    }
}

fn command_ended_by_end_before_ends_although_redis_is_back() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let script = "trap 'echo term' TERM; echo ready; while :; do sleep 0.02; done";
    let options = [&END_BEFORE[..], &["--kill-after", "60s"]].concat();
    let mut program = Program::run(&proxy.url(), &options, script);
    assert_eq!(program.next_line(), "ready");
    proxy.set_all(Traffic::Stall);
    assert_eq!(program.next_line(), "term");
    proxy.set_all(Traffic::Pass);
    eventually(WAIT_LIMIT, || program.process.try_wait().unwrap().is_some());
    assert_eq!(program.code(), Some(79));
    let errors = program.errors();
    assert!(
        errors.contains("less than --end-before is left"),
        "{errors}"
    );
    assert!(!errors.contains("expired"), "{errors}");
    assert!(server.is_free("a"));
}

/// The program itself was stopped for longer than the lease.
fn command_ended_by_end_before_is_killed_at_once_if_its_time_is_over() {
    let server = Server::start();
    let options = [
        "--ttl",
        "600ms",
        "--end-before",
        "100ms",
        "--kill-after",
        "60s",
    ];
    let script = "trap '' TERM; echo ready; while :; do sleep 0.02; done";
    let mut program = Program::run(&server.url(), &options, script);
    assert_eq!(program.next_line(), "ready");
    program.send(Signal::STOP);
    eventually(WAIT_LIMIT, || server.is_free("a"));
    program.send(Signal::CONT);
    eventually(WAIT_LIMIT, || program.process.try_wait().unwrap().is_some());
    assert_eq!(program.code(), Some(79));
}

/// The lease of a grant by the queue ends after 3 s unless it is renewed.
fn command_that_waited_in_the_queue_is_not_ended_at_once() {
    let server = Server::start();
    let guard = client(&server).mutex("a").lock().unwrap();
    let options = ["--ttl", "20s", "--end-before", "8s"];
    let mut program = Program::run(&server.url(), &options, "sleep 0.2; exit 3");
    eventually(WAIT_LIMIT, || {
        client(&server).mutex("a").waiting().unwrap() == 1
    });
    drop(guard);
    assert_eq!(program.code(), Some(3), "{}", program.errors());
}

/// The lease of a grant by the queue is renewed before the command starts.
#[cfg(target_os = "linux")]
fn signal_during_the_first_renewal_ends_the_program() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let guard = client(&server).mutex("a").lock().unwrap();
    let options = ["--ttl", "20s", "--end-before", "8s"];
    let mut program = Program::run(&proxy.url(), &options, "echo started");
    server.wait_until_waiter_sleeps("lock_release:a");
    proxy.set_all(Traffic::StallRequests);
    drop(guard);
    // The supervisor starts after the grant.
    super::supervisor_of(program.id());
    program.send(Signal::TERM);
    assert_eq!(program.code(), Some(143), "{}", program.errors());
    let mut output = String::new();
    program.lines.read_to_string(&mut output).unwrap();
    assert_eq!(output, "");
}

#[cfg(target_os = "linux")]
fn lock_is_renewed_until_the_command_of_a_killed_supervisor_has_ended() {
    let server = Server::start();
    let directory = TempDir::create();
    let log = directory.join("a");
    let options = ["--ttl", "600ms", "--kill-after", "900ms"];
    let handover = Handover::start((&server, &server.url()), ("a", &log), &options, STUBBORN[0]);
    let supervisor = super::supervisor_of(handover.first.id());
    kill_process(supervisor, Signal::KILL).unwrap();
    assert_eq!(handover.end(), Some(71));
}

fn end_before_must_leave_room_for_a_renewal() {
    let server = Server::start();
    let url = server.url();
    let run = |ttl: &str, time: &str| {
        code(
            &url,
            &["run", "a", "--ttl", ttl, "--end-before", time, "true"],
        )
    };
    // A lease of 10 s is certain for 8,998 ms, and renewed after 3,333 ms.
    assert_eq!(run("10s", "5660ms"), 0);
    for time in ["5670ms", "9s", "20s", "0s"] {
        assert_eq!(run("10s", time), 64, "{time}");
    }
    let of_environment = |ttl: &str| {
        let mut command = program(&url);
        command.args(["run", "a", "--end-before", "9s", "true"]);
        let output = command.env("LOCK_TTL_MS", ttl).output().unwrap();
        output.status.code()
    };
    assert_eq!(of_environment("30000"), Some(0));
    assert_eq!(of_environment("10000"), Some(64));
}
