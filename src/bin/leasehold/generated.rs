//! `leasehold man` and `completions`: print what is generated from the arguments.

use std::io::{self, Write};

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Cli;
use crate::exit::{Failure, USAGE};

pub(crate) fn completions(shell: Shell) -> Result<u8, Failure> {
    // `generate` panics if it cannot write, so it writes to memory.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "leasehold", &mut script);
    io::stdout().write_all(&script)?;
    Ok(0)
}

pub(crate) fn man(command: Option<&str>) -> Result<u8, Failure> {
    let mut page = Cli::command();
    // Gives every command its full name and the global options.
    page.build();
    if let Some(name) = command {
        let found = page.find_subcommand(name).cloned();
        page = found.ok_or_else(|| Failure::new(USAGE, format!("no such command: {name}")))?;
    }
    let source = concat!("leasehold ", env!("CARGO_PKG_VERSION"));
    Man::new(page).source(source).render(&mut io::stdout())?;
    Ok(0)
}
