//! `leasehold completions`: prints a completion script for a shell.

use std::io::{self, Write};

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use crate::args::Cli;
use crate::exit::Failure;

pub(crate) fn completions(shell: Shell) -> Result<u8, Failure> {
    // `generate` panics if it cannot write, so it writes to memory.
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "leasehold", &mut script);
    io::stdout().write_all(&script)?;
    Ok(0)
}
