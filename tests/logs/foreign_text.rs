//! Promise: text from Redis never reaches a terminal unescaped, whether in an error, a `Debug`
//! text, a log record or the output of the program `leasehold`: no control or bidirectional
//! characters.

use leasehold::{Client, Error, Health, Name};
use support::{FakeServer, Server, builder, client, log_records, ms};

support::tests![
    #[cfg(all(feature = "cli", unix))]
    program::the_program_prints_a_servers_errors_harmlessly,
    an_error_with_a_servers_own_text_is_harmless,
    names_are_escaped_in_display_and_debug,
    a_foreign_holder_is_shown_harmlessly,
    refusals_are_shown_harmlessly,
    an_error_about_a_key_is_harmless,
    a_refused_subscription_is_logged_harmlessly,
    a_host_that_a_server_names_is_shown_harmlessly,
    #[cfg(all(feature = "cli", unix))]
    program::the_program_prints_a_foreign_holder_harmlessly
];

const UUID: &str = "123e4567-e89b-12d3-a456-426614174000";

/// Returns every character that must not be printed.
fn hostile() -> impl Iterator<Item = char> {
    let ranges = [
        ('\0', '\x1f'),
        ('\x7f', '\u{9f}'),
        ('\u{61c}', '\u{61c}'),
        ('\u{200e}', '\u{200f}'),
        ('\u{2028}', '\u{202e}'),
        ('\u{2066}', '\u{2069}'),
    ];
    ranges.into_iter().flat_map(|(first, last)| first..=last)
}

/// Returns all hostile characters: short enough for a name that is printed whole.
fn all_hostile() -> String {
    hostile().collect()
}

/// Returns the hostile characters that a line of a reply can hold.
fn hostile_line() -> String {
    hostile().filter(|c| !"\r\n".contains(*c)).collect()
}

#[track_caller]
fn assert_harmless(text: &str) {
    let found = hostile().find(|c| text.contains(*c));
    assert_eq!(found, None, "in {text:?}");
}

/// Checks every text of an error that a program may print.
#[track_caller]
fn assert_harmless_error(error: &Error) {
    assert_harmless(&format!("{error:?}"));
    let mut next: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = next {
        assert_harmless(&error.to_string());
        next = error.source();
    }
    if let Error::Refused { answer, .. } = error {
        assert_harmless(answer);
    }
    if let Error::WrongType { key, .. } | Error::BadFence { key, .. } = error {
        assert_harmless(key);
    }
}

/// Checks each line of a health report.
#[track_caller]
fn assert_harmless_health(health: &Health) {
    assert_harmless(&format!("{health:?}"));
    health.to_string().lines().for_each(assert_harmless);
}

fn set(server: &Server, key: &[u8], value: &[u8]) {
    let mut set = redis::cmd("SET");
    set.arg(key).arg(value).arg("PX").arg(600_000);
    set.exec(&mut server.connection()).unwrap();
}

/// Starts a server whose locks have hostile names and values, as holder ids and as invalid UTF-8.
fn server_with_foreign_locks() -> Server {
    let server = Server::start();
    let name = [b"lock:", all_hostile().as_bytes()].concat();
    set(
        &server,
        &name,
        format!("{}:{UUID}", all_hostile()).as_bytes(),
    );
    let name = [&name[..], b"\xff\xc3"].concat();
    set(
        &server,
        &name,
        &[all_hostile().as_bytes(), b"\xff"].concat(),
    );
    // Only the first bytes of a foreign value are shown, so each character begins one.
    for c in hostile() {
        let name = format!("lock:{c}");
        set(&server, name.as_bytes(), format!("{c}\u{ff}").as_bytes());
    }
    server
}

#[track_caller]
fn assert_log_harmless() {
    for line in log_records() {
        assert_harmless(&line.message);
        for (_, value) in &line.pairs {
            assert_harmless(value);
        }
    }
}

fn names_are_escaped_in_display_and_debug() {
    assert_harmless("tisch-ü \\u{202e} \\x1b");
    let all = all_hostile();
    assert!(all.contains('\u{1b}') && all.contains('\u{9b}') && all.contains('\u{202e}'));
    let name = leasehold::Name::from(&all);
    assert_harmless(&format!("{name} {name:?}"));
}

