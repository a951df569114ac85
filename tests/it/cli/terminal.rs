//! Promise: on a terminal, keys reach the command, and the terminal is left as it was.

use rustix::process::{Pid, Signal, kill_process};
use support::{Proxy, Server, Terminal, eventually, ms};

use super::{PROGRAM, WAIT_LIMIT, client, hold};

support::tests![
    foreground_command_reads_from_the_terminal,
    command_that_needs_the_terminal_is_ended_with_the_advice,
    command_whose_input_is_replaced_is_announced,
    ctrl_c_reaches_a_foreground_command_once,
    ctrl_c_ends_the_wait,
    ctrl_z_stops_the_command_and_fg_continues_it,
    ctrl_z_stops_a_foreground_command_and_fg_continues_it,
    foreground_command_dies_with_the_program,
    lost_lock_ends_a_foreground_command,
    top_leaves_the_terminal_as_it_was,
    stop_that_was_continued_does_not_stop_top,
    list_shows_how_far_it_is,
    ctrl_c_ends_a_long_list
];

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

/// Starts `run a` on its own terminal, with these options and a shell script.
fn run(server: &Server, options: &[&str], script: &str) -> Terminal {
    let limit = ["--max-hold", "120s", "--", "sh", "-c", script];
    let command = [&[PROGRAM, "run", "a"], options, &limit].concat();
    Terminal::start(&command, &[("REDIS_URL", &server.url())])
}

/// Starts a shell with job control on its own terminal; the script finds the program in `$0`.
fn shell(server: &Server, script: &str) -> Terminal {
    let script = format!("set -m\n{script}");
    let command = ["sh", "-c", &script, PROGRAM];
    Terminal::start(&command, &[("REDIS_URL", &server.url())])
}

fn foreground_command_reads_from_the_terminal() {
    let server = Server::start();
    let script = "read -r a; echo \"from input: $a\"; read -r b </dev/tty; echo \"from tty: $b\"";
    let mut terminal = run(&server, &["--foreground"], script);
    terminal.type_keys("one\n");
    terminal.wait_for("from input: one");
    assert!(!server.is_free("a"));
    terminal.type_keys("two\n");
    terminal.wait_for("from tty: two");
    let (status, shown) = terminal.wait();
    assert_eq!(status.code(), Some(0), "{shown}");
    assert!(server.is_free("a"));
}

/// The kernel stops a process in the background that reads from the terminal. The lock must not
/// stay held with it.
fn command_that_needs_the_terminal_is_ended_with_the_advice() {
    let server = Server::start();
    for script in ["read -r a </dev/tty", "stty -echo </dev/tty"] {
        let mut terminal = run(&server, &[], script);
        terminal.wait_for("the command needs the terminal, which it has only with --foreground");
        let (status, shown) = terminal.wait();
        assert_eq!(status.code(), Some(64), "{shown}");
        assert!(server.is_free("a"));
    }
}

fn command_whose_input_is_replaced_is_announced() {
    let server = Server::start();
    let (status, shown) = run(&server, &[], "cat; echo end").wait();
    assert_eq!(status.code(), Some(0), "{shown}");
    assert!(shown.contains("input is empty; --foreground"), "{shown}");
    let (_, shown) = run(&server, &["--quiet"], "cat; echo end").wait();
    assert_eq!(shown.trim(), "end");
}

fn ctrl_c_reaches_a_foreground_command_once() {
    let server = Server::start();
    let script = "n=0; trap 'n=$((n+1))' INT; trap 'echo \"INT: $n\"; exit 7' USR1; echo ready
        while :; do sleep 0.02; done";
    let mut terminal = run(&server, &["--foreground"], script);
    terminal.wait_for("ready");
    terminal.type_keys(CTRL_C);
    // The program forwards USR1. If it forwarded INT as well, it would do so before.
    let program = Pid::from_raw(i32::try_from(terminal.id()).unwrap()).unwrap();
    terminal.wait_for("^C");
    kill_process(program, Signal::USR1).unwrap();
    terminal.wait_for("INT: 1");
    let (status, shown) = terminal.wait();
    assert_eq!(status.code(), Some(7), "{shown}");
}

fn ctrl_c_ends_the_wait() {
    let server = Server::start();
    let _held = hold(&server);
    let mut terminal = run(&server, &["--foreground"], "echo ran");
    eventually(WAIT_LIMIT, || {
        client(&server).mutex("a").waiting().unwrap() == 1
    });
    terminal.type_keys(CTRL_C);
    let (status, shown) = terminal.wait();
    assert_eq!(status.code(), Some(130), "{shown}");
    assert!(!shown.contains("ran"), "{shown}");
}

fn ctrl_z_stops_the_command_and_fg_continues_it() {
    stops_and_continues("", "while :; do sleep 0.02; done");
}

fn ctrl_z_stops_a_foreground_command_and_fg_continues_it() {
    // Without a child: while a shell starts one, Ctrl-Z may stop only the child.
    stops_and_continues("--foreground", "while :; do read -r line; done");
}

fn stops_and_continues(option: &str, work: &str) {
    let server = Server::start();
    let script = format!(
        "\"$0\" -q run a --ttl 120s --max-hold 120s {option} -- \
             sh -c 'trap \"echo continued; exit 9\" CONT; echo ready; {work}'
         echo \"stopped with $?\"; fg >/dev/null; echo \"ended with $?\""
    );
    let mut terminal = shell(&server, &script);
    terminal.wait_for("ready");
    terminal.type_keys(CTRL_Z);
    // The shell reports only the program as stopped. The command is stopped, too, if it prints
    // nothing until it is continued.
    let before = terminal.wait_for("stopped with ");
    assert!(!before.contains("continued"), "{before}");
    // A process that catches TSTP stops itself with STOP.
    terminal.wait_for(&format!("{}\r\n", 128 + Signal::STOP.as_raw()));
    terminal.wait_for("continued");
    terminal.wait_for("ended with 9");
    assert!(server.is_free("a"));
}

