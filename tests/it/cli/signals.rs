//! Promise: signals end the wait, and reach the whole group of the command.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use support::{Proxy, Server, Traffic, eventually, let_pass, ms};

use super::ends::full_pipe;
use super::{PROGRAM, Program, WAIT_LIMIT, client, hold, program, state_of, wait_until_ended};

support::tests![
    signal_leaves_no_place_in_the_queue,
    many_signals_delay_neither_the_next_one_nor_the_end,
    signal_ends_the_wait_and_the_release_beside_a_hung_server,
    signal_ends_a_query_beside_a_hung_server,
    signal_ends_the_wait_while_standard_error_is_blocked,
    signal_ends_the_wait,
    signal_is_forwarded_to_the_whole_group,
    ignored_signal_stays_ignored,
    #[cfg(target_os = "linux")]
    command_is_suspended_with_the_program,
    #[cfg(target_os = "linux")]
    stop_that_was_continued_stops_no_program,
    #[cfg(target_os = "linux")]
    stops_at_the_start_of_the_command_need_one_continue,
    #[cfg(target_os = "linux")]
    stop_of_a_foreground_command_can_be_taken_back,
    #[cfg(target_os = "linux")]
    program_that_ignores_tstp_stops_with_its_foreground_command
];

support::timed![
    second_signal_ends_the_program_at_once,
    #[cfg(target_os = "linux")]
    signal_to_all_processes_reaches_the_command_once
];

/// Returns whether this process, and so every child, ignores the signal.
///
/// A script that starts the tests with `&` ignores INT and QUIT.
fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or(0) >> (signal.as_raw() - 1) & 1 == 1
}

fn signal_ends_the_wait() {
    let server = Server::start();
    let guard = hold(&server);
    let mut signals = vec![Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];
    signals.retain(|signal| !is_ignored(*signal));
    let start = |_| Program::run(&server.url(), &[], "echo ran");
    let mut waiting: Vec<_> = signals.iter().map(start).collect();
    let all = signals.len() as u64;
    eventually(WAIT_LIMIT, || {
        client(&server).mutex("a").waiting().unwrap() == all
    });
    for (program, signal) in waiting.iter_mut().zip(signals) {
        program.send(signal);
        assert_eq!(program.code(), Some(128 + signal.as_raw()));
        assert_eq!(program.lines.by_ref().lines().count(), 0);
    }
    drop(guard);
    eventually(WAIT_LIMIT, || server.is_free("a"));
}

/// A child that waits for a grandchild, which prints the signal it gets.
const LISTENER: &str = r#"
trap : HUP INT QUIT TERM USR1 USR2
sh -c '
    for signal in HUP INT QUIT TERM USR1 USR2; do trap "echo $signal; exit 5" $signal; done
    echo ready
    while :; do sleep 0.02; done
'
exit $?"#;

