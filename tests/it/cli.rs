//! Promise: the program `leasehold` runs a command only while it holds the lock.
//!
//! However the program ends, no process of the command outlives it. Its output describes the locks.

pub(crate) mod cron;
pub(crate) mod options;
pub(crate) mod terminal;
pub(crate) mod top;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use leasehold::{Client, MutexGuard};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use support::{Proxy, Server, Traffic, eventually, free_port, ms};

support::tests![
    exit_code_is_that_of_the_command,
    usage_outage_and_refusal_have_their_exit_codes,
    wait_that_ends_with_an_open_breaker_exits_69,
    command_gets_token_and_name_in_its_environment,
    signal_ends_the_wait,
    signal_is_forwarded_to_the_whole_group,
    ignored_signal_stays_ignored,
    lost_lock_terminates_the_command,
    lock_expires_without_redis,
    max_hold_ends_the_command,
    killed_program_takes_the_whole_group_with_it,
    command_dies_when_the_programs_group_is_killed,
    #[cfg(target_os = "linux")]
    killing_the_program_never_leaves_an_orphan,
    #[cfg(target_os = "linux")]
    command_is_suspended_with_the_program,
    min_hold_outlasts_a_signal_and_starts_at_the_grant,
    min_hold_is_waited_for_while_redis_is_unreachable,
    status_shows_holders_and_waiters,
    list_shows_held_locks,
    permits_limit_commands_and_are_shown,
    unlock_needs_force,
    completions_and_manual_pages_are_written,
    password_is_never_printed
];

support::roughly_timed![
    held_lock_is_waited_for_only_as_long_as_asked,
    lost_lock_kills_a_command_that_ignores_term,
    leftover_processes_end_before_the_release,
    min_hold_runs_the_command_once_for_three_concurrent_starts
];

const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold");

/// The limit for everything that is immediate on an idle machine.
const SOON: Duration = ms(10_000);

