//! Promise: `--min-hold` keeps the lock taken after a short command.

use std::io::{BufRead, BufReader, Read};
use std::time::Instant;

use rustix::process::Signal;
use support::{Proxy, Server, Traffic, eventually, ms};

use super::{Program, WAIT_LIMIT, client, code};

support::tests![
    min_hold_runs_the_command_once_for_three_concurrent_starts,
    min_hold_outlasts_a_signal_and_starts_at_the_grant,
    min_hold_is_waited_for_while_redis_is_unreachable,
    lock_that_another_program_took_during_min_hold_is_lost,
    min_hold_that_redis_does_not_confirm_is_no_loss
];

fn min_hold_runs_the_command_once_for_three_concurrent_starts() {
    let server = Server::start();
    let options = ["--no-wait", "--min-hold", "3s"];
    let began = Instant::now();
    let mut runs = [(); 3].map(|()| Program::run(&server.url(), &options, "echo ran; exit 7"));
    let mut codes = runs.each_mut().map(Program::code);
    // The run that executed the command did not wait for the end of `--min-hold`.
    assert!(began.elapsed() < ms(3_000), "{:?}", began.elapsed());
    codes.sort();
    assert_eq!(codes, [Some(7), Some(75), Some(75)]);
    let lines = runs
        .iter_mut()
        .map(|run| run.lines.by_ref().lines().count());
    assert_eq!(lines.sum::<usize>(), 1);
    // A fourth run with a late clock would still find the lock held.
    assert!(!server.is_free("a"));
    eventually(WAIT_LIMIT, || server.is_free("a"));
    assert!(began.elapsed() >= ms(3_000), "{:?}", began.elapsed());
}

fn min_hold_outlasts_a_signal_and_starts_at_the_grant() {
    let server = Server::start();
    let mut program = Program::run(
        &server.url(),
        &["--min-hold", "60s"],
        "echo ready; exec sleep 300",
    );
    assert_eq!(program.next_line(), "ready");
    program.send(Signal::TERM);
    assert_eq!(program.code(), Some(143));
    let holder = client(&server)
        .mutex("a")
        .inspect()
        .unwrap()
        .expect("the lock is still held");
    let left = holder.remaining().unwrap();
    assert!(left > ms(30_000) && left <= ms(60_000), "{left:?}");
    assert!(client(&server).mutex("a").force_unlock().unwrap());

    // A minimum that has passed when the command ends has no effect.
    let args = ["run", "a", "--min-hold", "100ms", "--", "sleep", "0.3"];
    assert_eq!(code(&server.url(), &args), 0);
    assert!(server.is_free("a"));
}

fn min_hold_is_waited_for_while_redis_is_unreachable() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let script = "echo ready; sleep 0.3";
    let mut program = Program::run(&proxy.url(), &["--ttl", "60s", "--min-hold", "50s"], script);
    assert_eq!(program.next_line(), "ready");
    proxy.set_all(Traffic::Stall);
    // The program retries until it is terminated.
    let mut output = String::new();
    let mut errors = BufReader::new(program.process.stderr.take().unwrap());
    errors.read_line(&mut output).unwrap();
    assert!(output.contains("--min-hold"), "{output}");
    program.send(Signal::TERM);
    assert_eq!(program.code(), Some(0));
    errors.read_to_string(&mut output).unwrap();
    assert!(output.contains("after the ttl or --min-hold"), "{output}");
}

/// Starts a run, stalls the traffic, and then lets the command exit with 3. So the requests that
/// set the ttl to the rest of `min_hold` get no reply.
fn run_without_replies_at_the_end(proxy: &Proxy, min_hold: &str) -> Program {
    let options = [
        "--ttl",
        "60s",
        "--min-hold",
        min_hold,
        "--command-timeout",
        "200ms",
    ];
    let script = "trap 'exit 3' USR1; echo ready; while :; do sleep 0.02; done";
    let mut program = Program::run(&proxy.url(), &options, script);
    assert_eq!(program.next_line(), "ready");
    proxy.set_all(Traffic::Stall);
    program.send(Signal::USR1);
    program
}

/// The first request for the shorter ttl gets no reply. Before the next one, another program takes
/// the lock.
fn lock_that_another_program_took_during_min_hold_is_lost() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let mut program = run_without_replies_at_the_end(&proxy, "50s");
    let errors = program.process.stderr.as_mut().unwrap();
    let mut errors = BufReader::new(errors).lines();
    assert!(errors.any(|line| line.unwrap().contains("until --min-hold is over")));
    server.run("SET", &["lock:a", "other"]);
    proxy.set_all(Traffic::Pass);
    assert_eq!(program.code(), Some(79));
}

/// If Redis does not confirm the shorter ttl, the lease ends by the local clock. The command has
/// ended before that, so the lock was not lost.
fn min_hold_that_redis_does_not_confirm_is_no_loss() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let mut program = run_without_replies_at_the_end(&proxy, "2s");
    let code = program.code();
    let errors = program.errors();
    assert_eq!(code, Some(3), "{errors}");
    assert!(!errors.contains("lost"), "{errors}");
}
