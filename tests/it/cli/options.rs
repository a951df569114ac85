//! Promise: options do what the help says, and messages say what an operator needs.

use std::fs;
use std::time::Instant;

use leasehold::Client;
use support::{FakeSentinel, Server, TempDir, eventually, free_port, ms, sentinel_url};
#[cfg(feature = "tls")]
use support::{certificate_path, tls_server};

use super::{Program, WAIT_LIMIT, client, code, delete, hold, output, program, text};

support::tests![
    wait_is_over_in_time_while_redis_is_silent,
    command_needs_no_dashes_unless_it_begins_with_one,
    word_after_the_dashes_is_no_name,
    default_server_that_is_unreachable_is_named_as_the_default,
    times_may_have_decimals,
    quiet_and_verbose_set_what_is_printed,
    loser_that_exits_0_prints_nothing,
    loser_learns_who_holds_the_lock_and_for_how_long,
    several_names_are_held_together,
    fair_runs_are_served_in_their_order,
    readers_share_a_lock_and_a_writer_has_it_alone,
    timeouts_are_options,
    #[cfg(feature = "tls")]
    certificates_are_options,
    #[cfg(feature = "tls")]
    tls_of_sentinels_is_an_option,
    quorum_is_one_url,
    status_exit_code_tells_whether_a_lock_is_held,
    status_exit_code_is_77_if_redis_refuses_the_query_for_permits,
    usage_error_is_escaped,
    unlock_shows_the_holder_that_it_removed,
    unlock_tells_that_permits_of_a_semaphore_are_out,
    announced_address_is_replaced_by_an_option,
    top_in_a_pipe_prints_the_columns_that_its_help_lists
];

#[track_caller]
fn errors(url: &str, args: &[&str]) -> String {
    String::from_utf8(output(url, args).stderr).unwrap()
}

fn command_needs_no_dashes_unless_it_begins_with_one() {
    let server = Server::start();
    let url = server.url();
    assert_eq!(code(&url, &["run", "a", "sh", "-c", "exit 3"]), 3);
    assert_eq!(code(&url, &["run", "a", "--", "sh", "-c", "exit 3"]), 3);
    for args in [&["run", "a", "-c"][..], &["run", "a"], &["run", "-n", "a"]] {
        assert_eq!(code(&url, args), 64, "{args:?}");
        let errors = errors(&url, args);
        assert!(errors.contains("-- "), "{errors}");
    }
}

fn word_after_the_dashes_is_no_name() {
    let server = Server::start();
    let url = server.url();
    for args in [
        &["run", "--", "echo", "hello"][..],
        &["run", "--fair", "--", "echo"],
    ] {
        assert_eq!(code(&url, args), 64, "{args:?}");
        let said = errors(&url, args);
        let expected = "leasehold: the name is missing: leasehold run NAME -- CMD\n";
        assert_eq!(said, expected, "{args:?}");
    }
}

fn default_server_that_is_unreachable_is_named_as_the_default() {
    let said = |url: &str, args: &[&str]| {
        let mut command = program(url);
        // The default port of this machine may be in use.
        command
            .env("REDIS_PORT", free_port().to_string())
            .env_remove("REDIS_URLS");
        let output = command.args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(69), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let end = " (the default: none of REDIS_URL, REDIS_URLS, REDIS_HOST is set)\n";
    for args in [&["status", "a"][..], &["run", "a", "--no-wait", "true"]] {
        let said = said("", args);
        assert!(said.ends_with(end), "{said}");
    }
    let url = format!("redis://127.0.0.1:{}", free_port());
    for (url, args) in [(&*url, &["list"][..]), ("", &["list", "--url", &url])] {
        let said = said(url, args);
        assert!(!said.contains("default"), "{said}");
    }
}

fn times_may_have_decimals() {
    let server = Server::start();
    let name = "leasehold";
    let args = ["run", name, "--ttl", "0.5m", "--wait", "1.5s", "true"];
    assert_eq!(code(&server.url(), &args), 0);
}

fn quiet_and_verbose_set_what_is_printed() {
    let server = Server::start();
    let url = server.url();
    assert_eq!(errors(&url, &["run", "b", "true"]), "");
    let said = errors(&url, &["-v", "run", "b", "true"]);
    assert!(said.contains("leasehold: acquired b"), "{said}");
    assert!(said.contains("leasehold: released b"), "{said}");

    let _held = hold(&server);
    let loser = ["run", "a", "--no-wait", "--quiet", "true"];
    assert_eq!((code(&url, &loser), errors(&url, &loser)), (75, "".into()));
    // An error is never left out.
    let unreachable = format!("redis://127.0.0.1:{}", free_port());
    let said = errors(&unreachable, &["run", "a", "--no-wait", "-q", "true"]);
    assert!(said.starts_with("leasehold: "), "{said}");
}

fn loser_that_exits_0_prints_nothing() {
    let server = Server::start();
    let _held = hold(&server);
    let args = ["run", "a", "--no-wait", "--not-acquired-exit", "0", "false"];
    let output = output(&server.url(), &args);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        output.stdout.is_empty() && output.stderr.is_empty(),
        "{output:?}"
    );
}