fn program(url: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    for name in [
        "REDIS_HOST",
        "REDIS_PASSWORD",
        "LOCK_TTL_MS",
        "LOCK_KEY_PREFIX",
    ] {
        command.env_remove(name);
    }
    command
        .env("REDIS_URL", url)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// The running program. It is killed at the end of the test.
struct Program {
    process: Child,
    lines: BufReader<ChildStdout>,
}

impl Program {
    fn start(url: &str, args: &[&str]) -> Self {
        let mut process = program(url).args(args).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        Self { process, lines }
    }

    /// Starts `run a` with these options and a shell script.
    fn run(url: &str, options: &[&str], script: &str) -> Self {
        // Limits how long the program outlives an aborted test.
        let limit: &[&str] = match options.contains(&"--max-hold") {
            true => &[],
            false => &["--max-hold", "60s"],
        };
        let args = [&["run", "a"], options, limit, &["--", "sh", "-c", script]].concat();
        Self::start(url, &args)
    }

    #[track_caller]
    fn next_line(&mut self) -> String {
        let mut line = String::new();
        let read = self.lines.read_line(&mut line).unwrap();
        assert!(read > 0, "no further output; errors: {}", self.errors());
        line.trim_end().to_owned()
    }

    fn pid(&mut self) -> Pid {
        Pid::from_raw(self.next_line().parse().unwrap()).unwrap()
    }

    fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    fn code(&mut self) -> Option<i32> {
        self.process.wait().unwrap().code()
    }

    fn errors(&mut self) -> String {
        let mut errors = String::new();
        let pipe = self.process.stderr.as_mut().unwrap();
        pipe.read_to_string(&mut errors).unwrap();
        errors
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn output(url: &str, args: &[&str]) -> Output {
    program(url).args(args).output().unwrap()
}

#[track_caller]
fn code(url: &str, args: &[&str]) -> i32 {
    let output = output(url, args);
    let code = output.status.code();
    code.unwrap_or_else(|| panic!("{args:?}: {output:?}"))
}

#[track_caller]
fn text(url: &str, args: &[&str]) -> String {
    let output = output(url, args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns whether the process is running. A zombie is not: reaping it is its parent's job.
fn is_alive(pid: Pid) -> bool {
    match fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())) {
        Ok(stat) => !stat.rsplit(") ").next().unwrap().starts_with(['Z', 'X']),
        Err(_) => !cfg!(target_os = "linux") && test_kill_process(pid).is_ok(),
    }
}

#[track_caller]
fn wait_until_ended(pids: &[Pid]) {
    eventually(SOON, || !pids.iter().any(|pid| is_alive(*pid)));
}

fn client(server: &Server) -> Client {
    Client::open(&server.url()).unwrap()
}

fn hold(server: &Server) -> MutexGuard {
    client(server).mutex("a").lock().unwrap()
}

fn is_free(server: &Server, name: &str) -> bool {
    client(server).mutex(name).inspect().unwrap().is_none()
}

fn delete(server: &Server) {
    let mut command = redis::cmd("DEL");
    let deleted: u32 = command
        .arg("lock:a")
        .query(&mut server.connection())
        .unwrap();
    assert_eq!(deleted, 1);
}

fn exit_code_is_that_of_the_command() {
    let server = Server::start();
    let url = server.url();
    for (script, expected) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("kill -KILL $$", 137),
        ("kill -TERM $$", 143),
    ] {
        assert_eq!(
            code(&url, &["run", "a", "--", "sh", "-c", script]),
            expected,
            "{script}"
        );
        assert!(is_free(&server, "a"), "{script}");
    }
    for (command, expected) in [
        ("/no/such/program", 127),
        ("no-such-program", 127),
        ("/", 126),
    ] {
        let args = ["run", "a", "--min-hold", "60s", "--", command];
        assert_eq!(code(&url, &args), expected, "{command}");
        assert!(is_free(&server, "a"), "the command did not run: {command}");
    }
}

fn usage_outage_and_refusal_have_their_exit_codes() {
    let server = Server::start();
    let url = server.url();
    for args in [
        &["run", "a"][..],
        &["run", "a", "-x"],
        &["run", "a", "--ttl", "10", "--", "true"],
        &["run", "a", "--ttl", "1ms", "--", "true"],
        &["run", "a", "--wait", "1s", "--no-wait", "--", "true"],
        &[
            "run",
            "a",
            "--min-hold",
            "2s",
            "--max-hold",
            "1s",
            "--",
            "true",
        ],
        &["run", "", "--", "true"],
        &["--url", "http://x", "run", "a", "--", "true"],
        &["status"],
        &[],
    ] {
        assert_eq!(code(&url, args), 64, "{args:?}");
    }
    assert_eq!(code(&url, &["run", "--help"]), 0);
    let refusing = format!("redis://127.0.0.1:{}", free_port());
    for args in [
        &["run", "a", "--no-wait", "--", "true"][..],
        &["status", "a"],
        &["list"],
        &["top"],
        &["unlock", "a", "--force"],
    ] {
        assert_eq!(code(&refusing, args), 69, "{args:?}");
    }
    let mut connection = server.connection();
    let () = redis::cmd("RPUSH")
        .arg("lock:list")
        .arg("x")
        .query(&mut connection)
        .unwrap();
    assert_eq!(code(&url, &["run", "list", "--", "true"]), 77);
}

/// The breaker opens during the wait, after five timeouts of 1 s each.
fn wait_that_ends_with_an_open_breaker_exits_69() {
    let server = Server::start();
    server.pause();
    let args = ["run", "a", "--wait", "5500ms", "--", "true"];
    assert_eq!(code(&server.url(), &args), 69);
}

fn command_gets_token_and_name_in_its_environment() {
    let server = Server::start();
    let script = r#"printf '%s %s' "$LEASEHOLD_FENCING_TOKEN" "$LEASEHOLD_NAME""#;
    let name = OsStr::from_bytes(b"a\xff b");
    let mut command = program(&server.url());
    command.arg("run").arg(name);
    let output = command.args(["--", "sh", "-c", script]).output().unwrap();
    let token = client(&server)
        .mutex(name.as_bytes())
        .last_fencing_token()
        .unwrap();
    let expected = [token.unwrap().to_string().as_bytes(), b" a\xff b"].concat();
    assert_eq!(output.stdout, expected);
}

fn held_lock_is_waited_for_only_as_long_as_asked() {
    let server = Server::start();
    let url = server.url();
    let guard = hold(&server);
    let output = output(&url, &["run", "a", "--no-wait", "--", "echo", "ran"]);
    assert_eq!(output.status.code(), Some(75));
    assert!(output.stdout.is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains("a is held by "));
    let args = [
        "run",
        "a",
        "--no-wait",
        "--not-acquired-exit",
        "0",
        "--",
        "false",
    ];
    assert_eq!(code(&url, &args), 0);
    let began = Instant::now();
    assert_eq!(
        code(&url, &["run", "a", "--wait", "300ms", "--", "true"]),
        75
    );
    assert!(began.elapsed() >= ms(300));

    let mut waiting = [
        Program::run(&url, &[], "exit 3"),
        Program::run(&url, &["--wait", "60s"], "exit 4"),
    ];
    eventually(SOON, || client(&server).mutex("a").waiting().unwrap() == 2);
    drop(guard);
    assert_eq!(waiting.each_mut().map(Program::code), [Some(3), Some(4)]);
}

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
    eventually(SOON, || {
        client(&server).mutex("a").waiting().unwrap() == all
    });
    for (program, signal) in waiting.iter_mut().zip(signals) {
        program.send(signal);
        assert_eq!(program.code(), Some(128 + signal.as_raw()));
        assert_eq!(program.lines.by_ref().lines().count(), 0);
    }
    drop(guard);
    assert!(is_free(&server, "a"));
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
        assert!(is_free(&server, "a"));
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

/// Two processes that TERM does not end; both print their process ids.
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

fn lost_lock_kills_a_command_that_ignores_term() {
    let server = Server::start();
    let options = ["--ttl", "600ms", "--kill-after", "300ms"];
    let mut program = Program::run(&server.url(), &options, STUBBORN);
    let pids = [program.pid(), program.pid()];
    delete(&server);
    assert_eq!(program.next_line(), "term");
    let terminated = Instant::now();
    assert_eq!(program.code(), Some(79));
    assert!(
        terminated.elapsed() >= ms(200),
        "{:?}",
        terminated.elapsed()
    );
    assert_eq!(pids.map(is_alive), [false, false]);
}

fn lock_expires_without_redis() {
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

fn killed_program_takes_the_whole_group_with_it() {
    let server = Server::start();
    let mut program = Program::run(&server.url(), &["--ttl", "500ms"], STUBBORN);
    let pids = [program.pid(), program.pid()];
    // Signals to the group must not end the supervisor that leads it.
    for signal in [Signal::HUP, Signal::USR1, Signal::TERM] {
        program.send(signal);
    }
    assert_eq!(program.next_line(), "term");
    assert!(pids.into_iter().all(is_alive));
    program.send(Signal::KILL);
    wait_until_ended(&pids);
    eventually(SOON, || is_free(&server, "a"));
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

/// Returns the processes that have this name of a lock in their environment.
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
        // Killed at different moments: before it connects, …, while the command runs.
        std::thread::sleep(ms(n));
        process.kill().unwrap();
        process.wait().unwrap();
        eventually(SOON, || processes_with_name(&name).is_empty());
    }
}

fn leftover_processes_end_before_the_release() {
    // This process adopts orphans and does not reap them, as init does in many containers. The
    // program must not take such zombies for running processes.
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
    let mut command = self::program(&server.url());
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
        assert!(
            !is_free(&server, "a") || !is_alive(pid),
            "released too early"
        );
    }
    assert!(began.elapsed() >= ms(400), "{:?}", began.elapsed());
    assert_eq!(program.code(), Some(4));
    assert!(is_free(&server, "a"));
}

#[cfg(target_os = "linux")]
fn command_is_suspended_with_the_program() {
    let server = Server::start();
    let mut program = Program::run(&server.url(), &["--ttl", "60s"], "echo $$; exec sleep 300");
    let pid = program.pid();
    let state = |pid: Pid| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).unwrap();
        stat.rsplit(") ").next().unwrap().chars().next()
    };
    let ours = Pid::from_child(&program.process);
    program.send(Signal::TSTP);
    eventually(SOON, || state(pid) == Some('T') && state(ours) == Some('T'));
    program.send(Signal::CONT);
    eventually(SOON, || state(pid) != Some('T'));
    program.send(Signal::TERM);
    assert_eq!(program.code(), Some(143));
}

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
    assert!(!is_free(&server, "a"));
    eventually(SOON, || is_free(&server, "a"));
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
    assert!(is_free(&server, "a"));
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
}