fn signal_is_forwarded_to_the_whole_group() {
    let server = Server::start();
    for (signal, name) in [
        (Signal::INT, "INT"),
        (Signal::TERM, "TERM"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
    ] {
        if is_ignored(signal) {
            continue;
        }
        let mut program = Program::run(&server.url(), &[], LISTENER);
        assert_eq!(program.next_line(), "ready");
        program.send(signal);
        assert_eq!(program.next_line(), name);
        assert_eq!(program.code(), Some(5), "{name}");
        assert!(server.is_free("a"));
    }
}

/// systemd sends the signal to all processes of a service.
#[cfg(target_os = "linux")]
fn signal_to_all_processes_reaches_the_command_once() {
    let server = Server::start();
    // A signal interrupts `wait`, so the shell handles it at once.
    let script = "sleep 300 & trap 'echo TERM' TERM; trap 'echo USR2' USR2
        trap 'kill $!; exit 7' USR1; echo $$; while :; do wait; done";
    for options in [&[][..], &["--foreground"]] {
        let mut program = Program::run(&server.url(), options, script);
        let command = program.pid();
        let supervisor = super::supervisor_of(program.id());
        // The program forwards signals one after another.
        let expect_one = |program: &mut Program| {
            assert_eq!(program.next_line(), "TERM", "{options:?}");
            program.send(Signal::USR2);
            assert_eq!(program.next_line(), "USR2", "{options:?}");
        };
        for process in [command, supervisor, program.id()] {
            kill_process(process, Signal::TERM).unwrap();
        }
        expect_one(&mut program);
        // One that the supervisor alone has received earlier does not count.
        kill_process(supervisor, Signal::TERM).unwrap();
        let_pass(ms(300));
        program.send(Signal::TERM);
        // A repeat counts as one signal.
        let_pass(ms(20));
        program.send(Signal::TERM);
        expect_one(&mut program);
        program.send(Signal::USR1);
        assert_eq!(program.code(), Some(7), "{options:?}");
    }
}

/// The program waits for 50 ms before it forwards a signal. The waits must not add up.
fn many_signals_delay_neither_the_next_one_nor_the_end() {
    let server = Server::start();
    for options in [&[][..], &["--foreground"]] {
        let script = "trap 'echo TERM; exit 3' TERM; trap '' USR1; echo ready
            while :; do sleep 0.02; done";
        let mut program = Program::run(&server.url(), options, script);
        assert_eq!(program.next_line(), "ready");
        for _ in 0..100 {
            program.send(Signal::USR1);
            // Until a signal is handled, the kernel counts its repeats as one.
            let_pass(ms(2));
        }
        let (took, code) = end_after(&mut program, Signal::TERM);
        assert!(took < ms(1_500), "{options:?}: {took:?}");
        assert_eq!(code, Some(3));
        assert_eq!(program.next_line(), "TERM");
    }
}

fn ignored_signal_stays_ignored() {
    let server = Server::start();
    let script = "trap 'echo on; exit 6' USR1; echo ready; while :; do sleep 0.02; done";
    let mut command = Command::new("sh");
    let ignoring = r#"trap '' HUP; exec "$0" run a -- sh -c "$1""#;
    command.args(["-c", ignoring, PROGRAM, script]);
    command
        .env("REDIS_URL", server.url())
        .stderr(Stdio::piped());
    let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap());
    let mut program = Program { process, lines };
    assert_eq!(program.next_line(), "ready");
    program.send(Signal::HUP);
    // If HUP were forwarded, it would arrive before USR1.
    program.send(Signal::USR1);
    assert_eq!(program.next_line(), "on");
    assert_eq!(program.code(), Some(6));
}

/// Starts the program as a shell with job control does: in a process group of its own, which
/// another one of the session can continue. Its command prints its process id, and sleeps.
#[cfg(target_os = "linux")]
fn run_as_job(server: &Server, options: &[&str]) -> Program {
    use std::os::unix::process::CommandExt;

    let mut command = program(&server.url());
    command
        .args(["run", "a", "--max-hold", "60s"])
        .args(options);
    command.args(["--", "sh", "-c", "echo $$; exec sleep 300"]);
    Program::of(command.process_group(0).spawn().unwrap())
}

#[cfg(target_os = "linux")]
fn command_is_suspended_with_the_program() {
    let server = Server::start();
    let mut program = run_as_job(&server, &["--ttl", "60s"]);
    let pid = program.pid();
    let ours = program.id();
    program.send(Signal::TSTP);
    eventually(WAIT_LIMIT, || {
        state_of(pid) == Some('T') && state_of(ours) == Some('T')
    });
    program.send(Signal::CONT);
    eventually(WAIT_LIMIT, || state_of(pid) != Some('T'));
    program.send(Signal::TERM);
    assert_eq!(program.code(), Some(143));
}

/// Sends TSTP and, `n` times 50 µs later, CONT.
#[cfg(target_os = "linux")]
fn stop_and_continue(program: &Program, n: u32) {
    program.send(Signal::TSTP);
    let sent = Instant::now();
    while sent.elapsed() < ms(1) / 20 * n {}
    program.send(Signal::CONT);
}

/// Returns the exit code after TERM. Fails if the program is stopped.
#[cfg(target_os = "linux")]
fn ended_by_term(program: &mut Program) -> Option<i32> {
    program.send(Signal::TERM);
    eventually(WAIT_LIMIT, || program.process.try_wait().unwrap().is_some());
    program.code()
}