fn loser_learns_who_holds_the_lock_and_for_how_long() {
    let server = Server::start();
    let url = server.url();
    let holder = Client::builder().url(&url).owner("web-7").build().unwrap();
    let _held = holder.mutex("a").lock().unwrap();
    let args = ["run", "-n", "free", "-n", "a", "--no-wait", "--", "true"];
    let said = errors(&url, &args);
    assert!(said.contains("a is held by web-7, for "), "{said}");
    assert!(said.contains("; at most "), "{said}");

    // Another program's value may be a secret, and its lock may have no expiry.
    server.run("SET", &["lock:b", "s3cret"]);
    let said = errors(&url, &["run", "b", "--no-wait", "true"]);
    let expected = "b is held by another program; without an end";
    assert!(said.contains(expected), "{said}");
}

fn several_names_are_held_together() {
    let server = Server::start();
    let url = server.url();
    let script = "echo \"$LEASEHOLD_NAME_1 $LEASEHOLD_NAME_2 $LEASEHOLD_NAME_3.\"
        echo \"$LEASEHOLD_FENCING_TOKEN_1\"; echo \"$LEASEHOLD_FENCING_TOKEN_2\"; exec sleep 300";
    let args = [
        "run",
        "-n",
        "x,y",
        "--name",
        "b",
        "-n",
        "x,y",
        "--max-hold",
        "60s",
        "--",
    ];
    let mut program = Program::start(&url, &[&args[..], &["sh", "-c", script]].concat());
    assert_eq!(program.next_line(), "x,y b .");
    for name in ["x,y", "b"] {
        let token = client(&server).mutex(name).last_fencing_token().unwrap();
        assert_eq!(program.next_line(), token.unwrap().to_string());
        assert!(!server.is_free(name));
    }
    assert!(server.is_free("x") && server.is_free("y"));
    assert_eq!(code(&url, &["run", "b", "--no-wait", "true"]), 75);
    program.send(rustix::process::Signal::TERM);
    assert_eq!(program.code(), Some(143));
    assert!(server.is_free("x,y") && server.is_free("b"));
    assert_eq!(
        code(&url, &["run", "-n", "a", "-n", "b", "--fair", "--", "true"]),
        64
    );
}

fn fair_runs_are_served_in_their_order() {
    let server = Server::start();
    let directory = TempDir::create();
    let served = directory.path().join("served");
    let held = client(&server).fair_mutex("a").lock().unwrap();
    let mut runs = Vec::new();
    for n in 0..5 {
        let script = format!("echo {n} >>{}", served.display());
        runs.push(Program::run(&server.url(), &["--fair"], &script));
        eventually(WAIT_LIMIT, || {
            client(&server).fair_mutex("a").waiting().unwrap() == n + 1
        });
    }
    drop(held);
    for run in &mut runs {
        assert_eq!(run.code(), Some(0));
    }
    assert_eq!(fs::read_to_string(served).unwrap(), "0\n1\n2\n3\n4\n");
}

