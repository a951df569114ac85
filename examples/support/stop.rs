//! Stops a child process for a while, as a busy or suspended machine does.

use std::io::Write;

use rustix::process::{Pid, Signal, kill_process};

use super::child::Child;
use super::run::Outcome;

/// Stops all threads of the process, also those that renew its locks.
pub(crate) fn stop(child: &Child) -> Outcome {
    send(child, Signal::STOP)
}

/// Lets the process go on, and sends it a line: it waits for one at the place where it was stopped.
pub(crate) fn go_on(child: &mut Child) -> Outcome {
    send(child, Signal::CONT)?;
    let input = child.process.stdin.as_mut();
    writeln!(input.ok_or("the child has no input pipe")?)?;
    Ok(())
}

fn send(child: &Child, signal: Signal) -> Outcome {
    let id = i32::try_from(child.process.id()).ok();
    let id = id.and_then(Pid::from_raw);
    kill_process(id.ok_or("the process id is invalid")?, signal)?;
    Ok(())
}
