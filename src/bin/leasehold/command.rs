//! The command that `run` starts.

use std::env;
use std::ffi::OsStr;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::ancestors::{self, Ancestors};
use crate::args::{Run, name};
use crate::exit::Failure;
use crate::guard::Guard;
use crate::job::CommandJob;
use crate::message::note;
use crate::pid_variables::{self, cannot_run};
use crate::program::run_as_a_script_too;

/// Starts the command.
pub(crate) fn start(
    job: &mut dyn CommandJob,
    guard: &dyn Guard,
    args: &Run,
) -> Result<Child, Failure> {
    let (program, arguments) = args.command()?;
    // In another process group than the shell's foreground job, the command would be stopped with
    // SIGTTIN when it reads from the terminal.
    let without_input = !args.foreground && io::stdin().is_terminal();
    if without_input {
        note("the command's standard input is empty; --foreground gives it the terminal");
    }
    let spawn = |program: &OsStr, script: Option<PathBuf>| {
        let mut command = pid_variables::command(program)?;
        command.args(script).args(arguments.clone());
        set_environment(&mut command, guard, args);
        if without_input {
            command.stdin(Stdio::null());
        }
        job.spawn(&mut command)
    };
    run_as_a_script_too(program, spawn).map_err(|error| cannot_run(program, &error))
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
    let ids = guard.ids();
    let ids = ids.into_iter().map(|id| id.short().to_string());
    let ancestors = Ancestors::of_environment().and(ids);
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