/// As a program that does not catch TSTP, and as the leader of a session, too.
#[cfg(target_os = "linux")]
fn stop_that_was_continued_stops_no_program() {
    let server = Server::start();
    let _guard = hold(&server);
    let start = |as_leader: bool| {
        let mut command = if as_leader {
            Command::new("setsid")
        } else {
            Command::new("env")
        };
        // The session of an aborted test does not end its own.
        command.args([PROGRAM, "run", "a", "--wait", "60s", "--", "true"]);
        command.env("REDIS_URL", server.url()).stdin(Stdio::null());
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Program::of(command.spawn().unwrap())
    };
    let mut programs: Vec<_> = (0..20).map(|n| start(n % 2 == 0)).collect();
    eventually(WAIT_LIMIT, || {
        client(&server).mutex("a").waiting().unwrap() == 20
    });
    for (n, program) in (0..).zip(&programs) {
        for more in 0..3 {
            stop_and_continue(program, (n + more * 7) % 20);
        }
    }
    for program in &mut programs {
        assert_eq!(ended_by_term(program), Some(143));
    }
}

#[cfg(target_os = "linux")]
fn stops_at_the_start_of_the_command_need_one_continue() {
    let server = Server::start();
    for options in [&[][..], &["--foreground"]] {
        let script = "trap 'exit 3' TERM; echo ready; while :; do sleep 0.02; done";
        let mut program = Program::run(&server.url(), options, script);
        let id = program.id();
        // From here on, the program catches signals.
        eventually(WAIT_LIMIT, || !super::children_of(id).is_empty());
        for n in 0..50 {
            stop_and_continue(&program, n % 5);
        }
        assert_eq!(program.next_line(), "ready");
        for n in 0..50 {
            stop_and_continue(&program, n % 5);
        }
        assert_eq!(ended_by_term(&mut program), Some(3), "{options:?}");
    }
}

/// Without a terminal, the program forwards the stop, and stops after its command.
#[cfg(target_os = "linux")]
fn stop_of_a_foreground_command_can_be_taken_back() {
    let server = Server::start();
    let mut program = run_as_job(&server, &["--foreground", "--ttl", "60s"]);
    let command = program.pid();
    let ours = program.id();
    for n in 0..20 {
        stop_and_continue(&program, n);
    }
    let is_running = || state_of(ours) != Some('T') && state_of(command) != Some('T');
    eventually(WAIT_LIMIT, is_running);
    program.send(Signal::TSTP);
    eventually(WAIT_LIMIT, || {
        state_of(ours) == Some('T') && state_of(command) == Some('T')
    });
    program.send(Signal::CONT);
    eventually(WAIT_LIMIT, is_running);
    assert_eq!(ended_by_term(&mut program), Some(143));
}

/// As after `nohup` for HUP. Another signal, such as TTIN, can stop the command.
#[cfg(target_os = "linux")]
fn program_that_ignores_tstp_stops_with_its_foreground_command() {
    use std::os::unix::process::CommandExt;

    let server = Server::start();
    let run = "trap '' TSTP; exec \"$0\" run a --foreground --ttl 60s --max-hold 60s -- \
               sh -c 'echo $$; exec sleep 300'";
    let mut command = Command::new("sh");
    command.args(["-c", run, PROGRAM]);
    command.env("REDIS_URL", server.url()).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut program = Program::of(command.process_group(0).spawn().unwrap());
    let command = program.pid();
    let ours = program.id();
    kill_process(command, Signal::TTIN).unwrap();
    eventually(WAIT_LIMIT, || {
        state_of(ours) == Some('T') && state_of(command) == Some('T')
    });
    program.send(Signal::CONT);
    eventually(WAIT_LIMIT, || {
        state_of(ours) != Some('T') && state_of(command) != Some('T')
    });
    assert_eq!(ended_by_term(&mut program), Some(143));
}

/// Returns how long the program took to end after a signal, and its exit code.
fn end_after(program: &mut Program, signal: Signal) -> (Duration, Option<i32>) {
    let sent = Instant::now();
    program.send(signal);
    let code = program.code();
    (sent.elapsed(), code)
}

/// The timeouts with which a call to a hung server takes much longer than a signal may take.
const PATIENT: [&str; 4] = ["--command-timeout", "8s", "--connect-timeout", "8s"];

