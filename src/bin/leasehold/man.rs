//! `leasehold man`: prints the manual pages.

use std::io;

use clap::CommandFactory;
use clap_mangen::Man;

use crate::args::Cli;
use crate::exit::{Failure, USAGE};

pub(crate) fn man(command: Option<&str>) -> Result<u8, Failure> {
    let mut page = Cli::command();
    // Gives every command its full name and the global options.
    page.build();
    if let Some(name) = command {
        let found = page
            .get_subcommands()
            .find(|command| command.get_name() == name);
        page = found
            .cloned()
            .ok_or_else(|| Failure::new(USAGE, format!("no such command: {name}")))?;
    }
    let source = concat!("leasehold ", env!("CARGO_PKG_VERSION"));
    Man::new(page).source(source).render(&mut io::stdout())?;
    Ok(0)
}
