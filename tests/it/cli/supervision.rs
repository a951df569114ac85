//! Promise: the program looks after its supervisor, and after the processes that it adopts.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use support::{Proxy, Server, Traffic, eventually, ms};

use super::{
    PROGRAM, Program, WAIT_LIMIT, children_of, is_alive, program, state_of, supervisor_of,
    wait_until_ended,
};

support::tests![
    lock_is_released_at_once_if_the_group_leader_is_in_another_namespace,
    signal_ends_process_1_beside_a_hung_server,
    killing_the_supervisor_ends_the_command,
    adopted_processes_are_reaped_while_the_command_runs,
    process_1_reaps_adopted_processes_with_foreground,
    supervisor_outlives_the_command_if_the_group_leader_is_in_another_namespace,
    program_runs_without_proc
];

fn killing_the_supervisor_ends_the_command() {
    let server = Server::start();
    let script = "trap 'echo term' TERM; echo $$; while :; do sleep 0.02; done";
    for options in [&[][..], &["--foreground"]] {
        let options = [options, &["--kill-after", "300ms"]].concat();
        let mut program = Program::run(&server.url(), &options, script);
        let command = program.pid();
        kill_process(supervisor_of(program.id()), Signal::KILL).unwrap();
        assert_eq!(program.next_line(), "term");
        assert!(!server.is_free("a") || !is_alive(command));
        assert_eq!(program.code(), Some(71), "{options:?}");
        wait_until_ended(&[command]);
        let errors = program.errors();
        assert!(
            errors.contains("the supervisor process has ended"),
            "{errors}"
        );
        assert!(server.is_free("a"));
    }
}

/// Leaves a process behind that a real-time signal ends.
const ENDED_BY_A_REAL_TIME_SIGNAL: &str = "
    orphan=$(sh -c 'sleep 300 >/dev/null & echo $!'); kill -40 $orphan; echo $orphan";

/// Starts 20 processes, each of which leaves one behind that ends after it.
const ORPHANS: &str = "
    i=0; while [ $i -lt 20 ]; do sh -c 'sleep 0.1 & echo $!'; i=$((i+1)); done
    echo all; read -r _";

fn adopted_processes_are_reaped_while_the_command_runs() {
    let server = Server::start();
    let mut command = program(&server.url());
    let script = format!("{ENDED_BY_A_REAL_TIME_SIGNAL}{ORPHANS}");
    command.args(["run", "a", "--max-hold", "60s", "--", "sh", "-c", &script]);
    let mut program = Program::of(command.stdin(Stdio::piped()).spawn().unwrap());
    let orphans: Vec<_> = (0..21).map(|_| program.pid()).collect();
    assert_eq!(program.next_line(), "all");
    eventually(WAIT_LIMIT, || {
        orphans.iter().all(|orphan| state_of(*orphan).is_none())
    });
    drop(program.process.stdin.take());
    // `read` fails at the end of the input.
    assert_eq!(program.code(), Some(1));
}

/// Returns a command that runs the command after it in new namespaces; `None` if that is not
/// permitted.
fn unshare(server: &Server, flags: &[&str]) -> Option<Command> {
    for user in [&[][..], &["--user", "--map-root-user"]] {
        let unshare = || {
            let mut command = Command::new("unshare");
            command.args(user).args(flags);
            command
        };
        let probe = unshare().arg("true").status();
        if probe.is_ok_and(|status| status.success()) {
            let mut command = unshare();
            command.env("REDIS_URL", server.url()).stdin(Stdio::null());
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            return Some(command);
        }
    }
    eprintln!("skipped: this machine does not permit `unshare`");
    None
}

/// The kernel ignores signals to process 1 that it does not catch.
fn signal_ends_process_1_beside_a_hung_server() {
    let server = Server::start();
    let patient = ["--command-timeout", "8s", "--connect-timeout", "8s"];
    for args in [&["list"][..], &["status", "a"], &["top", "--json"]] {
        let proxy = Proxy::new(&server);
        proxy.set_all(Traffic::Stall);
        let Some(mut command) = unshare(&server, &AS_PROCESS_1) else {
            return;
        };
        command.env("REDIS_URL", proxy.url());
        let command = command.arg(PROGRAM).args(args).args(patient);
        let mut program = Program::of(command.spawn().unwrap());
        eventually(WAIT_LIMIT, || proxy.connections() > 0);
        let process_1 = children_of(program.id())[0];
        let sent = Instant::now();
        kill_process(process_1, Signal::TERM).unwrap();
        assert_eq!(program.code(), Some(143), "{args:?}");
        assert!(sent.elapsed() < ms(1_000), "{:?}", sent.elapsed());
    }
}

