//! Promise: `leasehold top` shows what happens to the locks, and goes on during an outage.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::thread;
use std::time::Instant;

use leasehold::{Backoff, WaitPolicy};
use support::fair::wait_for_queue_length;
use support::{Proxy, Server, Terminal, Traffic, eventually, let_pass, ms};

use super::{PROGRAM, Program, WAIT_LIMIT, client, hold, json, program, text};

support::tests![
    scans_leave_the_server_its_time,
    signal_ends_top_while_it_scans_or_redis_hangs,
    changes_of_holder_are_counted,
    longest_wait_is_shown,
    longest_wait_of_a_call_that_backs_off_is_shown,
    outage_is_outlasted,
    damaged_fence_of_a_free_lock_is_outlasted,
    terminal_is_refreshed_in_place
];

fn changes_of_holder_are_counted() {
    let server = Server::start();
    let url = server.url();
    let client = client(&server);
    let _still = client.mutex("still").lock().unwrap();
    let mut top = Program::start(&url, &["top", "--json", "--interval", "100ms"]);
    let busy = client.mutex("busy");
    // Held until `top` shows it, so that every refresh shows a new holder.
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
        (lines[0].len(), lines[0][1], &lines[0][4..7]),
        (8, "still", &["0", "-", "0.0"][..])
    );
    assert!(!plain.contains('\x1b'));
}

fn longest_wait_is_shown() {
    let server = Server::start();
    let (url, client) = (server.url(), client(&server));
    let _still = client.mutex("still").lock().unwrap();
    let _held = client.fair_mutex("a").lock().unwrap();
    let _out = client.semaphore("s", 1).acquire().unwrap();
    let began = Instant::now();
    let _waits = Program::run(&url, &["--fair"], "true");
    eventually(WAIT_LIMIT, || {
        client.fair_mutex("a").waiting().unwrap() == 1
    });
    let _waits = Program::start(&url, &["run", "--permits", "1", "s", "--", "true"]);
    eventually(WAIT_LIMIT, || {
        client.semaphore("s", 1).waiting().unwrap() == 1
    });

    let mut top = Program::start(&url, &["top", "--json", "--interval", "20ms"]);
    let mut wait_of = |name: &str| loop {
        let object = json(&top.next_line());
        if object["name"] == name {
            return object["longest_wait_ms"].clone();
        }
    };
    assert_eq!(wait_of("still"), "null");
    for name in ["a", "s"] {
        // It grows as the call goes on waiting.
        while wait_of(name).parse::<u64>().unwrap() < 500 {}
        let longest: u64 = wait_of(name).parse().unwrap();
        let most = began.elapsed() + ms(1_000);
        assert!(
            u128::from(longest) < most.as_millis(),
            "{longest} ms, {most:?}"
        );
    }
    let plain = text(&url, &["top", "a", "--count", "1"]);
    let cells: Vec<&str> = plain.trim_end().split('\t').collect();
    let longest = cells[5]
        .strip_suffix('s')
        .and_then(|wait| wait.parse::<f64>().ok());
    assert!(longest.is_some_and(|longest| longest >= 0.5), "{plain}");
}

fn longest_wait_of_a_call_that_backs_off_is_shown() {
    let server = Server::start();
    let (url, client) = (server.url(), client(&server));
    let fair = client.fair_mutex("a");
    let held = fair.lock().unwrap();
    thread::scope(|scope| {
        let backoff = Backoff::new(ms(1), ms(10));
        let waiting = fair.clone().wait_policy(WaitPolicy::Backoff(backoff));
        let waiting = scope.spawn(move || drop(waiting.lock().unwrap()));
        wait_for_queue_length(&server, 1);
        let mut top = Program::start(&url, &["top", "--json", "--interval", "20ms"]);
        let is_shown = || json(&top.next_line())["longest_wait_ms"] != "null";
        eventually(WAIT_LIMIT, is_shown);
        drop(held);
        waiting.join().unwrap();
    });
}

fn outage_is_outlasted() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let _still = hold(&server);
    let mut top = Program::start(&proxy.url(), &["top", "--json", "--interval", "20ms"]);
    assert_eq!(json(&top.next_line())["name"], "a");
    proxy.set_all(Traffic::Cut);
    let mut errors = BufReader::new(top.process.stderr.take().unwrap());
    let mut output = String::new();
    errors.read_line(&mut output).unwrap();
    assert!(output.contains("the call to 127.0.0.1:"), "{output}");
    proxy.set_all(Traffic::Pass);
    let at = |line: String| json(&line)["at_ms"].parse::<u128>().unwrap();
    let now = std::time::SystemTime::now();
    let now = now
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_millis();
    while at(top.next_line()) <= now {}
}

