//! Promise: `leasehold run` exits with the code of its command, or one that says why it did not
//! run.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use support::{FakeServer, Recorder, Server, TempDir, eventually, free_port, ms};

use super::{PROGRAM, Program, WAIT_LIMIT, client, code, delete, hold, output, program};

support::tests![
    usage_outage_and_refusal_have_their_exit_codes,
    wait_that_ends_with_an_open_breaker_exits_69,
    run_that_does_not_wait_for_the_lock_can_wait_for_redis,
    held_lock_is_waited_for_only_as_long_as_asked,
    exit_code_is_that_of_the_command,
    exit_code_is_that_of_the_command_if_its_parent_ignores_children,
    script_without_an_interpreter_line_runs,
    errors_that_may_pass_exit_69_and_others_77,
    lock_that_another_program_replaced_counts_as_lost,
    output_that_cannot_be_written_has_its_exit_codes,
    command_gets_token_and_name_in_its_environment,
    command_gets_no_variables_of_an_outer_lock,
    socket_and_watchdog_of_the_program_are_the_commands,
    program_that_gets_a_socket_fails_with_its_exit_codes
];

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
        assert!(server.is_free("a"), "{script}");
    }
    for (command, expected) in [
        ("/no/such/program", 127),
        ("no-such-program", 127),
        ("/", 126),
    ] {
        let args = ["run", "a", "--min-hold", "60s", "--", command];
        assert_eq!(code(&url, &args), expected, "{command}");
        assert!(server.is_free("a"), "the command did not run: {command}");
    }
}

fn exit_code_is_that_of_the_command_if_its_parent_ignores_children() {
    let server = Server::start();
    for options in [&[][..], &["--foreground"]] {
        let mut program = Command::new("env");
        program.args(["--ignore-signal=CHLD", PROGRAM, "--url", &server.url()]);
        program.args(["run", "a"]).args(options);
        program.args(["--", "sh", "-c", "exit 7"]);
        assert_eq!(program.status().unwrap().code(), Some(7), "{options:?}");
    }
}

/// `env` runs such a script with a shell.
fn script_without_an_interpreter_line_runs() {
    let server = Server::start();
    let directory = TempDir::create();
    let script = directory.write_executable("script-of-a-test", "echo \"$0 $*\"; exit 9\n");
    let path = format!("/no/such:{}:/bin:/usr/bin", directory.path().display());
    let names = [script.as_os_str(), OsStr::new("script-of-a-test")];
    for (name, option) in names
        .iter()
        .flat_map(|name| [(name, "--"), (name, "--foreground")])
    {
        let mut expected = Command::new("env");
        let expected = expected.arg(name).args(["one", "two"]).env("PATH", &path);
        let expected = expected.output().unwrap();
        let mut command = program(&server.url());
        command.args(["run", "a", option]).arg(name);
        let output = command.args(["one", "two"]).env("PATH", &path).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(9), "{output:?}");
        assert_eq!(output.stdout, expected.stdout, "{output:?}");
        assert!(server.is_free("a"));
    }
}

