//! The command that `run` starts.

use std::env;
use std::io::{self, IsTerminal};
use std::process::{Child, Command, Stdio};

use crate::ancestors::{self, Ancestors};
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
            // No process or thread is left.
            io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => exit::SYSTEM,
            _ => exit::CANNOT_RUN,
        };
        Failure::new(code, format!("cannot run {}: {error}", program.display()))
    })
}

/// The variables that tell the command a name and its fencing token.
const NAME: &str = "LEASEHOLD_NAME";
const FENCING_TOKEN: &str = "LEASEHOLD_FENCING_TOKEN";

/// Tells the command the names and fencing tokens; they are numbered if there are several.
fn set_environment(command: &mut Command, guard: &dyn Guard, args: &Run) {
    // If this process is itself such a command, the variables of the outer lock stay out: the
    // fencing token of one lock must not be used for another.
    for (variable, _) in env::vars_os() {
        if variable.to_str().is_some_and(is_of_a_lock) {
            command.env_remove(variable);
        }
    }
    let ancestors = Ancestors::of_environment().and(&guard.shown_id());
    command.env(ancestors::VARIABLE, ancestors);
    let names = args.names();
    for (n, text) in names.iter().enumerate() {
        let suffix = match names.len() {
            1 => String::new(),
            _ => format!("_{}", n + 1),
        };
        command.env(format!("{NAME}{suffix}"), text);
        if let Some(token) = guard.token(&name(text)) {
            command.env(format!("{FENCING_TOKEN}{suffix}"), token.to_string());
        }
    }
}

/// Returns whether this program sets the variable for a lock, with a number or without.
fn is_of_a_lock(variable: &str) -> bool {
    let suffix = variable.strip_prefix(NAME);
    let suffix = suffix.or_else(|| variable.strip_prefix(FENCING_TOKEN));
    suffix.is_some_and(|suffix| match suffix.strip_prefix('_') {
        Some(number) => number.parse::<usize>().is_ok(),
        None => suffix.is_empty(),
    })
}