fn a_foreign_holder_is_shown_harmlessly() {
    log_records();
    let server = server_with_foreign_locks();
    let client = client(&server.url());
    let held = client.list("").unwrap();
    assert_eq!(held.len(), hostile().count() + 2);
    assert_harmless(&format!("{held:?}"));
    let mutex = client.mutex(all_hostile());
    let holder = mutex.inspect().unwrap().unwrap();
    assert_harmless(&format!("{holder:?}"));
    let id = holder.holder_id().unwrap();
    assert_harmless(&format!("{id} {id:?} {}", id.short()));
    assert_eq!(
        id.as_str(),
        format!("{}:{UUID}", all_hostile()),
        "the value is unchanged"
    );
    assert_eq!(id.owner(), all_hostile(), "the value is unchanged");
    for held in &held {
        assert!(client.mutex(held.name()).force_unlock().unwrap());
    }
    let forced = log_records();
    assert!(forced.iter().any(|line| line.mentions("forced")));
    assert_log_harmless();
}

fn an_error_about_a_key_is_harmless() {
    let server = Server::start();
    let client = client(&server.url());
    let key = [b"lock:", all_hostile().as_bytes()].concat();
    redis::cmd("LPUSH")
        .arg(&key)
        .arg("x")
        .exec(&mut server.connection())
        .unwrap();
    assert_harmless_error(&client.mutex(all_hostile()).try_lock().unwrap_err());
    let fence = [b"leasehold:fence:{lock:x", all_hostile().as_bytes(), b"}"].concat();
    set(&server, &fence, b"nonsense");
    let error = client.mutex(format!("x{}", all_hostile())).try_lock();
    assert_harmless_error(&error.unwrap_err());
}

/// Returns a server that replies with this error to a command, or to every script.
fn server_with_error(error: &'static str, command: &'static str) -> FakeServer {
    FakeServer::start(move |request| {
        let name = request.name();
        let is_script = name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        let is_refused = name == command || command == "script" && is_script;
        is_refused.then(|| format!("-{error} {}\r\n", hostile_line()).into_bytes())
    })
}

fn an_error_with_a_servers_own_text_is_harmless() {
    log_records();
    for (error, command) in [
        ("ERR", "script"),
        ("NOPERM", "script"),
        ("OOM", "script"),
        ("READONLY", "script"),
        ("BUSY", "script"),
        ("\u{1b}[2J", "script"),
        ("ERR", "SELECT"),
        ("ERR", "AUTH"),
        ("WRONGPASS", "AUTH"),
        ("WRONGPASS", "HELLO"),
        ("ERR", "CLIENT"),
    ] {
        let server = server_with_error(error, command);
        let url = format!("redis://u:p@127.0.0.1:{}/3", server.port());
        let client = builder(&url).breaker(2).build().unwrap();
        for _ in 0..3 {
            assert_harmless_error(&client.mutex("a").try_lock_for(ms(50)).unwrap_err());
        }
        assert_harmless_health(&client.health());
        assert_harmless_error(&client.shared_stats().map_or_else(|e| e, |_| Error::Closed));
    }
    assert_log_harmless();
}

fn refusals_are_shown_harmlessly() {
    let server = server_with_foreign_locks();
    let client = client(&server.url());
    let mut names: Vec<Name> = hostile().map(|c| Name::from(c.to_string())).collect();
    names.push(all_hostile().into());
    names.push([all_hostile().as_bytes(), b"\xff\xc3"].concat().into());
    for name in names {
        let taken = client.mutex(name).try_lock().unwrap().unwrap_err();
        assert_harmless(&taken.to_string());
        assert_harmless(&format!("{taken:?}"));
    }
}