fn signal_ends_the_wait_and_the_release_beside_a_hung_server() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let guard = hold(&server);
    let mut waits = Program::run(&proxy.url(), &PATIENT, "true");
    eventually(WAIT_LIMIT, || {
        client(&server).mutex("a").waiting().unwrap() == 1
    });
    proxy.set_all(Traffic::Stall);
    let (took, code) = end_after(&mut waits, Signal::TERM);
    assert!(took < ms(1_500), "{took:?}");
    assert_eq!(code, Some(143));
    // A new client, which has no connection yet.
    let mut waits = Program::run(&proxy.url(), &PATIENT, "true");
    let connections = proxy.connections();
    eventually(WAIT_LIMIT, || proxy.connections() > connections);
    let (took, code) = end_after(&mut waits, Signal::TERM);
    assert!(took < ms(1_500), "{took:?}");
    assert_eq!(code, Some(143));
    drop(guard);

    proxy.set_all(Traffic::Pass);
    // The server hangs from the end of the command on, or while it runs.
    for signals_the_command in [false, true] {
        let script = "trap 'exit 3' USR1 TERM; echo $$; while :; do sleep 0.02; done";
        let options = [&PATIENT[..], &["--ttl", "60s", "--kill-after", "100ms"]].concat();
        let mut program = Program::run(&proxy.url(), &options, script);
        let command = program.pid();
        proxy.set_all(Traffic::Stall);
        if !signals_the_command {
            program.send(Signal::USR1);
            wait_until_ended(&[command]);
        }
        let (took, code) = end_after(&mut program, Signal::TERM);
        assert!(took < ms(1_500), "{took:?}");
        assert_eq!(code, Some(3));
        let said = program.errors();
        assert!(said.contains("the lock is free after the ttl"), "{said}");
        proxy.cut();
        proxy.set_all(Traffic::Pass);
        client(&server).mutex("a").force_unlock().unwrap();
    }
}

fn second_signal_ends_the_program_at_once() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let _guard = hold(&server);
    let mut waits = Program::run(&proxy.url(), &PATIENT, "true");
    eventually(WAIT_LIMIT, || {
        client(&server).mutex("a").waiting().unwrap() == 1
    });
    proxy.set_all(Traffic::Stall);
    let first = Instant::now();
    waits.send(Signal::TERM);
    // Repeats in the first 250 ms count as one signal with the first.
    let_pass(ms(300));
    waits.send(Signal::TERM);
    assert_eq!(waits.code(), Some(143));
    let took = first.elapsed();
    assert!(took < ms(800), "{took:?}");
}

fn signal_ends_a_query_beside_a_hung_server() {
    let server = Server::start();
    let _guard = hold(&server);
    for args in [
        &["list"][..],
        &["status", "a"],
        &["unlock", "a", "--force"],
        &["top", "--json"],
    ] {
        let proxy = Proxy::new(&server);
        proxy.set_all(Traffic::Stall);
        let mut program = Program::start(&proxy.url(), &[args, &PATIENT].concat());
        eventually(WAIT_LIMIT, || proxy.connections() > 0);
        let (took, _) = end_after(&mut program, Signal::TERM);
        assert!(took < ms(1_000), "{args:?}: {took:?}");
    }
}

/// The signal arrives while the command that takes the place has no reply yet.
fn signal_leaves_no_place_in_the_queue() {
    let server = Server::start();
    let _guard = hold(&server);
    for options in [&[][..], &["--fair"], &["--write"]] {
        let proxy = Proxy::new(&server);
        proxy.delay(ms(0), ms(150));
        let mut waits = Program::run(&proxy.url(), options, "true");
        let queue = client(&server).fair_mutex("a");
        eventually(WAIT_LIMIT, || queue.waiting().unwrap() == 1);
        waits.send(Signal::TERM);
        assert_eq!(waits.code(), Some(143));
        // The place of a process that died without leaving counts for 6 s.
        eventually(ms(2_000), || queue.waiting().unwrap() == 0);
    }
}

fn signal_ends_the_wait_while_standard_error_is_blocked() {
    let server = Server::start();
    let _guard = hold(&server);
    let (_reader, writer) = full_pipe();
    let mut command = program(&server.url());
    command
        .args(["run", "a", "-v", "--", "true"])
        .stderr(writer);
    let mut program = Program::of(command.spawn().unwrap());
    eventually(WAIT_LIMIT, || {
        client(&server).mutex("a").waiting().unwrap() == 1
    });
    let (took, code) = end_after(&mut program, Signal::TERM);
    assert!(took < ms(1_000), "{took:?}");
    assert_eq!(code, Some(143));
}
