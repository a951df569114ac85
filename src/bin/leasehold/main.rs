//! `leasehold`: runs commands under a lock and shows locks, from a shell.

#[cfg(not(unix))]
compile_error!("the feature `cli` needs Unix process groups and signals");

mod ancestors;
mod args;
mod background;
mod children;
#[expect(dead_code, reason = "this program uses only a part of it")]
#[path = "../../clock.rs"]
mod clock;
mod command;
mod end_before;
#[expect(dead_code, reason = "this program uses only a part of it")]
#[path = "../../escape.rs"]
mod escape;
mod exit;
mod foreground;
mod generated;
mod group;
mod guard;
mod job;
mod json;
mod list;
mod lock;
mod mask;
mod message;
mod permits;
mod pid_variables;
mod process_group;
mod program;
mod rate;
mod record;
mod refusal;
mod release;
mod row;
mod run;
mod running;
mod scan;
mod screen;
mod server_variables;
mod settings;
mod signals;
mod status;
mod stops;
mod supervise;
mod supervisor;
mod table;
mod top;
mod unlock;
#[path = "../../validity.rs"]
mod validity;
mod wait;
mod watched;

use std::env;
use std::io::{self, Write};
use std::process;

use args::{Action, Cli};
use escape::Escaped;
use exit::Failure;

fn main() {
    // The parser does not know the arguments of other processes of this program, so help and
    // completions do not show them.
    let first = env::args_os().nth(1).unwrap_or_default();
    if first == pid_variables::BECOME {
        let code = pid_variables::become_command(env::args_os().skip(2));
        process::exit(code.into());
    }
    mask::block_signals_of_writes();
    if first == supervise::SUPERVISE {
        supervise::supervise();
        return;
    }
    let code = match Cli::read(env::args_os()) {
        Ok(cli) => act(cli),
        // The parser reports `--help` and `--version` as errors whose text is for stdout.
        Err(error) if !error.use_stderr() => write!(io::stdout(), "{error}")
            .map_or_else(|error| Failure::from(error).print(), |()| 0),
        Err(error) => {
            // The error quotes unexpected arguments, such as a URL with a password.
            let text = exit::without_credentials(&error.to_string());
            for line in text.lines() {
                let _ = writeln!(io::stderr(), "{}", Escaped::whole(line.as_bytes()));
            }
            exit::USAGE
        }
    };
    message::flush();
    // Exits without joining threads that still wait for Redis.
    process::exit(code.into());
}

fn act(cli: Cli) -> u8 {
    message::set_verbosity(cli.verbosity());
    let connection = &cli.connection;
    if !matches!(cli.action, Action::Run(_) | Action::Top(_))
        && let Err(error) = signals::end_process_1_at_a_signal()
    {
        return Failure::system("cannot catch signals", &error).print();
    }
    let outcome = match cli.action {
        Action::Run(args) => run::run(connection, &args),
        Action::Status(args) => status::status(connection, &args),
        Action::List(args) => list::list(connection, &args),
        Action::Top(args) => top::top(connection, &args),
        Action::Unlock(args) => unlock::unlock(connection, &args),
        Action::Completions { shell } => generated::completions(shell),
        Action::Man { command } => generated::man(command.as_deref()),
    };
    outcome.unwrap_or_else(|failure| {
        if connection.is_default() {
            failure.of_default_server().print()
        } else {
            failure.print()
        }
    })
}