/// Parses one flat JSON object.
#[track_caller]
fn json(line: &str) -> BTreeMap<String, String> {
    let mut rest = line.strip_prefix('{').unwrap_or_else(|| panic!("{line}"));
    let mut object = BTreeMap::new();
    while !rest.starts_with('}') {
        rest = rest.strip_prefix(',').unwrap_or(rest);
        let (key, after) = string(rest);
        rest = after.strip_prefix(':').unwrap();
        let (value, after) = if rest.starts_with('"') {
            string(rest)
        } else {
            let (value, _) = rest.split_once([',', '}']).unwrap();
            let is_number = value.parse::<f64>().is_ok();
            assert!(
                is_number || ["null", "true", "false"].contains(&value),
                "{line}"
            );
            (value.to_owned(), &rest[value.len()..])
        };
        rest = after;
        assert!(object.insert(key, value).is_none(), "{line}");
    }
    assert_eq!(rest, "}", "{line}");
    object
}

fn string(text: &str) -> (String, &str) {
    let mut chars = text.strip_prefix('"').unwrap().chars();
    let mut value = String::new();
    loop {
        match chars.next().unwrap() {
            '"' => return (value, chars.as_str()),
            '\\' => match chars.next().unwrap() {
                'u' => {
                    let digits: String = chars.by_ref().take(4).collect();
                    let code = u32::from_str_radix(&digits, 16).unwrap();
                    value.push(char::from_u32(code).unwrap());
                }
                c => value.push(c),
            },
            c => value.push(c),
        }
    }
}

