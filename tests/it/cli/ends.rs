//! Promise: however the program or the lock ends, no process of the command outlives it.

#[cfg(target_os = "linux")]
use std::fs;
use std::io::{BufReader, ErrorKind, PipeReader, PipeWriter, Write};
use std::process::Stdio;
use std::time::Instant;

use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, Signal};
use support::{Proxy, Server, Traffic, eventually, ms};

use super::{Program, WAIT_LIMIT, delete, is_alive, program, wait_until_ended};

support::tests![
    lost_lock_kills_a_command_that_ignores_term,
    leftover_processes_end_before_the_release,
    lost_lock_terminates_the_command,
    lost_lock_kills_the_command_while_standard_error_is_blocked,
    lease_that_expires_without_redis_ends_the_command,
    max_hold_ends_the_command,
    killing_the_program_ends_the_whole_group,
    command_dies_when_the_programs_group_is_killed,
    #[cfg(target_os = "linux")]
    command_that_leaves_the_group_is_ended,
    #[cfg(target_os = "linux")]
    killing_the_program_never_leaves_an_orphan
];

/// Two processes that TERM does not end; both print their process ids. The first prints `term` for
/// each TERM.
const STUBBORN: &str = r#"
trap 'echo term' TERM
trap '' HUP USR1
sh -c 'trap "" TERM; echo $$; while :; do sleep 0.02; done' &
echo $$
while :; do sleep 0.02; done"#;

fn lost_lock_terminates_the_command() {
    let server = Server::start();
    let options = ["--ttl", "600ms", "--kill-after", "60s"];
    // The exit code reports the loss although the command exits with 0 on TERM.
    let mut polite = Program::run(
        &server.url(),
        &options,
        "trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done",
    );
    assert_eq!(polite.next_line(), "ready");
    delete(&server);
    assert_eq!(polite.code(), Some(79));
    assert!(polite.errors().contains("no longer exists in Redis"));
}

/// Returns a pipe that has no room for another byte.
pub(super) fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    ioctl_fionbio(&writer, true).unwrap();
    while let Ok(_written) = writer.write(&[b'\n'; 4096]) {}
    let error = writer.write(b"\n").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    ioctl_fionbio(&writer, false).unwrap();
    (reader, writer)
}

fn lost_lock_kills_the_command_while_standard_error_is_blocked() {
    let server = Server::start();
    // The shell itself prints to its standard error which of its processes were killed.
    let script = format!("exec 2>/dev/null\n{STUBBORN}");
    // With `-v`, the threads that renew the lease print as well.
    for verbosity in ["-q", "-v"] {
        let (_reader, writer) = full_pipe();
        let mut command = program(&server.url());
        command.args(["run", "a", verbosity, "--ttl", "600ms", "--max-hold", "60s"]);
        command.args(["--kill-after", "300ms", "--", "sh", "-c", &script]);
        let mut process = command.stderr(writer).spawn().unwrap();
        drop(command);
        let lines = BufReader::new(process.stdout.take().unwrap());
        let mut program = Program { process, lines };
        let pids = [program.pid(), program.pid()];
        delete(&server);
        assert_eq!(program.code(), Some(79), "{verbosity}");
        assert_eq!(pids.map(is_alive), [false, false]);
    }
}

fn lost_lock_kills_a_command_that_ignores_term() {
    let server = Server::start();
    let options = ["--ttl", "600ms", "--kill-after", "300ms"];
    let mut program = Program::run(&server.url(), &options, STUBBORN);
    let pids = [program.pid(), program.pid()];
    delete(&server);
    assert_eq!(program.next_line(), "term");
    let terminated = Instant::now();
    assert_eq!(program.code(), Some(79));
    // 100 ms less than --kill-after: the test reads `term` some time after the TERM.
    assert!(
        terminated.elapsed() >= ms(200),
        "{:?}",
        terminated.elapsed()
    );
    assert_eq!(pids.map(is_alive), [false, false]);
}

fn lease_that_expires_without_redis_ends_the_command() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let mut program = Program::run(&proxy.url(), &["--ttl", "900ms"], "echo $$; exec sleep 300");
    let pid = program.pid();
    proxy.set_all(Traffic::Stall);
    assert_eq!(program.code(), Some(79));
    assert!(!is_alive(pid));
    assert!(program.errors().contains("expired"));
}

fn max_hold_ends_the_command() {
    let server = Server::start();
    let mut program = Program::run(
        &server.url(),
        &["--max-hold", "300ms"],
        "echo $$; exec sleep 300",
    );
    let pid = program.pid();
    assert_eq!(program.code(), Some(124));
    assert!(!is_alive(pid));
}

fn killing_the_program_ends_the_whole_group() {
    let server = Server::start();
    let mut program = Program::run(&server.url(), &["--ttl", "500ms"], STUBBORN);
    let pids = [program.pid(), program.pid()];
    // The program forwards these to the group. They must not end the supervisor, which leads it.
    for signal in [Signal::HUP, Signal::USR1, Signal::TERM] {
        program.send(signal);
    }
    assert_eq!(program.next_line(), "term");
    assert!(pids.into_iter().all(is_alive));
    program.send(Signal::KILL);
    wait_until_ended(&pids);
    eventually(WAIT_LIMIT, || server.is_free("a"));
}

