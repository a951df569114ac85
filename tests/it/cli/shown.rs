//! Promise: `status`, `list` and `unlock` describe the locks.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use leasehold::{Client, MutexGuard};
use support::{Server, eventually};

use super::{Program, WAIT_LIMIT, client, code, hold, json, output, program, text};

support::tests![
    status_shows_holders_and_waiters,
    list_shows_held_locks,
    permits_limit_commands,
    permits_are_listed_behind_the_locks,
    permits_are_shown_by_status_and_top,
    unlock_needs_force,
    waiters_of_another_database_do_not_count,
    waiters_are_unknown_over_a_quorum
];

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
    eventually(WAIT_LIMIT, || holder.mutex("a").waiting().unwrap() == 1);
    let queued = client(&server).fair_mutex("a");
    std::thread::spawn(move || queued.try_lock_for(WAIT_LIMIT));
    eventually(WAIT_LIMIT, || holder.mutex("a").waiting().unwrap() == 2);

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
    assert_eq!(lines[0], ["NAME", "HOLDER", "LEFT", "WAITING", "TOKEN"]);
    assert!(lines[1][1].starts_with("web\\x1b[1m-7:"), "{plain}");
    assert_eq!(lines[1][0], "a");
    assert_eq!(lines[1][3..], ["2", &token]);
    assert_eq!(lines[2][..4], ["free", "-", "-", "0"]);
    assert_ne!(lines[2][4], "-", "the last token is still shown");
    assert_eq!(lines[3], ["never", "-", "-", "0", "-"]);
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
    assert_eq!(held["waiting"], "2");
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

/// Starts two commands of `web-7` that hold the two permits of `a`, and returns the name and the
/// token that each of them prints.
fn hold_both_permits(url: &str) -> ([Program; 2], [String; 2]) {
    let script = "echo $LEASEHOLD_NAME $LEASEHOLD_FENCING_TOKEN; sleep 60";
    let options = ["--permits", "2", "--owner", "web-7"];
    let mut programs = [(); 2].map(|()| Program::run(url, &options, script));
    let lines = programs.each_mut().map(Program::next_line);
    (programs, lines)
}

/// Returns the words of each line.
fn words(text: &str) -> Vec<Vec<String>> {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    text.lines().map(words).collect()
}

fn permits_limit_commands() {
    let server = Server::start();
    let url = server.url();
    let (_programs, lines) = hold_both_permits(&url);
    assert!(
        lines.iter().all(|line| line.starts_with("a 1")),
        "{lines:?}"
    );
    assert_ne!(lines[0], lines[1], "each has its own token");
    let run = |permits| ["run", "a", "--permits", permits, "--no-wait", "--", "true"];
    let refused = output(&url, &run("2"));
    assert_eq!(refused.status.code(), Some(75));
    let why = String::from_utf8(refused.stderr).unwrap();
    let out = "a has all 2 permits out; the first end in ";
    assert!(why.contains(out), "{why}");
    assert_eq!(code(&url, &run("3")), 0);
    assert_eq!(code(&url, &run("0")), 64, "0 permits are a usage error");
    assert!(server.is_free("a"), "the lock of that name is unrelated");
}

fn permits_are_listed_behind_the_locks() {
    let server = Server::start();
    let url = server.url();
    let (_programs, _) = hold_both_permits(&url);
    let _guard = client(&server).mutex("b").lock().unwrap();
    let listed = text(&url, &["list"]);
    let lines = words(&listed);
    assert_eq!((&*lines[1][0], lines[2].len()), ("b", 0), "{listed}");
    assert_eq!(lines[3], ["SEMAPHORE", "HOLDER", "PERMITS", "LEFT"]);
    assert_eq!(
        (lines.len(), &*lines[4][0], &*lines[4][2]),
        (6, "a", "1"),
        "{listed}"
    );
    assert!(lines[4][1].starts_with("web-7:"), "{listed}");
    assert_eq!(text(&url, &["list", "b"]).lines().count(), 2);
    let objects: Vec<_> = text(&url, &["list", "--json", "a"])
        .lines()
        .map(json)
        .collect();
    assert_eq!(objects.len(), 2);
    assert_eq!([&objects[0]["name"], &objects[0]["permits"]], ["a", "1"]);
    assert_eq!(objects[0]["owner"], "web-7");
    assert!(objects[0]["holder"].starts_with("web-7:"));
}

fn permits_are_shown_by_status_and_top() {
    let server = Server::start();
    let url = server.url();
    let (_programs, _) = hold_both_permits(&url);
    let status = words(&text(&url, &["status", "a", "never"]));
    assert_eq!(status[1][..2], ["never", "-"], "no line about the lock `a`");
    let header = ["SEMAPHORE", "HOLDER", "PERMITS", "LEFT", "WAITING"];
    assert_eq!(status[3], header);
    assert_eq!((status.len(), &*status[4][4]), (6, "0"), "{status:?}");
    let status = words(&text(&url, &["status", "a"]));
    assert_eq!(status[0], header);
    assert_eq!(status.len(), 3, "{status:?}");
    let objects: Vec<_> = text(&url, &["status", "--json", "a"])
        .lines()
        .map(json)
        .collect();
    assert_eq!((objects.len(), &*objects[0]["held"]), (3, "false"));
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
    assert!(guard.is_held() && !server.is_free("a"));
    assert_eq!(code(&url, &["unlock", "a", "--force"]), 0);
    assert!(server.is_free("a"));
    assert_eq!(code(&url, &["unlock", "a", "--force"]), 1);
}

/// Pub/sub has no databases: all subscribers of the channel would count.
fn waiters_of_another_database_do_not_count() {
    let server = Server::start();
    let url = server.url();
    let other_url = format!("{url}/1");
    let _here = hold(&server);
    let other = Client::open(&other_url).unwrap();
    let _there = other.mutex("a").lock().unwrap();
    let _waits = Program::run(&other_url, &[], "true");
    eventually(WAIT_LIMIT, || other.mutex("a").waiting().unwrap() == 1);
    let channel = "lock_release:a";
    eventually(WAIT_LIMIT, || server.subscribers(channel) == 1);

    for (url, expected) in [(&url, "0"), (&other_url, "1")] {
        let status = json(text(url, &["status", "a", "--json"]).trim_end());
        assert_eq!(status["waiting"], expected);
        let top = json(text(url, &["top", "--json", "--count", "1"]).trim_end());
        assert_eq!(top["waiting"], expected);
        let lines = text(url, &["status", "a"]);
        let cells: Vec<&str> = lines.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(cells[3], expected, "{lines}");
    }
    assert_eq!(client(&server).mutex("a").waiting().unwrap(), 0);
}

fn waiters_are_unknown_over_a_quorum() {
    let servers = [(); 3].map(|()| Server::start());
    let ports = servers
        .each_ref()
        .map(|it| format!("127.0.0.1:{}", it.port()));
    let url = format!("redis+quorum://{}", ports.join(","));
    let lock = Client::open(&url).unwrap().mutex("a");
    let _held = lock.lock().unwrap();
    let status = text(&url, &["status", "a"]);
    let cells: Vec<&str> = status.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(cells[3], "-", "{status}");
    let status = json(
        text(&url, &["status", "a", "--json"])
            .lines()
            .next()
            .unwrap(),
    );
    assert_eq!(status["waiting"], "null");
    let top = text(&url, &["top", "--count", "1"]);
    let cells: Vec<&str> = top.trim_end().split('\t').collect();
    assert_eq!(cells[4..6], ["-", "-"], "{top}");
}