fn status_shows_holders_and_waiters() {
    let server = Server::start();
    let url = server.url();
    let holder = Client::builder()
        .url(&url)
        .owner("web\x1b[1m-7")
        .build()
        .unwrap();
    let guard = holder.mutex("a").lock().unwrap();
    let _bytes = holder.mutex(b"b\"\n\xff").lock().unwrap();
    drop(holder.mutex("free").lock().unwrap());
    let _waiting = Program::run(&url, &[], "true");
    eventually(SOON, || holder.mutex("a").waiting().unwrap() == 1);
    let queued = client(&server).fair_mutex("a");
    std::thread::spawn(move || queued.try_lock_for(SOON));
    eventually(SOON, || holder.fair_mutex("a").waiting().unwrap() == 1);
    eventually(SOON, || holder.mutex("a").waiting().unwrap() == 2);

    assert_text_status(&text(&url, &["status", "a", "free", "never"]), &guard);
    let mut command = program(&url);
    command
        .args(["status", "--json", "a", "never"])
        .arg(OsStr::from_bytes(b"b\"\n\xff"));
    let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert_json_status(&output, &guard);
}

/// Asserts the lines about the names `a` (held by `guard`), `free` and `never`.
fn assert_text_status(plain: &str, guard: &MutexGuard) {
    let token = guard.fencing_token().to_string();
    assert!(!plain.contains('\x1b'), "{plain:?}");
    let lines: Vec<Vec<&str>> = plain
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        lines[0],
        ["NAME", "HOLDER", "LEFT", "WAITING", "QUEUED", "TOKEN"]
    );
    assert!(lines[1][1].starts_with("web\\x1b[1m-7:"), "{plain}");
    assert_eq!(lines[1][0], "a");
    // The waiter in the queue is also subscribed.
    assert_eq!(lines[1][3..], ["2", "1", &token]);
    assert_eq!(lines[2][..5], ["free", "-", "-", "0", "0"]);
    assert_ne!(lines[2][5], "-", "the last token is still shown");
    assert_eq!(lines[3], ["never", "-", "-", "0", "0", "-"]);
    assert!(
        !plain.contains(guard.holder_id().as_str().rsplit(':').next().unwrap()),
        "the full holder id must stay secret: it suffices to release the lock"
    );
}