fn command_dies_when_the_programs_group_is_killed() {
    use std::os::unix::process::CommandExt;

    let server = Server::start();
    let mut command = program(&server.url());
    command
        .args(["run", "a", "--", "sh", "-c", STUBBORN])
        .process_group(0);
    let mut process = command.spawn().unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap());
    let mut program = Program { process, lines };
    let pids = [program.pid(), program.pid()];
    rustix::process::kill_process_group(Pid::from_child(&program.process), Signal::KILL).unwrap();
    wait_until_ended(&pids);
}

/// `setsid` moves itself into a new process group, and becomes the command there.
#[cfg(target_os = "linux")]
fn command_that_leaves_the_group_is_ended() {
    let server = Server::start();
    let start = |name: &str, max_hold: &str, script: &str| {
        let options = ["run", name, "--max-hold", max_hold, "--kill-after", "60s"];
        let command = ["--", "setsid", "sh", "-c", script];
        let mut program = Program::start(&server.url(), &[&options[..], &command].concat());
        let pids = [program.pid(), program.pid()];
        (program, pids)
    };
    let polite = "sleep 300 & echo $!; echo $$; exec sleep 300";
    let (mut program, pids) = start("a", "300ms", polite);
    assert_eq!(program.code(), Some(124));
    wait_until_ended(&pids);

    let (mut program, pids) = start("b", "60s", polite);
    program.send(Signal::TERM);
    assert_eq!(program.code(), Some(143));
    wait_until_ended(&pids);

    let (mut program, pids) = start("c", "60s", STUBBORN);
    // The program forwards signals once its supervisor knows the command. Until then, the
    // supervisor would kill only the processes of its own group.
    program.send(Signal::TERM);
    assert_eq!(program.next_line(), "term");
    assert!(pids.into_iter().all(is_alive));
    program.send(Signal::KILL);
    wait_until_ended(&pids);
}

/// Returns the running processes whose environment contains this name of a lock.
#[cfg(target_os = "linux")]
fn processes_with_name(name: &str) -> Vec<Pid> {
    let wanted = format!("LEASEHOLD_NAME={name}");
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| {
        let environment = fs::read(entry.path().join("environ")).ok()?;
        let mut variables = environment.split(|byte| *byte == 0);
        let pid = entry
            .file_name()
            .to_str()?
            .parse()
            .ok()
            .and_then(Pid::from_raw)?;
        variables
            .any(|variable| variable == wanted.as_bytes())
            .then_some(pid)
    });
    pids.filter(|pid| is_alive(*pid)).collect()
}

#[cfg(target_os = "linux")]
fn killing_the_program_never_leaves_an_orphan() {
    let server = Server::start();
    for n in 0..30_u64 {
        let name = format!("orphan-{}-{n}", std::process::id());
        let args = ["run", &name, "--", "sh", "-c", "sleep 300 & sleep 300"];
        let mut process = program(&server.url()).args(args).spawn().unwrap();
        // Even rounds kill the program n ms after its start, odd ones n ms after its command's, so
        // the rounds hit different steps.
        if n % 2 == 1 {
            eventually(WAIT_LIMIT, || !processes_with_name(&name).is_empty());
        }
        std::thread::sleep(ms(n));
        process.kill().unwrap();
        process.wait().unwrap();
        eventually(WAIT_LIMIT, || processes_with_name(&name).is_empty());
    }
}

fn leftover_processes_end_before_the_release() {
    // This process adopts orphans and does not reap them, like the init process of many containers.
    // The program must not count such zombies as running processes.
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let server = Server::start();
    let mut program = Program::run(&server.url(), &[], "sleep 300 & echo $!; exit 3");
    let pid = program.pid();
    assert_eq!(program.code(), Some(3));
    assert!(!is_alive(pid));
    assert_eq!(program.errors(), "");

    let stubborn =
        "sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.02; done' & read _ <&3; exit 4";
    let script = format!("exec 3<&0; {stubborn}");
    let mut command = super::program(&server.url());
    let args = [
        "run",
        "a",
        "--kill-after",
        "500ms",
        "--",
        "sh",
        "-c",
        &script,
    ];
    let mut process = command.args(args).stdin(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap());
    let mut program = Program { process, lines };
    let pid = program.pid();
    let began = Instant::now();
    program
        .process
        .stdin
        .take()
        .unwrap()
        .write_all(b"end\n")
        .unwrap();
    while is_alive(pid) {
        assert!(!server.is_free("a") || !is_alive(pid), "released too early");
    }
    assert!(began.elapsed() >= ms(400), "{:?}", began.elapsed());
    assert_eq!(program.code(), Some(4));
    assert!(server.is_free("a"));
}
