//! Promise: a signal that stops a new process of the program does not stop the program.

use std::fs;
use std::os::unix::fs::symlink;

use rustix::process::{Signal, kill_process};
use support::{Server, TempDir};

use super::{Program, children_of, program, state_of, supervisor_of};

support::tests![
    command_that_is_stopped_before_it_executes_its_program_runs,
    supervisor_that_is_stopped_before_it_is_ready_starts
];

/// Returns a `PATH` whose search takes some 200 ms: it names a slow directory 200 times. Until the
/// search ends, the new process has not executed the program.
fn slow_path(directory: &TempDir) -> String {
    // The kernel follows at most 40 links, each of up to 4095 bytes. The last one leads nowhere.
    for n in 0..30 {
        let target = format!("{}{}", "./".repeat(1_000), n + 1);
        symlink(target, directory.join(&n.to_string())).unwrap();
    }
    let slow = format!("{}:", directory.join("0").display());
    slow.repeat(200) + &std::env::var("PATH").unwrap()
}

fn command_that_is_stopped_before_it_executes_its_program_runs() {
    let server = Server::start();
    let directory = TempDir::create();
    let path = slow_path(&directory);
    for (options, signal) in [(&[][..], Signal::TSTP), (&["--foreground"], Signal::STOP)] {
        let mut command = program(&server.url());
        command.env("PATH", &path).args(["run", "a"]);
        command.args(options).args(["--", "sh", "-c", "exit 3"]);
        let mut program = Program::of(command.spawn().unwrap());
        let supervisor = supervisor_of(program.id());
        let command = loop {
            let children = children_of(program.id());
            match children.into_iter().find(|child| *child != supervisor) {
                Some(command) => break command,
                None => assert!(runs(&mut program), "too late"),
            }
        };
        kill_process(command, signal).unwrap();
        let arguments = fs::read(format!("/proc/{}/cmdline", command.as_raw_pid()));
        let is_new = String::from_utf8_lossy(&arguments.unwrap()).contains("exit 3");
        assert!(
            is_new,
            "the command has executed its program before it was stopped"
        );
        assert_eq!(program.code(), Some(3), "{options:?}");
        assert!(server.is_free("a"));
    }
}

fn supervisor_that_is_stopped_before_it_is_ready_starts() {
    let server = Server::start();
    let mut stopped = 0;
    // On a busy machine a supervisor is ready before the test sees it.
    for _ in 0..50 {
        let mut program = Program::run(&server.url(), &[], "exit 3");
        let mut supervisor = None;
        while supervisor.is_none() && runs(&mut program) {
            supervisor = children_of(program.id()).first().copied();
        }
        let Some(supervisor) = supervisor else {
            continue;
        };
        let _ = kill_process(supervisor, Signal::STOP);
        // The list may have been read while the command was started: then this is the command, and
        // nothing but the test continues it.
        if children_of(program.id())
            .iter()
            .any(|child| *child != supervisor)
        {
            let _ = kill_process(supervisor, Signal::CONT);
        }
        while runs(&mut program) {
            if state_of(supervisor) == Some('T') {
                stopped += 1;
                break;
            }
        }
        assert_eq!(program.code(), Some(3));
        if stopped == 3 {
            return;
        }
    }
    panic!("only {stopped} supervisors were stopped");
}

fn runs(program: &mut Program) -> bool {
    program.process.try_wait().unwrap().is_none()
}