/// Asserts the lines about the names `a` (held by `guard`), `never`, and one that is not UTF-8.
fn assert_json_status(output: &str, guard: &MutexGuard) {
    let token = guard.fencing_token().to_string();
    let [held, never, bytes] = output
        .lines()
        .map(json)
        .collect::<Vec<_>>()
        .try_into()
        .unwrap();
    assert_eq!(
        [&held["name"], &held["held"], &held["owner"]],
        ["a", "true", "web\x1b[1m-7"]
    );
    assert_eq!([&held["waiting"], &held["queued"]], ["2", "1"]);
    assert_eq!(held["fencing_token"], token);
    assert_eq!(held["holder"], guard.holder_id().short().to_string());
    let left: u64 = held["remaining_ms"].parse().unwrap();
    assert!(left > 5_000 && left <= 10_000);
    for (key, value) in [
        ("name", "never"),
        ("held", "false"),
        ("owner", "null"),
        ("fencing_token", "null"),
    ] {
        assert_eq!(never[key], value, "{key}");
    }
    assert_eq!([&bytes["name"], &bytes["name_hex"]], ["null", "62220aff"]);
}

fn list_shows_held_locks() {
    let server = Server::start();
    let url = server.url();
    assert_eq!(text(&url, &["list"]), "");
    let client = client(&server);
    let _guards = ["x:1", "x:2", "y"].map(|name| client.mutex(name).lock().unwrap());
    let _bytes = client.mutex(b"\xfe").lock().unwrap();
    let names = |args: &[&str]| -> Vec<String> {
        let output = text(&url, args);
        let lines = output.lines().skip(1);
        lines
            .map(|line| line.split(' ').next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&["list"]), ["x:1", "x:2", "y", "\\xfe"]);
    assert_eq!(names(&["list", "x:"]), ["x:1", "x:2"]);
    assert_eq!(names(&["list", "--key-prefix", "other:"]), [""; 0]);
    let output = text(&url, &["list", "--json"]);
    let objects: Vec<_> = output.lines().map(json).collect();
    assert_eq!(objects.len(), 4);
    assert_eq!([&objects[0]["name"], &objects[0]["held"]], ["x:1", "true"]);
    assert_eq!(
        [&objects[3]["name"], &objects[3]["name_hex"]],
        ["null", "fe"]
    );
    assert_eq!(server.calls(&["keys"]), 0);
}

fn permits_limit_commands_and_are_shown() {
    let server = Server::start();
    let url = server.url();
    let script = "echo $LEASEHOLD_NAME $LEASEHOLD_FENCING_TOKEN; sleep 60";
    let mut programs = [(); 2].map(|()| Program::run(&url, &["--permits", "2"], script));
    let lines = programs.each_mut().map(Program::next_line);
    assert!(
        lines.iter().all(|line| line.starts_with("a 1")),
        "{lines:?}"
    );
    assert_ne!(lines[0], lines[1], "each has its own token");
    let run = |permits| ["run", "a", "--permits", permits, "--no-wait", "--", "true"];
    let refused = output(&url, &run("2"));
    assert_eq!(refused.status.code(), Some(75));
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(why.contains("no permit of a is free"), "{why}");
    assert_eq!(code(&url, &run("3")), 0);
    assert_eq!(code(&url, &run("0")), 64, "no semaphore has 0");
    assert!(is_free(&server, "a"), "the lock of that name is another");

    let guard = client(&server).mutex("b").lock().unwrap();
    let listed = text(&url, &["list"]);
    let words = |text: &str| -> Vec<Vec<String>> {
        let lines = text.lines().map(|line| line.split_whitespace());
        lines
            .map(|words| words.map(str::to_owned).collect())
            .collect()
    };
    let lines = words(&listed);
    assert_eq!((&*lines[1][0], lines[2].len()), ("b", 0), "{listed}");
    assert_eq!(lines[3], ["SEMAPHORE", "HOLDER", "PERMITS", "LEFT"]);
    assert_eq!(
        (lines.len(), &*lines[4][0], &*lines[4][3]),
        (6, "a", "1"),
        "{listed}"
    );
    assert_eq!(text(&url, &["list", "b"]).lines().count(), 2);
    let objects: Vec<_> = text(&url, &["list", "--json", "a"])
        .lines()
        .map(json)
        .collect();
    assert_eq!(objects.len(), 2);
    assert_eq!([&objects[0]["name"], &objects[0]["permits"]], ["a", "1"]);
    drop(guard);

    let status = words(&text(&url, &["status", "a", "never"]));
    assert_eq!(status[1][..2], ["a", "-"]);
    assert_eq!(
        status[4],
        ["SEMAPHORE", "HOLDER", "PERMITS", "LEFT", "QUEUED"]
    );
    assert_eq!((status.len(), &*status[5][5]), (7, "0"), "{status:?}");
    let top = text(&url, &["top", "--count", "1"]);
    assert!(top.contains("\ta\t2 permits, 2 holders\t"), "{top}");
    let top = text(&url, &["top", "--count", "1", "--json"]);
    let top = json(top.lines().next().unwrap());
    assert_eq!(
        [&top["permits"], &top["holders"], &top["waiting"]],
        ["2", "2", "0"]
    );
}