fn readers_share_a_lock_and_a_writer_has_it_alone() {
    let server = Server::start();
    let url = server.url();
    let script = "echo $LEASEHOLD_FENCING_TOKEN; exec sleep 300";
    let mut readers = [(); 2].map(|()| Program::run(&url, &["--read"], script));
    let tokens = readers.each_mut().map(Program::next_line);
    assert!(tokens.iter().all(|token| !token.is_empty()), "{tokens:?}");
    let writer = ["run", "a", "--write", "--no-wait", "true"];
    assert_eq!(code(&url, &writer), 75);
    let said = errors(&url, &writer);
    assert!(said.contains("a is held by readers"), "{said}");
    assert_eq!(code(&url, &["run", "a", "--no-wait", "true"]), 75);
    let status = text(&url, &["status", "a"]);
    assert!(status.contains("(readers)"), "{status}");
    let status = text(&url, &["status", "a", "--json"]);
    let shared = r#""owner":null,"holder":null,"#;
    assert!(
        status.contains(shared) && status.contains(r#""shared":true"#),
        "{status}"
    );
    for reader in &mut readers {
        reader.send(rustix::process::Signal::TERM);
        assert_eq!(reader.code(), Some(143));
    }

    let mut writer = Program::run(&url, &["--write"], script);
    writer.next_line();
    let reader = ["run", "a", "--read", "--no-wait", "true"];
    assert_eq!(code(&url, &reader), 75);
    writer.send(rustix::process::Signal::TERM);
    assert_eq!(writer.code(), Some(143));
    assert_eq!(code(&url, &reader), 0);
    let several = ["run", "-n", "a", "-n", "b", "--read", "--", "true"];
    assert_eq!(code(&url, &several), 64);
}

fn timeouts_are_options() {
    let server = Server::start();
    for (option, setting) in [
        ("--command-timeout", "command_timeout"),
        ("--connect-timeout", "connect_timeout"),
    ] {
        assert_eq!(code(&server.url(), &["status", "a", option, "1.5s"]), 0);
        let said = errors(&server.url(), &["status", "a", option, "0s"]);
        assert!(said.contains(setting), "{said}");
    }

    // Without the option, `run` waits for 10 s.
    let unreachable = format!("redis://127.0.0.1:{}", free_port());
    let began = Instant::now();
    let args = ["run", "a", "--unreachable-for", "0.2s", "true"];
    assert_eq!(code(&unreachable, &args), 69);
    assert!(began.elapsed() < ms(9_000), "{:?}", began.elapsed());
}

#[cfg(feature = "tls")]
fn certificates_are_options() {
    if Server::lacks_tls() {
        return;
    }
    let port = free_port();
    let _server = tls_server(port, "server");
    let url = format!("rediss://127.0.0.1:{port}");
    let [ca, cert, key] = ["ca.pem", "client.pem", "client.key"].map(certificate_path);
    let files = ["--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key];
    fn with<'a>(options: &[&'a str]) -> Vec<&'a str> {
        [&["run", "a", "--no-wait"], options, &["--", "true"]].concat()
    }
    assert_eq!(code(&url, &with(&files)), 0);
    assert_ne!(
        code(&url, &with(&files[..2])),
        0,
        "the server requires a certificate"
    );
    assert_ne!(
        code(&url, &with(&files[2..])),
        0,
        "the system does not trust the authority"
    );
    for wrong in [&files[2..4], &["--tls-ca", "/no/such/file"]] {
        assert_eq!(code(&url, &with(wrong)), 64, "{wrong:?}");
    }
    let said = errors(&url, &with(&["--tls-ca", "/no/such/file"]));
    assert!(said.contains("/no/such/file (--tls-ca)"), "{said}");
    assert_options_are_named(port, &files);
}

/// Messages name the options, and not the settings of the library.
#[cfg(feature = "tls")]
fn assert_options_are_named(port: u16, files: &[&str]) {
    let (encrypted, plain) = (
        format!("rediss://127.0.0.1:{port}"),
        "redis://127.0.0.1:1".to_owned(),
    );
    let old = ["version-1.pem", "version-1.key"].map(certificate_path);
    let old = ["--tls-cert", &old[0], "--tls-key", &old[1]];
    let key_as_ca = ["--tls-ca", files[5]];
    for (url, options, words) in [
        (&encrypted, &files[2..], "authority to --tls-ca"),
        (&encrypted, &files[..2], "set --tls-cert and --tls-key"),
        (
            &encrypted,
            &old,
            "--tls-cert: the certificate is X.509 version 1",
        ),
        (&encrypted, &key_as_ca, "--tls-ca contains no readable PEM"),
        (
            &plain,
            &files[..2],
            "--tls-ca (REDIS_TLS_CA) and --tls-cert",
        ),
        (
            &plain,
            &["--address-map", "a=b:1"],
            "--address-map: a is not host:port",
        ),
        (
            &plain,
            &["--password-file", files[1]],
            "--password-file is set, and the URL",
        ),
        (
            &plain,
            &["--sentinel-tls", "no"],
            "--sentinel-tls (REDIS_SENTINEL_TLS) needs",
        ),
    ] {
        let url = match options[0] {
            "--address-map" => "redis+cluster://127.0.0.1:1",
            "--password-file" => "redis://:x@127.0.0.1:1",
            _ => url,
        };
        let args = [&["run", "a", "--no-wait"], options, &["--", "true"]].concat();
        let said = errors(url, &args);
        assert!(said.contains(words), "{said}");
        assert!(
            !said.contains("ClientBuilder") && !said.contains("tls_"),
            "{said}"
        );
    }
}

