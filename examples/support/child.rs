//! Child processes, which stand for the other processes of your system.

use std::env;
use std::io::{self, BufRead, BufReader, Lines};
use std::process::{self, ChildStdout, Command, Stdio};

use super::run::Outcome;

/// A process that runs the same program in another role, and an iterator over the lines that it
/// prints.
pub(crate) struct Child {
    pub(crate) process: process::Child,
    output: Lines<BufReader<ChildStdout>>,
}

impl Child {
    pub(crate) fn spawn(role: &str) -> Outcome<Self> {
        let mut process = Command::new(env::current_exe()?)
            .arg(role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = process
            .stdout
            .take()
            .ok_or("the child has no output pipe")?;
        Ok(Self {
            process,
            output: BufReader::new(stdout).lines(),
        })
    }

    /// Kills it, as the kernel does if memory runs out, and waits until it has ended.
    pub(crate) fn kill(&mut self) -> Outcome {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }
}

impl Iterator for Child {
    type Item = io::Result<String>;

    fn next(&mut self) -> Option<Self::Item> {
        self.output.next()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