fn unlock_needs_force() {
    let server = Server::start();
    let url = server.url();
    let guard = hold(&server);
    let output = output(&url, &["unlock", "a"]);
    assert_eq!(output.status.code(), Some(64));
    let output = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.contains("--force") && output.contains("may still be working"),
        "{output}"
    );
    assert!(guard.is_held() && !is_free(&server, "a"));
    assert_eq!(code(&url, &["unlock", "a", "--force"]), 0);
    assert!(is_free(&server, "a"));
    assert_eq!(code(&url, &["unlock", "a", "--force"]), 1);
}

fn completions_and_manual_pages_are_written() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(
            text("", &["completions", shell]).contains("min-hold"),
            "{shell}"
        );
    }
    let page = text("", &["man"]);
    assert!(
        page.contains(".TH leasehold 1") && page.contains("Exit codes"),
        "{page}"
    );
    let page = text("", &["man", "run"]);
    assert!(page.contains("LEASEHOLD_FENCING_TOKEN"), "{page}");
    assert_eq!(code("", &["man", "nonsense"]), 64);
    for args in [&["--help"][..], &["man"], &["completions", "bash"]] {
        assert!(!text("", args).contains("__shim"), "{args:?}");
    }
}

fn password_is_never_printed() {
    let server = Server::start();
    server.run("CONFIG", &["SET", "requirepass", "s3cret"]);
    let url = |password: &str| format!("redis://:{password}@127.0.0.1:{}", server.port());
    let show = |url: &str, expected: i32, args: &[&str]| {
        let output = output(url, args);
        assert_eq!(output.status.code(), Some(expected), "{args:?}: {output:?}");
        let output = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        for password in ["s3cret", "wr0ng"] {
            assert!(!output.contains(password), "{args:?}: {output}");
        }
    };
    let _held = Client::open(&url("s3cret"))
        .unwrap()
        .mutex("a")
        .lock()
        .unwrap();
    for (expected, args) in [
        (75, &["run", "a", "--no-wait", "--", "true"][..]),
        (0, &["run", "b", "--", "true"]),
        (0, &["status", "a", "b"]),
        (0, &["status", "a", "--json"]),
        (0, &["list"]),
        (0, &["top", "--count", "1"]),
        (0, &["--help"]),
        (0, &["run", "--help"]),
        (64, &["list", "x", &url("s3cret")]),
        (64, &["status", "--url", "http://u:s3cret@h", "x"]),
    ] {
        show(&url("s3cret"), expected, args);
    }
    for args in [
        &["run", "c", "--", "true"][..],
        &["status", "a"],
        &["list"],
        &["top"],
        &["unlock", "a", "--force"],
    ] {
        show(&url("wr0ng"), 77, args);
    }
}