/// The first process in a new PID namespace has the id 1.
const AS_PROCESS_1: [&str; 3] = ["--pid", "--fork", "--kill-child"];

fn process_1_reaps_adopted_processes_with_foreground() {
    let server = Server::start();
    let Some(mut command) = unshare(&server, &AS_PROCESS_1) else {
        return;
    };
    command.args([
        PROGRAM,
        "run",
        "a",
        "--foreground",
        "--max-hold",
        "60s",
        "--",
        "sh",
        "-c",
        ORPHANS,
    ]);
    let mut program = Program::of(command.stdin(Stdio::piped()).spawn().unwrap());
    while program.next_line() != "all" {}
    let process_1 = children_of(program.id())[0];
    // The supervisor and the command are left.
    eventually(WAIT_LIMIT, || children_of(process_1).len() == 2);
    drop(program.process.stdin.take());
    assert_eq!(program.code(), Some(1));
}

fn lock_is_released_at_once_if_the_group_leader_is_in_another_namespace() {
    let server = Server::start();
    let Some(mut command) = unshare(&server, &AS_PROCESS_1) else {
        return;
    };
    command.args([
        PROGRAM,
        "run",
        "a",
        "--kill-after",
        "60s",
        "--",
        "sh",
        "-c",
        "echo ends; exit 3",
    ]);
    let mut program = Program::of(command.spawn().unwrap());
    assert_eq!(program.next_line(), "ends");
    let began = Instant::now();
    assert_eq!(program.code(), Some(3));
    assert!(began.elapsed() < ms(1_000), "{:?}", began.elapsed());
    assert_eq!(program.errors(), "");
    assert!(server.is_free("a"));
}

/// A process that the command leaves behind is still supervised.
fn supervisor_outlives_the_command_if_the_group_leader_is_in_another_namespace() {
    let server = Server::start();
    let Some(mut command) = unshare(&server, &AS_PROCESS_1) else {
        return;
    };
    let script = "sh -c 'trap \"\" TERM; echo ready; exec sleep 300' & read -r _; exit 3";
    command.args([PROGRAM, "run", "a", "--kill-after", "1s", "--", "sh", "-c"]);
    let mut program = Program::of(command.arg(script).stdin(Stdio::piped()).spawn().unwrap());
    assert_eq!(program.next_line(), "ready");
    let supervisor = supervisor_of(children_of(program.id())[0]);
    drop(program.process.stdin.take());
    // It leaves the group, which it leads.
    eventually(WAIT_LIMIT, || {
        group_of(supervisor).is_some_and(|group| group != supervisor)
    });
    assert!(is_alive(supervisor));
    assert_eq!(program.code(), Some(3));
}

fn group_of(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    let group = stat.rsplit(") ").next()?.split(' ').nth(2)?;
    Pid::from_raw(group.parse().unwrap())
}

fn program_runs_without_proc() {
    let server = Server::start();
    let directory = Path::new(PROGRAM).parent().unwrap().display();
    for start in [
        "exec \"$0\"".to_owned(),
        format!("PATH=\"{directory}:$PATH\"; exec leasehold"),
        format!("cd '{directory}'; exec ./leasehold"),
    ] {
        let Some(mut command) = unshare(&server, &["--mount"]) else {
            return;
        };
        let script = format!(
            "mount -t tmpfs none /proc || exit
             {start} run a -- sh -c 'test -e /proc/self || exit 3'"
        );
        command.args(["sh", "-c", &script, PROGRAM]);
        let mut program = Program::of(command.spawn().unwrap());
        assert_eq!(program.code(), Some(3), "{start}: {}", program.errors());
        assert!(server.is_free("a"));
    }
}
