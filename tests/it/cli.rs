//! Promise: the program `leasehold` runs a command only under its lock, leaves no process of it behind however it ends
//! itself, and says what it sees.

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
    the_commands_exit_code_is_ours,
    what_cannot_work_has_codes_of_its_own,
    a_wait_that_ends_while_the_breaker_is_open_is_69,
    the_command_knows_its_token_and_name,
    a_signal_ends_the_wait,
    a_signal_reaches_all_of_the_group,
    what_our_starter_ignores_stays_ignored,
    a_lost_lock_ends_the_command,
    a_lock_is_lost_without_redis_too,
    the_longest_time_is_kept,
    when_we_are_killed_the_whole_group_is,
    when_our_group_is_killed_the_commands_is_too,
    #[cfg(target_os = "linux")]
    there_is_no_moment_at_which_killing_us_leaves_an_orphan,
    #[cfg(target_os = "linux")]
    nothing_runs_on_while_we_are_suspended,
    min_hold_outlasts_a_signal_and_counts_from_the_grant,
    min_hold_is_kept_here_while_redis_is_away,
    status_says_who_holds_and_who_waits,
    list_shows_what_is_held,
    unlock_has_to_be_forced,
    top_counts_changes_of_holder,
    top_outlasts_an_outage,
    top_refreshes_a_terminal_in_place,
    completions_and_manual_pages_are_written,
    no_password_is_shown
];

support::timed![
    a_lock_that_is_held_is_not_waited_for_unless_asked,
    a_lost_lock_kills_the_command_that_does_not_end,
    what_the_command_leaves_behind_is_ended_before_the_release,
    with_min_hold_three_runs_at_once_run_the_command_once
];

const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold");

/// For what comes at once on a quiet machine.
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

/// The program at work; the end of the test is its end.
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

    /// `run a`, with these options, of a script.
    fn run(url: &str, options: &[&str], script: &str) -> Self {
        // A test that is aborted leaves it running, but not for ever.
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
        assert!(read > 0, "it says no more; {}", self.errors());
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

/// A zombie is gone: whether it is reaped is up to whoever it was left to.
fn lives(pid: Pid) -> bool {
    match fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())) {
        Ok(stat) => !stat.rsplit(") ").next().unwrap().starts_with(['Z', 'X']),
        Err(_) => !cfg!(target_os = "linux") && test_kill_process(pid).is_ok(),
    }
}

#[track_caller]
fn end_soon(pids: &[Pid]) {
    eventually(SOON, || !pids.iter().any(|pid| lives(*pid)));
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

fn the_commands_exit_code_is_ours() {
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
        assert!(is_free(&server, "a"), "it has done nothing: {command}");
    }
}