#[cfg(feature = "tls")]
fn tls_of_sentinels_is_an_option() {
    if Server::lacks_tls() {
        return;
    }
    let port = free_port();
    let _master = tls_server(port, "server");
    let sentinel = FakeSentinel::naming(port, Some(1));
    let url = sentinel_url([sentinel.port()]).replace("redis+", "rediss+");
    let [ca, cert, key] = ["ca.pem", "client.pem", "client.key"].map(certificate_path);
    let files = ["--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key];
    let run = |tls: &str| {
        let option = format!("--sentinel-tls={tls}");
        let args = [
            &["run", "a", "--no-wait", &option],
            &files[..],
            &["--", "true"],
        ];
        code(&url, &args.concat())
    };
    assert_eq!(run("no"), 0);
    assert_eq!(run("yes"), 69, "the sentinel does not speak TLS");
    assert_eq!(run("maybe"), 64);
}

fn quorum_is_one_url() {
    let servers = [(); 3].map(|()| Server::start());
    let hosts = servers
        .each_ref()
        .map(|server| format!("127.0.0.1:{}", server.port()));
    let url = format!("redis+quorum://{}/", hosts.join(","));
    let mut program = Program::run(&url, &[], "echo ready; exec sleep 300");
    assert_eq!(program.next_line(), "ready");
    // The third is not asked if its connection opens late.
    let is_held = |server: &&Server| !server.is_free("a");
    eventually(WAIT_LIMIT, || servers.iter().filter(is_held).count() >= 2);
    assert_eq!(code(&url, &["run", "a", "--no-wait", "--", "true"]), 75);
    let status = text(&url, &["status", "a", "--json"]);
    assert!(status.contains("\"held\":true"), "{status}");
    program.send(rustix::process::Signal::TERM);
    assert_eq!(program.code(), Some(143));
    // A minority may be down.
    servers[2].pause();
    assert_eq!(code(&url, &["run", "a", "--", "true"]), 0);
}

fn status_exit_code_tells_whether_a_lock_is_held() {
    let server = Server::start();
    let url = server.url();
    let _held = hold(&server);
    for (args, expected) in [
        (&["status", "a"][..], 0),
        (&["status", "a", "--exit-code"], 1),
        (&["status", "a", "--exit-code", "--json"], 1),
        (&["status", "free", "--exit-code"], 0),
        (&["status", "free", "a", "--exit-code"], 1),
    ] {
        assert_eq!(code(&url, args), expected, "{args:?}");
    }
    delete(&server);
    assert_eq!(code(&url, &["status", "a", "--exit-code"]), 0);
}

fn status_exit_code_is_77_if_redis_refuses_the_query_for_permits() {
    let server = Server::start();
    let without_permits = [
        "SETUSER",
        "ann",
        "on",
        ">password",
        "&*",
        "+@all",
        "~lock:*",
        "~leasehold:queue:*",
        "~leasehold:places:*",
        "~leasehold:readers:*",
        "~leasehold:fence:*",
    ];
    server.run("ACL", &without_permits);
    let url = format!("redis://ann:password@127.0.0.1:{}", server.port());
    let args = ["status", "a", "--exit-code"];
    let output = output(&url, &args);
    assert_eq!(output.status.code(), Some(77), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("NAME"));
    assert_eq!(code(&url, &["status", "a"]), 0);
    let _held = hold(&server);
    assert_eq!(code(&url, &args), 1);
}

fn usage_error_is_escaped() {
    for args in [
        &["x\u{9b}2J\u{202e}"][..],
        &["run", "a", "--wait", "x\u{9b}2J\u{202e}", "--", "true"],
    ] {
        let output = output("", args);
        assert_eq!(output.status.code(), Some(64), "{args:?}");
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(
            errors.contains(r"x\u{9b}2J\u{202e}") && errors.lines().count() > 1,
            "{errors:?}"
        );
        assert!(!errors.contains(['\u{9b}', '\u{202e}']), "{errors:?}");
    }
}

fn unlock_shows_the_holder_that_it_removed() {
    let server = Server::start();
    let url = server.url();
    let guard = hold(&server);
    let said = errors(&url, &["unlock", "a", "--force"]);
    let holder = guard.holder_id().short().to_string();
    assert_eq!(
        said,
        format!("leasehold: released a, which {holder} held\n")
    );
    let said = errors(&url, &["unlock", "a", "--force"]);
    assert_eq!(said, "leasehold: a is not held\n");
}

fn unlock_tells_that_permits_of_a_semaphore_are_out() {
    let server = Server::start();
    let url = server.url();
    let client = client(&server);
    let permit = client.semaphore("a", 3).acquire().unwrap();
    let args = ["unlock", "a", "--force"];
    assert_eq!(code(&url, &args), 1);
    let expected = "leasehold: the lock a is not held; 1 permit of the semaphore a is out: they \
                    return on release, or after their ttl if the holder is dead; \
                    Semaphore::force_release takes them away\n";
    assert_eq!(errors(&url, &args), expected);
    drop(permit);
    assert_eq!(errors(&url, &args), "leasehold: a is not held\n");
}

fn announced_address_is_replaced_by_an_option() {
    let (server, port) = (Server::start(), free_port());
    let sentinel = FakeSentinel::naming(port, Some(1));
    let pair = format!("127.0.0.1:{port}=127.0.0.1:{}", server.port());
    for (args, expected, part) in [
        (vec!["--address-map", &pair], 0, ""),
        (
            vec!["--unreachable-for", "1s"],
            69,
            "the sentinels name 127.0.0.1",
        ),
        (vec!["--address-map", "127.0.0.1:1"], 64, "expected A=B"),
        (vec!["--address-map", "a=b:1"], 64, "a is not host:port"),
    ] {
        let mut command = program(&sentinel_url([sentinel.port()]));
        let output = command.args(["run", "a"]).args(&args).args(["--", "true"]);
        let output = output.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(expected), "{args:?}: {said}");
        assert!(said.contains(part), "{args:?}: {said}");
    }
}