fn a_refused_subscription_is_logged_harmlessly() {
    log_records();
    for command in ["SUBSCRIBE", "PUBLISH"] {
        let server = FakeServer::start(move |request| match request.name() {
            name if name == command => Some(format!("-NOPERM {}\r\n", hostile_line()).into_bytes()),
            name if name == "acquire" => Some(b"*4\r\n:0\r\n$1\r\nx\r\n:60000\r\n:-1\r\n".to_vec()),
            _ => None,
        });
        // The server would not reply to a call that joins a queue.
        let client = Client::builder().url(server.url()).queues(false);
        let client = client.build().unwrap();
        assert!(client.mutex("a").try_lock_for(ms(700)).unwrap().is_err());
    }
    assert!(log_records().iter().any(|line| line.mentions("NOPERM")));
    assert_log_harmless();
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn a_host_that_a_server_names_is_shown_harmlessly() {
    log_records();
    let host = hostile_line();
    let slots = format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n{}:7\r\n", bulk(&host));
    let node = FakeServer::start(move |request| {
        (request.name() == "CLUSTER").then(|| slots.clone().into_bytes())
    });
    let place = format!("*2\r\n{}{}", bulk(&hostile_line()), bulk("7"));
    let sentinel = FakeServer::start(move |request| {
        (request.name() == "SENTINEL").then(|| place.clone().into_bytes())
    });
    for url in [
        format!("redis+cluster://127.0.0.1:{}", node.port()),
        format!("redis+sentinel://127.0.0.1:{}/m", sentinel.port()),
    ] {
        let client = client(&url);
        assert_harmless_error(&client.mutex("a").try_lock().unwrap_err());
        assert_harmless_health(&client.health());
    }
    assert_log_harmless();
}

#[cfg(all(feature = "cli", unix))]
mod program {
    use std::process::{Command, Output};

    use super::*;

    fn run(url: &str, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        command.env("REDIS_URL", url).args(args).output().unwrap()
    }

    #[track_caller]
    fn assert_harmless_output(output: &Output, needs_json: bool) -> String {
        let stdout = String::from_utf8(output.stdout.clone()).unwrap();
        for line in stdout.lines() {
            for cell in line.split('\t') {
                assert_harmless(cell);
            }
            assert!(!needs_json || line.starts_with("{\"name\":"), "{line}");
        }
        let stderr = String::from_utf8(output.stderr.clone()).unwrap();
        for line in stderr.lines() {
            assert!(
                line.starts_with("leasehold: "),
                "each line has the prefix: {line:?}"
            );
            assert_harmless(line);
        }
        stdout
    }

    /// Decodes the characters of a JSON string.
    fn unescaped(json: &str) -> String {
        let mut units = Vec::new();
        let mut rest = json;
        while let Some(c) = rest.chars().next() {
            let escaped = rest.strip_prefix("\\u");
            let (unit, length) = match escaped {
                Some(digits) => (u16::from_str_radix(&digits[..4], 16).unwrap(), 6),
                None => (c as u16, c.len_utf8()),
            };
            units.push(unit);
            rest = &rest[length..];
        }
        String::from_utf16(&units).unwrap()
    }

    pub(super) fn the_program_prints_a_foreign_holder_harmlessly() {
        let server = server_with_foreign_locks();
        // A command-line argument cannot hold NUL.
        let name: String = all_hostile().chars().filter(|c| *c != '\0').collect();
        let owner = format!("{}:{UUID}", all_hostile());
        set(&server, format!("lock:{name}").as_bytes(), owner.as_bytes());
        let commands: [&[&str]; 3] = [&["list"], &["status", &name], &["top", "--count", "1"]];
        for command in commands {
            let plain = run(&server.url(), command);
            assert!(plain.status.success(), "{plain:?}");
            assert!(assert_harmless_output(&plain, false).contains("\\u{202e}"));
            let json = run(&server.url(), &[command, &["--json"]].concat());
            assert!(json.status.success(), "{json:?}");
            let json = assert_harmless_output(&json, true);
            let owners = json.split("\"owner\":\"").skip(1);
            let owners: Vec<_> = owners.map(|rest| rest.split('"').next().unwrap()).collect();
            assert!(!owners.is_empty());
            for owner in owners {
                assert_eq!(unescaped(owner), all_hostile(), "the value is unchanged");
            }
        }
        let forced = run(&server.url(), &["unlock", "--force", &name]);
        assert!(forced.status.success(), "{forced:?}");
        assert_harmless_output(&forced, false);
    }

    pub(super) fn the_program_prints_a_servers_errors_harmlessly() {
        for error in ["ERR", "READONLY", "NOPERM"] {
            let server = FakeServer::start(move |request| {
                let has_error = !matches!(request.name().as_str(), "CLIENT" | "SELECT");
                has_error.then(|| format!("-{error} {}\r\n", hostile_line()).into_bytes())
            });
            let commands: [&[&str]; 5] = [
                &["list"],
                &["status", "a"],
                &["top", "--count", "1"],
                &["unlock", "--force", "a"],
                &["run", "a", "--", "true"],
            ];
            for command in commands {
                let output = run(&server.url(), command);
                assert!(!output.status.success(), "{output:?}");
                assert!(!output.stderr.is_empty());
                assert_harmless_output(&output, false);
            }
        }
    }
}