fn foreground_command_dies_with_the_program() {
    let server = Server::start();
    let options = ["--foreground", "--ttl", "500ms"];
    let script = "trap '' HUP; trap 'echo \"pid=$$;\"; exec sleep 300' USR1; echo ready; \
         while :; do sleep 0.02; done";
    let mut terminal = run(&server, &options, script);
    terminal.wait_for("ready");
    let program = Pid::from_raw(i32::try_from(terminal.id()).unwrap()).unwrap();
    // The program forwards signals once its supervisor knows the command.
    kill_process(program, Signal::USR1).unwrap();
    terminal.wait_for("pid=");
    let pid: i32 = terminal.wait_for(";").parse().unwrap();
    let pid = Pid::from_raw(pid).unwrap();
    kill_process(program, Signal::KILL).unwrap();
    super::wait_until_ended(&[pid]);
    eventually(WAIT_LIMIT, || server.is_free("a"));
}

fn lost_lock_ends_a_foreground_command() {
    let server = Server::start();
    let options = ["--foreground", "--ttl", "600ms", "--kill-after", "300ms"];
    let script = "trap '' TERM; echo ready; while :; do sleep 0.02; done";
    let mut terminal = run(&server, &options, script);
    terminal.wait_for("ready");
    super::delete(&server);
    terminal.wait_for("ending the command");
    let (status, shown) = terminal.wait();
    assert_eq!(status.code(), Some(79), "{shown}");
}

fn top_leaves_the_terminal_as_it_was() {
    const ENTER: &str = "\x1b[?1049h";
    const LEAVE: &str = "\x1b[?1049l";
    let server = Server::start();
    let _held = hold(&server);
    let mut terminal = shell(
        &server,
        "\"$0\" top --interval 20ms; echo \"stopped with $?\"; fg >/dev/null; echo \"ended with $?\"",
    );
    terminal.wait_for(ENTER);
    terminal.wait_for("1 held, 0 waiting");
    terminal.type_keys(CTRL_Z);
    terminal.wait_for(LEAVE);
    let before = terminal.wait_for("stopped with ");
    assert!(!before.contains("held"), "{before:?}");
    terminal.wait_for(ENTER);
    terminal.wait_for("1 held, 0 waiting");
    terminal.type_keys(CTRL_C);
    terminal.wait_for(LEAVE);
    let before = terminal.wait_for("ended with 130");
    assert!(!before.contains("held"), "{before:?}");
}

fn stop_that_was_continued_does_not_stop_top() {
    let server = Server::start();
    let command = [PROGRAM, "top", "--interval", "20ms"];
    let mut terminal = Terminal::start(&command, &[("REDIS_URL", &server.url())]);
    terminal.wait_for("0 held, 0 waiting");
    let top = Pid::from_raw(i32::try_from(terminal.id()).unwrap()).unwrap();
    for _ in 0..20 {
        kill_process(top, Signal::TSTP).unwrap();
        kill_process(top, Signal::CONT).unwrap();
    }
    terminal.type_keys(CTRL_C);
    let (status, shown) = terminal.wait();
    assert_eq!(status.code(), Some(130), "{shown}");
}

/// Starts `list` on its own terminal, behind a proxy that delays each page of its scan.
fn slow_list(server: &Server, script: &str) -> (Proxy, Terminal) {
    let fill = "for n = 1, 10000 do redis.call('SET', 'other:' .. n, 'x') end";
    server.run("EVAL", &[fill, "0"]);
    let proxy = Proxy::new(server);
    proxy.delay(ms(0), ms(60));
    let command = ["sh", "-c", script, PROGRAM];
    let terminal = Terminal::start(&command, &[("REDIS_URL", &proxy.url())]);
    (proxy, terminal)
}

fn list_shows_how_far_it_is() {
    let server = Server::start();
    let _held = hold(&server);
    let (_proxy, mut terminal) = slow_list(&server, r#""$0" list"#);
    let mut percents = Vec::new();
    for _ in 0..3 {
        let before = terminal.wait_for(" % of the keys scanned");
        let (_, percent) = before.rsplit_once('\r').unwrap();
        percents.push(percent.parse::<u32>().unwrap());
    }
    assert!(
        percents.is_sorted() && percents[0] < percents[2],
        "{percents:?}"
    );
    assert!(percents[2] <= 100, "{percents:?}");
    let (status, shown) = terminal.wait();
    assert_eq!(status.code(), Some(0), "{shown}");
    // The line of the progress is cleared before the table.
    let (_, table) = shown.rsplit_once("\r\x1b[K").unwrap();
    assert!(table.starts_with("NAME"), "{shown:?}");
    // No progress is shown to a program.
    let output = super::output(&server.url(), &["list"]);
    assert!(output.stderr.is_empty(), "{output:?}");
}

fn ctrl_c_ends_a_long_list() {
    let server = Server::start();
    let script = r#"trap : INT; "$0" list; echo "ended with $?""#;
    let (_proxy, mut terminal) = slow_list(&server, script);
    terminal.wait_for(" % of the keys scanned");
    terminal.type_keys(CTRL_C);
    terminal.wait_for("ended with 130");
}