fn damaged_fence_of_a_free_lock_is_outlasted() {
    let server = Server::start();
    let held = client(&server).mutex("a").lock().unwrap();
    let mut top = Program::start(&server.url(), &["top", "--json", "--interval", "20ms"]);
    assert_eq!(json(&top.next_line())["held"], "true");
    server.run("SET", &["leasehold:fence:{lock:a}", "no number"]);
    drop(held);
    let free = loop {
        let object = json(&top.next_line());
        if object["held"] == "false" {
            break object;
        }
    };
    assert_eq!(free["fencing_token"], "null");
}

fn terminal_is_refreshed_in_place() {
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
    // Closes the last open handle of the terminal's other end.
    drop(command);
    let mut shown = Vec::new();
    let _ = fs::File::from(terminal).read_to_end(&mut shown);
    let shown = String::from_utf8(shown).unwrap();
    assert_eq!(shown.matches("\x1b[H").count(), 2, "{shown:?}");
    assert!(shown.starts_with("\x1b[?1049h"), "{shown:?}");
    assert!(shown.ends_with("\x1b[?1049l"), "{shown:?}");
    assert_eq!(shown.matches("NAME").count(), 2, "{shown:?}");
    assert!(shown.contains("1 held, 0 waiting"), "{shown:?}");
}

/// Adds this number of keys that are no locks: some thousands at a time, for slow machines.
fn add_other_keys(server: &Server, number: u32) {
    let script = "for n = ARGV[1], ARGV[2] do redis.call('SET', 'other:' .. n, 'x') end";
    for first in (1..=number).step_by(5_000) {
        let last = number.min(first + 4_999);
        server.run(
            "EVAL",
            &[script, "0", &first.to_string(), &last.to_string()],
        );
    }
}

/// Returns how long the server was busy with scans, in µs.
fn scan_time(server: &Server) -> u128 {
    let Some(counts) = server.info("commandstats", "cmdstat_scan") else {
        return 0;
    };
    let time = counts
        .split(',')
        .find_map(|count| count.strip_prefix("usec="));
    time.and_then(|time| time.parse().ok()).unwrap()
}

fn scans_leave_the_server_its_time() {
    let server = Server::start();
    add_other_keys(&server, 150_000);
    let client = client(&server);
    let mutex = client.mutex("a");
    let held = mutex.lock().unwrap();
    let began = Instant::now();
    let mut top = Program::start(&server.url(), &["top", "--json", "--interval", "20ms"]);
    assert_eq!(json(&top.next_line())["held"], "true");
    // Known names are asked for at each refresh, in the middle of a scan.
    let scans = server.calls(&["scan"]);
    drop(held);
    while json(&top.next_line())["held"] == "true" {}
    let _held = mutex.lock().unwrap();
    while json(&top.next_line())["held"] == "false" {}
    let pages_of_all_scans = server.calls(&["scan"]) - scans;
    assert!(pages_of_all_scans < 150, "{pages_of_all_scans}");
    // A new name is found by the next scan.
    let _new = client.mutex("b").lock().unwrap();
    while json(&top.next_line())["name"] != "b" {}
    let (busy, elapsed) = (scan_time(&server), began.elapsed().as_micros());
    assert!(busy * 20 <= elapsed, "{busy} of {elapsed} µs");
}

fn signal_ends_top_while_it_scans_or_redis_hangs() {
    let server = Server::start();
    add_other_keys(&server, 20_000);
    let _held = hold(&server);
    let proxy = Proxy::new(&server);
    for (delay, traffic) in [(ms(100), Traffic::Pass), (ms(0), Traffic::Stall)] {
        proxy.delay(ms(0), ms(0));
        proxy.set_all(Traffic::Pass);
        let command = [
            PROGRAM,
            "top",
            "--command-timeout",
            "8s",
            "--interval",
            "100ms",
        ];
        let mut terminal = Terminal::start(&command, &[("REDIS_URL", &proxy.url())]);
        terminal.wait_for("1 held, 0 waiting");
        proxy.delay(ms(0), delay);
        proxy.set_all(traffic);
        // The calls of the next refresh are under way.
        let_pass(ms(300));
        let typed = Instant::now();
        terminal.type_keys("\x03");
        let (status, shown) = terminal.wait();
        assert!(typed.elapsed() < ms(1_000), "{:?}", typed.elapsed());
        assert_eq!(status.code(), Some(130), "{shown}");
        assert!(shown.ends_with("\x1b[?1049l"), "{shown:?}");
    }
}