fn top_in_a_pipe_prints_the_columns_that_its_help_lists() {
    let server = Server::start();
    let url = server.url();
    let guard = hold(&server);
    let help = text(&url, &["top", "--help"]);
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let columns = "Unix time in seconds, NAME, HOLDER, LEFT, WAITING, LONGEST, CHANGES/s, TOKEN.";
    assert!(help.contains(columns), "{help}");
    let line = text(&url, &["top", "--count", "1"]);
    let cells: Vec<_> = line.trim_end().split('\t').collect();
    assert_eq!(cells.len(), columns.split(", ").count(), "{line}");
    assert!(cells[0].parse::<u64>().is_ok(), "{line}");
    let holder = guard.holder_id().short().to_string();
    assert_eq!(cells[1..3], ["a", &holder], "{line}");
    assert!(cells[3].ends_with('s'), "{line}");
    assert_eq!(cells[4..7], ["0", "-", "0.0"], "{line}");
    assert_eq!(cells[7], guard.fencing_token().to_string(), "{line}");
}

/// An attempt that is in flight when the wait of 2.5 s is over would time out at 3 s or later. The
/// program must not wait for that.
fn wait_is_over_in_time_while_redis_is_silent() {
    let server = Server::start();
    let _held = hold(&server);
    let mut times = Vec::new();
    for _ in 0..3 {
        let args = [
            "run",
            "a",
            "--wait",
            "2500ms",
            "--not-acquired-exit",
            "0",
            "--",
            "true",
        ];
        let mut program = Program::start(&server.url(), &args);
        eventually(WAIT_LIMIT, || {
            client(&server).mutex("a").waiting().unwrap() >= 1
        });
        server.pause();
        let began = Instant::now();
        let code = program.code();
        assert!(matches!(code, Some(0 | 69)), "{code:?}");
        times.push(began.elapsed());
        server.resume();
    }
    let shortest = times.iter().min().unwrap();
    assert!(*shortest < ms(2_900), "{times:?}");
}
