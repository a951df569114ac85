//! The variables with which a service manager names the process that a socket or a watchdog is for.
//!
//! systemd names this process. The command would ignore both, so a process of this program goes
//! before it: it puts its own id into the variables, and becomes the command, which has that id.

use std::convert::Infallible;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{self, Command};

use rustix::process::getppid;

use crate::exit::{self, Failure};
use crate::program::{find, run_as_a_script_too, this_program};

/// The argument that selects the process that becomes the command.
pub(crate) const BECOME: &str = "__become";

const LISTEN_PID: &str = "LISTEN_PID";

/// The sockets, and the watchdog.
const VARIABLES: [&str; 2] = [LISTEN_PID, "WATCHDOG_PID"];

/// Names the process of [`LISTEN_PID`] in another way.
const LISTEN_PIDFDID: &str = "LISTEN_PIDFDID";

/// Returns the variables that name the process with this id.
fn variables_of(id: &str) -> impl Iterator<Item = &'static str> + use<'_> {
    let names = move |variable: &&str| env::var_os(variable).is_some_and(|value| value == id);
    VARIABLES.into_iter().filter(names)
}

/// Returns a command that runs the program with the arguments that are added to it. If a variable
/// names this process, that command will be named in its place.
pub(crate) fn command(program: &OsStr) -> io::Result<Command> {
    let own = process::id().to_string();
    // An error to find the program is reported before the start.
    if variables_of(&own).next().is_none() || find(program).is_none() {
        return Ok(Command::new(program));
    }
    let mut command = Command::new(this_program()?);
    command.arg(BECOME).arg(program);
    Ok(command)
}

/// Becomes the command that these words name. Returns the exit code if that fails.
pub(crate) fn become_command(words: impl IntoIterator<Item = OsString>) -> u8 {
    let mut words = words.into_iter();
    let program = words.next().unwrap_or_default();
    let arguments: Vec<OsString> = words.collect();
    let parent = getppid().map(|parent| parent.as_raw_pid().to_string());
    let named: Vec<&str> = parent.map_or_else(Vec::new, |parent| variables_of(&parent).collect());
    let become_it = |program: &OsStr, script| -> io::Result<Infallible> {
        let mut command = Command::new(program);
        command.args(script).args(&arguments);
        for variable in &named {
            command.env(variable, process::id().to_string());
            if *variable == LISTEN_PID {
                command.env_remove(LISTEN_PIDFDID);
            }
        }
        Err(command.exec())
    };
    let Err(error) = run_as_a_script_too(&program, become_it);
    cannot_run(&program, &error).print()
}

/// Returns the failure of a program that was not started.
pub(crate) fn cannot_run(program: &OsStr, error: &io::Error) -> Failure {
    let code = match error.kind() {
        io::ErrorKind::NotFound => exit::NOT_FOUND,
        // No process or thread is left.
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => exit::SYSTEM,
        _ => exit::CANNOT_RUN,
    };
    Failure::new(code, format!("cannot run {}: {error}", program.display()))
}