fn what_cannot_work_has_codes_of_its_own() {
    let server = Server::start();
    let url = server.url();
    for args in [
        &["run", "a"][..],
        &["run", "a", "true"],
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
    let nobody = format!("redis://127.0.0.1:{}", free_port());
    for args in [
        &["run", "a", "--no-wait", "--", "true"][..],
        &["status", "a"],
        &["list"],
        &["top"],
        &["unlock", "a", "--force"],
    ] {
        assert_eq!(code(&nobody, args), 69, "{args:?}");
    }
    let mut connection = server.connection();
    let () = redis::cmd("RPUSH")
        .arg("lock:list")
        .arg("x")
        .query(&mut connection)
        .unwrap();
    assert_eq!(code(&url, &["run", "list", "--", "true"]), 77);
}

/// The breaker opens in the middle of the wait, after five failures of a second each.
fn a_wait_that_ends_while_the_breaker_is_open_is_69() {
    let server = Server::start();
    server.pause();
    let args = ["run", "a", "--wait", "5500ms", "--", "true"];
    assert_eq!(code(&server.url(), &args), 69);
}

fn the_command_knows_its_token_and_name() {
    let server = Server::start();
    let script = r#"printf '%s %s' "$LEASEHOLD_FENCING_TOKEN" "$LEASEHOLD_NAME""#;
    let name = OsStr::from_bytes(b"a\xff b");
    let mut command = program(&server.url());
    command.arg("run").arg(name);
    let said = command.args(["--", "sh", "-c", script]).output().unwrap();
    let token = client(&server)
        .mutex(name.as_bytes())
        .last_fencing_token()
        .unwrap();
    let expected = [token.unwrap().to_string().as_bytes(), b" a\xff b"].concat();
    assert_eq!(said.stdout, expected);
}

fn a_lock_that_is_held_is_not_waited_for_unless_asked() {
    let server = Server::start();
    let url = server.url();
    let guard = hold(&server);
    let output = output(&url, &["run", "a", "--no-wait", "--", "echo", "ran"]);
    assert_eq!(output.status.code(), Some(75));
    assert!(output.stdout.is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains("a is held by another holder"));
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

/// Where a script starts the tests with `&`, INT and QUIT are ignored, by us and by all that we start.
fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or(0) >> (signal.as_raw() - 1) & 1 == 1
}

fn a_signal_ends_the_wait() {
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

/// A grandchild that says which signal it got, under a child that waits for it.
const LISTENER: &str = r#"
trap : HUP INT QUIT TERM USR1 USR2
sh -c '
    for signal in HUP INT QUIT TERM USR1 USR2; do trap "echo $signal; exit 5" $signal; done
    echo ready
    while :; do sleep 0.02; done
'
exit $?"#;

fn a_signal_reaches_all_of_the_group() {
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

fn what_our_starter_ignores_stays_ignored() {
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
    // Passed on behind the other, if that were.
    program.send(Signal::USR1);
    assert_eq!(program.next_line(), "on");
    assert_eq!(program.code(), Some(6));
}

/// Two processes that TERM does not end, and their ids.
const STUBBORN: &str = r#"
trap 'echo term' TERM
trap '' HUP USR1
sh -c 'trap "" TERM; echo $$; while :; do sleep 0.02; done' &
echo $$
while :; do sleep 0.02; done"#;

fn a_lost_lock_ends_the_command() {
    let server = Server::start();
    let options = ["--ttl", "600ms", "--kill-after", "60s"];
    // It ends well when it is told to, and still it was not under the lock.
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

fn a_lost_lock_kills_the_command_that_does_not_end() {
    let server = Server::start();
    let options = ["--ttl", "600ms", "--kill-after", "300ms"];
    let mut program = Program::run(&server.url(), &options, STUBBORN);
    let pids = [program.pid(), program.pid()];
    delete(&server);
    assert_eq!(program.next_line(), "term");
    let told = Instant::now();
    assert_eq!(program.code(), Some(79));
    assert!(told.elapsed() >= ms(200), "{:?}", told.elapsed());
    assert_eq!(pids.map(lives), [false, false]);
}

fn a_lock_is_lost_without_redis_too() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let mut program = Program::run(&proxy.url(), &["--ttl", "900ms"], "echo $$; exec sleep 300");
    let pid = program.pid();
    proxy.set_all(Traffic::Stall);
    assert_eq!(program.code(), Some(79));
    assert!(!lives(pid));
    assert!(program.errors().contains("expired"));
}

fn the_longest_time_is_kept() {
    let server = Server::start();
    let mut program = Program::run(
        &server.url(),
        &["--max-hold", "300ms"],
        "echo $$; exec sleep 300",
    );
    let pid = program.pid();
    assert_eq!(program.code(), Some(124));
    assert!(!lives(pid));
}

fn when_we_are_killed_the_whole_group_is() {
    let server = Server::start();
    let mut program = Program::run(&server.url(), &["--ttl", "500ms"], STUBBORN);
    let pids = [program.pid(), program.pid()];
    // What is sent to the group must not end what watches over it.
    for signal in [Signal::HUP, Signal::USR1, Signal::TERM] {
        program.send(signal);
    }
    assert_eq!(program.next_line(), "term");
    assert!(pids.into_iter().all(lives));
    program.send(Signal::KILL);
    end_soon(&pids);
    eventually(SOON, || is_free(&server, "a"));
}

fn when_our_group_is_killed_the_commands_is_too() {
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
    end_soon(&pids);
}

/// The processes with this in their environment.
#[cfg(target_os = "linux")]
fn with_name(name: &str) -> Vec<Pid> {
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
    pids.filter(|pid| lives(*pid)).collect()
}

#[cfg(target_os = "linux")]
fn there_is_no_moment_at_which_killing_us_leaves_an_orphan() {
    let server = Server::start();
    for n in 0..30_u64 {
        let name = format!("orphan-{}-{n}", std::process::id());
        let args = ["run", &name, "--", "sh", "-c", "sleep 300 & sleep 300"];
        let mut process = program(&server.url()).args(args).spawn().unwrap();
        // From before it has connected until the command is at work.
        std::thread::sleep(ms(n));
        process.kill().unwrap();
        process.wait().unwrap();
        eventually(SOON, || with_name(&name).is_empty());
    }
}

fn what_the_command_leaves_behind_is_ended_before_the_release() {
    // A system that never reaps what is left to it, as in many a container: that would look as if it did not end.
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let server = Server::start();
    let mut program = Program::run(&server.url(), &[], "sleep 300 & echo $!; exit 3");
    let pid = program.pid();
    assert_eq!(program.code(), Some(3));
    assert!(!lives(pid));
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
    while lives(pid) {
        assert!(!is_free(&server, "a") || !lives(pid), "released too early");
    }
    assert!(began.elapsed() >= ms(400), "{:?}", began.elapsed());
    assert_eq!(program.code(), Some(4));
    assert!(is_free(&server, "a"));
}

#[cfg(target_os = "linux")]
fn nothing_runs_on_while_we_are_suspended() {
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

fn with_min_hold_three_runs_at_once_run_the_command_once() {
    let server = Server::start();
    let options = ["--no-wait", "--min-hold", "3s"];
    let began = Instant::now();
    let mut runs = [(); 3].map(|()| Program::run(&server.url(), &options, "echo ran; exit 7"));
    let mut codes = runs.each_mut().map(Program::code);
    // The one that ran did not stay.
    assert!(began.elapsed() < ms(3_000), "{:?}", began.elapsed());
    codes.sort();
    assert_eq!(codes, [Some(7), Some(75), Some(75)]);
    let lines = runs
        .iter_mut()
        .map(|run| run.lines.by_ref().lines().count());
    assert_eq!(lines.sum::<usize>(), 1);
    // A fourth one whose clock is slow.
    assert!(!is_free(&server, "a"));
    eventually(SOON, || is_free(&server, "a"));
    assert!(began.elapsed() >= ms(3_000), "{:?}", began.elapsed());
}

fn min_hold_outlasts_a_signal_and_counts_from_the_grant() {
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
        .expect("it is still taken");
    let left = holder.remaining().unwrap();
    assert!(left > ms(30_000) && left <= ms(60_000), "{left:?}");
    assert!(client(&server).mutex("a").force_unlock().unwrap());

    // Over by the time that the command ends.
    let args = ["run", "a", "--min-hold", "100ms", "--", "sleep", "0.3"];
    assert_eq!(code(&server.url(), &args), 0);
    assert!(is_free(&server, "a"));
}

fn min_hold_is_kept_here_while_redis_is_away() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let script = "echo ready; sleep 0.3";
    let mut program = Program::run(&proxy.url(), &["--ttl", "60s", "--min-hold", "50s"], script);
    assert_eq!(program.next_line(), "ready");
    proxy.set_all(Traffic::Stall);
    // It asks again and again, until it is told to end.
    let mut said = String::new();
    let mut errors = BufReader::new(program.process.stderr.take().unwrap());
    errors.read_line(&mut said).unwrap();
    assert!(said.contains("--min-hold"), "{said}");
    program.send(Signal::TERM);
    assert_eq!(program.code(), Some(0));
}

/// Reads one flat object.
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

fn status_says_who_holds_and_who_waits() {
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
    let token = guard.fencing_token().to_string();
    let _waiting = Program::run(&url, &[], "true");
    eventually(SOON, || holder.mutex("a").waiting().unwrap() == 1);
    let queued = client(&server).fair_mutex("a");
    std::thread::spawn(move || queued.try_lock_for(SOON));
    eventually(SOON, || holder.fair_mutex("a").waiting().unwrap() == 1);
    eventually(SOON, || holder.mutex("a").waiting().unwrap() == 2);

    let plain = text(&url, &["status", "a", "free", "never"]);
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
    // The one that is queued listens too.
    assert_eq!(lines[1][3..], ["2", "1", &token]);
    assert_eq!(lines[2][..5], ["free", "-", "-", "0", "0"]);
    assert_ne!(lines[2][5], "-", "its last token is known");
    assert_eq!(lines[3], ["never", "-", "-", "0", "0", "-"]);
    assert!(
        !plain.contains(guard.holder_id().as_str().rsplit(':').next().unwrap()),
        "whoever knows it can release"
    );

    let mut command = program(&url);
    command
        .args(["status", "--json", "a", "never"])
        .arg(OsStr::from_bytes(b"b\"\n\xff"));
    let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let [held, never, bytes] = said
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

fn list_shows_what_is_held() {
    let server = Server::start();
    let url = server.url();
    assert_eq!(text(&url, &["list"]), "");
    let client = client(&server);
    let _guards = ["x:1", "x:2", "y"].map(|name| client.mutex(name).lock().unwrap());
    let _bytes = client.mutex(b"\xfe").lock().unwrap();
    let names = |args: &[&str]| -> Vec<String> {
        let said = text(&url, args);
        let lines = said.lines().skip(1);
        lines
            .map(|line| line.split(' ').next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&["list"]), ["x:1", "x:2", "y", "\\xfe"]);
    assert_eq!(names(&["list", "x:"]), ["x:1", "x:2"]);
    assert_eq!(names(&["list", "--key-prefix", "other:"]), [""; 0]);
    let said = text(&url, &["list", "--json"]);
    let objects: Vec<_> = said.lines().map(json).collect();
    assert_eq!(objects.len(), 4);
    assert_eq!([&objects[0]["name"], &objects[0]["held"]], ["x:1", "true"]);
    assert_eq!(
        [&objects[3]["name"], &objects[3]["name_hex"]],
        ["null", "fe"]
    );
    assert_eq!(server.calls(&["keys"]), 0);
}

fn unlock_has_to_be_forced() {
    let server = Server::start();
    let url = server.url();
    let guard = hold(&server);
    let output = output(&url, &["unlock", "a"]);
    assert_eq!(output.status.code(), Some(64));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("--force") && said.contains("may still be working"),
        "{said}"
    );
    assert!(guard.is_held() && !is_free(&server, "a"));
    assert_eq!(code(&url, &["unlock", "a", "--force"]), 0);
    assert!(is_free(&server, "a"));
    assert_eq!(code(&url, &["unlock", "a", "--force"]), 1);
}

fn top_counts_changes_of_holder() {
    let server = Server::start();
    let url = server.url();
    let client = client(&server);
    let _still = client.mutex("still").lock().unwrap();
    let mut top = Program::start(&url, &["top", "--json", "--interval", "100ms"]);
    let busy = client.mutex("busy");
    // Held until it is seen, so that each look sees another holder.
    let object = loop {
        let _busy = busy.lock().unwrap();
        let object = loop {
            let object = json(&top.next_line());
            if object["name"] == "busy" {
                break object;
            }
            assert_eq!(
                [&object["name"], &object["changes_per_s"]],
                ["still", "0.00"]
            );
        };
        if object["changes_per_s"] != "0.00" {
            break object;
        }
    };
    let rate: f64 = object["changes_per_s"].parse().unwrap();
    assert!(rate > 0.0 && rate <= 10.0, "{rate}");
    assert!(object["at_ms"].parse::<u64>().unwrap() > 1_600_000_000_000);

    let plain = text(
        &url,
        &["top", "still", "--count", "2", "--interval", "10ms"],
    );
    let lines: Vec<Vec<&str>> = plain
        .lines()
        .map(|line| line.split('\t').collect())
        .collect();
    assert_eq!(lines.len(), 2, "{plain}");
    assert_eq!(
        (lines[0].len(), lines[0][1], lines[0][4], lines[0][5]),
        (7, "still", "0", "0.0")
    );
    assert!(!plain.contains('\x1b'));
}

fn top_outlasts_an_outage() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let _still = hold(&server);
    let mut top = Program::start(&proxy.url(), &["top", "--json", "--interval", "20ms"]);
    assert_eq!(json(&top.next_line())["name"], "a");
    proxy.set_all(Traffic::Cut);
    let mut errors = BufReader::new(top.process.stderr.take().unwrap());
    let mut said = String::new();
    errors.read_line(&mut said).unwrap();
    assert!(said.contains("the call to 127.0.0.1:"), "{said}");
    proxy.set_all(Traffic::Pass);
    let at = |line: String| json(&line)["at_ms"].parse::<u128>().unwrap();
    let now = std::time::SystemTime::now();
    let now = now
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_millis();
    while at(top.next_line()) <= now {}
}

fn top_refreshes_a_terminal_in_place() {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    let server = Server::start();
    let _still = hold(&server);
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let path = ptsname(&terminal, Vec::new()).unwrap();
    let path = OsStr::from_bytes(path.as_bytes());
    let screen = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut command = program(&server.url());
    command
        .args(["top", "--count", "2", "--interval", "10ms"])
        .stdout(screen);
    let mut process = command.spawn().unwrap();
    assert!(process.wait().unwrap().success());
    // Ours is the last open end.
    drop(command);
    let mut shown = Vec::new();
    let _ = fs::File::from(terminal).read_to_end(&mut shown);
    let shown = String::from_utf8(shown).unwrap();
    assert_eq!(shown.matches("\x1b[H").count(), 2, "{shown:?}");
    assert_eq!(shown.matches("NAME").count(), 2, "{shown:?}");
    assert!(shown.contains("1 held, 0 waiting"), "{shown:?}");
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

fn no_password_is_shown() {
    let server = Server::start();
    server.run("CONFIG", &["SET", "requirepass", "s3cret"]);
    let url = |password: &str| format!("redis://:{password}@127.0.0.1:{}", server.port());
    let show = |url: &str, expected: i32, args: &[&str]| {
        let output = output(url, args);
        assert_eq!(output.status.code(), Some(expected), "{args:?}: {output:?}");
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        for password in ["s3cret", "wr0ng"] {
            assert!(!said.contains(password), "{args:?}: {said}");
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
