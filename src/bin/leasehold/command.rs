//! The command that `run` starts.

use std::io::{self, IsTerminal};
use std::process::{Child, Command, Stdio};

use crate::args::{Run, name};
use crate::exit::{self, Failure};
use crate::guard::Guard;
use crate::job::CommandJob;
use crate::message::note;

/// Starts the command.
pub(crate) fn start(
    job: &mut dyn CommandJob,
    guard: &dyn Guard,
    args: &Run,
) -> Result<Child, Failure> {
    let (program, arguments) = args.command()?;
    let mut command = Command::new(program);
    command.args(arguments);
    set_environment(&mut command, guard, args);
    if !args.foreground && io::stdin().is_terminal() {
        // The command is in another process group than the shell's foreground job, so the terminal
        // would stop it with SIGTTIN when it reads.
        command.stdin(Stdio::null());
        note("the command's standard input is empty; --foreground gives it the terminal");
    }
    job.spawn(&mut command).map_err(|error| {
        let code = match error.kind() {
            io::ErrorKind::NotFound => exit::NOT_FOUND,
            _ => exit::CANNOT_RUN,
        };
        Failure::new(code, format!("cannot run {}: {error}", program.display()))
    })
}

/// Tells the command the names and fencing tokens; they are numbered if there are several.
fn set_environment(command: &mut Command, guard: &dyn Guard, args: &Run) {
    let names = args.names();
    for (n, text) in names.iter().enumerate() {
        let suffix = match names.len() {
            1 => String::new(),
            _ => format!("_{}", n + 1),
        };
        command.env(format!("LEASEHOLD_NAME{suffix}"), text);
        if let Some(token) = guard.token(&name(text)) {
            command.env(
                format!("LEASEHOLD_FENCING_TOKEN{suffix}"),
                token.to_string(),
            );
        }
    }
}
