//! Promise: no write of the program stops or ends it while it holds a lock.

use std::fs;
use std::process::{Command, Stdio};

use support::{Server, TempDir, Terminal};

use super::PROGRAM;

support::tests![
    message_in_the_background_of_a_terminal_does_not_stop_the_program,
    message_beyond_the_file_size_limit_is_dropped,
    #[cfg(target_os = "linux")]
    command_has_the_signals_as_the_program_was_started
];

/// The shell starts the program with `&`, on a terminal that stops processes in the background when
/// they write.
fn message_in_the_background_of_a_terminal_does_not_stop_the_program() {
    let server = Server::start();
    let run = |options: &str| format!("\"$0\" run a {options} --max-hold 60s -- sh -c 'exit 7'");
    for (command, code) in [
        (run(""), 7),
        (run("-vv"), 7),
        (run("-v --foreground"), 7),
        ("\"$0\" top --count 2 --interval 10ms".into(), 0),
        ("\"$0\" run".into(), 64),
    ] {
        let script = format!("set -m; stty tostop; {command} & wait $!; echo \"ended with $?\"");
        let script = ["sh", "-c", &script, PROGRAM];
        let mut terminal = Terminal::start(&script, &[("REDIS_URL", &server.url())]);
        terminal.wait_for(&format!("ended with {code}"));
        assert!(server.is_free("a"), "{command}");
    }
}

/// Runs a shell script that finds the program in `$0`; returns its exit code and its output.
fn shell(server: &Server, script: &str) -> (Option<i32>, String) {
    let mut command = Command::new("sh");
    command.args(["-c", script, PROGRAM]).stdin(Stdio::null());
    let output = command.env("REDIS_URL", server.url()).output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(printed).unwrap())
}

fn message_beyond_the_file_size_limit_is_dropped() {
    let server = Server::start();
    let directory = TempDir::create();
    let file = directory.join("messages");
    let file = file.to_str().unwrap();
    for (arguments, code) in [
        ("run a -vv -- sh -c 'exit 7'", 7),
        ("run a -v --foreground -- sh -c 'exit 7'", 7),
        ("run a -- /does/not/exist", 127),
        ("run", 64),
        ("top --count 2 --interval 10ms", 0),
    ] {
        let script = format!("ulimit -f 0; exec \"$0\" {arguments} 2>{file}");
        assert_eq!(
            shell(&server, &script),
            (Some(code), String::new()),
            "{arguments}"
        );
        assert_eq!(fs::read(file).unwrap(), b"");
        assert!(server.is_free("a"), "{arguments}");
    }
    // Without output there is nothing to do.
    let script = format!("ulimit -f 0; exec \"$0\" man >{file}");
    let (code, printed) = shell(&server, &script);
    assert_eq!(code, Some(74), "{printed}");
    assert!(
        printed.contains("cannot write to standard output"),
        "{printed}"
    );
}

#[cfg(target_os = "linux")]
fn command_has_the_signals_as_the_program_was_started() {
    let server = Server::start();
    let show = "sh -c 'grep -E \"Sig(Blk|Ign)\" /proc/self/status'";
    for before in ["", "trap '' TTOU XFSZ;", "trap '' TTOU USR1;"] {
        let (_, expected) = shell(&server, &format!("{before} {show}"));
        for options in ["", "--foreground"] {
            let script = format!("{before} \"$0\" run a {options} -- {show}");
            assert_eq!(
                shell(&server, &script),
                (Some(0), expected.clone()),
                "{before}"
            );
        }
    }
}