fn lock_that_another_program_replaced_counts_as_lost() {
    let server = Server::start();
    let script = "echo ready; read line; exit 0";
    let mut process = program(&server.url())
        .args(["run", "a", "--ttl", "60s", "--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let end_of_input = process.stdin.take();
    let lines = BufReader::new(process.stdout.take().unwrap());
    let mut program = Program { process, lines };
    assert_eq!(program.next_line(), "ready");
    delete(&server);
    server.run("RPUSH", &["lock:a", "of another program"]);
    drop(end_of_input);
    assert_eq!(program.code(), Some(79));
    let errors = program.errors();
    let said = "the lock was lost before the command ended: the key lock:a";
    assert!(errors.contains(said), "{errors}");
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
        &["run", "a", "--max-hold", "0s", "--", "true"],
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

fn errors_that_may_pass_exit_69_and_others_77() {
    let server = Server::start();
    let _guard = server.client().mutex("a").lock().unwrap();
    let proxy = Recorder::to(server.port());
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let mut scripts = 0;
    proxy.replace(move |request| {
        let is_script = request.words[0].starts_with(b"EVAL");
        scripts += u32::from(is_script);
        // The first two find out that the server lacks the script, and that the lock is held.
        (is_script && scripts > 2).then(|| "-ERR upstream failure".to_owned())
    });
    let args = ["--unreachable-for", "1s", "run", "a", "--", "true"];
    assert_eq!(code(&url, &args), 69);
    let never = FakeServer::start(|request| {
        let is_script = request.words[0].starts_with(b"EVAL");
        is_script.then(|| b"-ERR upstream failure\r\n".to_vec())
    });
    assert_eq!(code(&never.url(), &["run", "a", "--", "true"]), 77);
}

/// The breaker opens during the wait, after five timeouts of 1 s each.
fn wait_that_ends_with_an_open_breaker_exits_69() {
    let server = Server::start();
    server.pause();
    let args = ["run", "a", "--wait", "5500ms", "--", "true"];
    assert_eq!(code(&server.url(), &args), 69);
}

fn output_that_cannot_be_written_has_its_exit_codes() {
    let server = Server::start();
    let _held = hold(&server);
    for args in [&["list"][..], &["status", "a"], &["top", "--count", "1"]] {
        let written_to = |output: Stdio| {
            let mut command = program(&server.url());
            let command = command.args(args).stdout(output).stderr(Stdio::null());
            command.status().unwrap().code()
        };
        // Only Linux has this device.
        if let Ok(full) = fs::OpenOptions::new().write(true).open("/dev/full") {
            assert_eq!(written_to(full.into()), Some(74), "{args:?}");
        }
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(written_to(writer.into()), Some(141), "{args:?}");
    }
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

fn command_gets_no_variables_of_an_outer_lock() {
    let server = Server::start();
    let mut command = program(&server.url());
    for name in ["NAME", "FENCING_TOKEN", "NAME_3", "FENCING_TOKEN_3"] {
        command.env(format!("LEASEHOLD_{name}"), "outer");
    }
    command.env("LEASEHOLD_NAMES", "of the user");
    command.args(["run", "-n", "a", "-n", "b", "--", "env"]);
    let printed = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let variables = printed.lines().filter_map(|line| line.split_once('='));
    let mut names: Vec<&str> = variables.map(|(name, _)| name).collect();
    names.retain(|name| {
        name.starts_with("LEASEHOLD_NAME") || name.starts_with("LEASEHOLD_FENCING_TOKEN")
    });
    names.sort_unstable();
    let expected = [
        "LEASEHOLD_FENCING_TOKEN_1",
        "LEASEHOLD_FENCING_TOKEN_2",
        "LEASEHOLD_NAMES",
        "LEASEHOLD_NAME_1",
        "LEASEHOLD_NAME_2",
    ];
    assert_eq!(names, expected);
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
    eventually(WAIT_LIMIT, || {
        client(&server).mutex("a").waiting().unwrap() == 2
    });
    drop(guard);
    assert_eq!(waiting.each_mut().map(Program::code), [Some(3), Some(4)]);
}

fn run_that_does_not_wait_for_the_lock_can_wait_for_redis() {
    let mut server = Server::start();
    let url = server.url();
    server.kill();
    let patient = |limit| ["--no-wait", "--min-hold", "60s", "--unreachable-for", limit];
    let mut runs = [(); 3].map(|()| Program::run(&url, &patient("60s"), "echo ran"));
    assert_eq!(code(&url, &["run", "a", "--no-wait", "true"]), 69);
    server.restart();
    let mut codes = runs.each_mut().map(Program::code);
    codes.sort();
    assert_eq!(codes, [Some(0), Some(75), Some(75)]);
    let lines = runs
        .each_mut()
        .map(|run| run.lines.by_ref().lines().count());
    assert_eq!(lines.iter().sum::<usize>(), 1);

    server.kill();
    let mut run = Program::run(&url, &patient("1s"), "echo ran");
    assert_eq!(run.code(), Some(69));
    let said = run.errors();
    assert!(said.contains("attempts went on for"), "{said}");
}

/// Starts the program as a service manager does: the variables contain its process id, and the
/// socket is descriptor 3, here a file. The script finds the program in `$0`.
fn with_socket(server: &Server, socket: &Path, script: &str, arguments: &[&str]) -> Output {
    let set =
        "export LISTEN_PID=$$ WATCHDOG_PID=$$ LISTEN_PIDFDID=1 LISTEN_FDS=1 LISTEN_FDNAMES=web";
    let script = format!("{set}; {script}");
    let mut command = Command::new("sh");
    command.args(["-c", &script, PROGRAM]).args(arguments);
    command
        .env("REDIS_URL", server.url())
        .env("SOCKET", socket)
        .output()
        .unwrap()
}

fn socket_and_watchdog_of_the_program_are_the_commands() {
    let server = Server::start();
    let directory = TempDir::create();
    let socket = directory.join("socket");
    fs::write(&socket, "connected\n").unwrap();
    let script = "test \"$LISTEN_PID\" = $$ && test \"$WATCHDOG_PID\" = $$ || exit 5
        test -z \"$LISTEN_PIDFDID\" || exit 6
        test \"$LISTEN_FDS $LISTEN_FDNAMES\" = '1 web' || exit 7
        read -r line <&3; test \"$line\" = connected || exit 8; echo $$; exit 9";
    let without_interpreter = directory.write_executable("script-of-a-test", script);
    let without_interpreter = without_interpreter.to_str().unwrap();
    for command in [&["sh", "-c", script][..], &[without_interpreter]] {
        for option in ["--", "--foreground"] {
            let run = "exec \"$0\" run a \"$@\" 3<\"$SOCKET\"";
            let arguments = [&[option], command].concat();
            let output = with_socket(&server, &socket, run, &arguments);
            assert_eq!(output.status.code(), Some(9), "{option} {output:?}");
        }
    }
    // The variables of another process are left as they are.
    let run =
        "echo $$; \"$0\" run a -- sh -c 'echo $LISTEN_PID $WATCHDOG_PID $LISTEN_PIDFDID'; exit 3";
    let output = with_socket(&server, &socket, run, &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    let (outer, seen) = text.split_once('\n').unwrap();
    assert_eq!(seen, format!("{outer} {outer} 1\n"));
}

fn program_that_gets_a_socket_fails_with_its_exit_codes() {
    let server = Server::start();
    let directory = TempDir::create();
    let broken = directory.write_executable("script-of-a-test", "#!/no/such/interpreter\n");
    for (command, expected) in [
        ("/no/such/program", 127),
        ("no-such-program", 127),
        ("/", 126),
        (broken.to_str().unwrap(), 127),
    ] {
        let run = "exec \"$0\" run a -- \"$@\"";
        let output = with_socket(&server, &broken, run, &[command]);
        assert_eq!(output.status.code(), Some(expected), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.starts_with(&format!("leasehold: cannot run {command}: ")),
            "{said}"
        );
        assert!(server.is_free("a"), "{command}");
    }
}
