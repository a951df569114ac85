//! The command-line arguments.

mod connection;
mod duration;
mod run;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand};
use leasehold::Name;

use crate::args::duration::pause;
use crate::exit::TABLE;
use crate::message::Verbosity;

pub(crate) use crate::args::connection::ConnectionArgs;
pub(crate) use crate::args::run::Run;

/// Runs commands under distributed locks kept in Redis or Valkey, and shows who holds them.
///
/// The server is read from --url, else from REDIS_URL or, for a quorum, REDIS_URLS, else from
/// REDIS_HOST, REDIS_PORT and REDIS_DB, which are ignored if there is a URL. The default is
/// 127.0.0.1:6379. REDIS_USERNAME and REDIS_PASSWORD fill in any URL without a password, even that
/// of --url; REDIS_PASSWORD_FILE names a file that contains the password. REDIS_TLS_CA,
/// REDIS_TLS_CERT and REDIS_TLS_KEY name PEM files for TLS; REDIS_SENTINEL_TLS says whether
/// sentinels have TLS, if their master differs. Other settings are read from
/// LOCK_TTL_MS, LOCK_CONNECT_TIMEOUT_MS, LOCK_COMMAND_TIMEOUT_MS, LOCK_UNREACHABLE_FOR_MS and
/// LOCK_KEY_PREFIX. Options override the variables. Results go to standard output, messages to
/// standard error.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, after_long_help = TABLE)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,

    #[command(flatten)]
    messages: Messages,

    #[command(subcommand)]
    pub(crate) action: Action,
}

impl Cli {
    /// Parses the arguments of the program.
    pub(crate) fn read(args: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let args: Vec<OsString> = args.into_iter().collect();
        let mut cli = Self::try_parse_from(&args)?;
        // clap does not tell whether `--` precedes the word that it took as the name. So the words
        // before `--` are parsed alone: if they contain no such word, it belongs to the command.
        let before = args.split(|word| word == "--").next().unwrap_or_default();
        if let Action::Run(run) = &mut cli.action
            && let Ok(Action::Run(named)) = Self::try_parse_from(before).map(|cli| cli.action)
            && !named.has_word()
        {
            run.take_word_as_command();
        }
        Ok(cli)
    }

    pub(crate) fn verbosity(&self) -> Verbosity {
        match self.messages {
            Messages { quiet: true, .. } => Verbosity::Quiet,
            Messages { verbose: 0, .. } => Verbosity::Normal,
            Messages { verbose: 1, .. } => Verbosity::Verbose,
            Messages { .. } => Verbosity::Everything,
        }
    }
}

#[derive(Args, Debug)]
struct Messages {
    /// Print no messages except errors: nothing if the lock is not acquired
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,

    /// Print what happens to the lock: waits, grants, renewals and releases. Give it twice to print
    /// every attempt as well
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    #[command(after_long_help = TABLE)]
    Run(Run),
    Status(Status),
    List(List),
    Top(Top),
    Unlock(Unlock),
    /// Prints a completion script for a shell
    Completions {
        shell: clap_complete::Shell,
    },
    /// Prints the manual page of this program, or of one of its commands
    Man {
        command: Option<String>,
    },
}

/// Shows who holds locks, and how many clients wait for them
///
/// WAITING is the number of places in the queue of that name: one for each client that waits for
/// the plain lock, for each call that waits for the fair lock or the read-write lock, and for each
/// set. It is - over a quorum, which has no queue, and ? if Redis refuses the query.
///
/// If permits of semaphores of these names are out, or calls wait for some, a second table follows,
/// with a line for each holder. The first table leaves out a name that only a semaphore has.
#[derive(Args, Debug)]
pub(crate) struct Status {
    /// The locks' names
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<OsString>,

    /// Exit with 1 if one of the locks is held or permits are out, with 0 if all are free
    #[arg(long)]
    pub(crate) exit_code: bool,

    #[command(flatten)]
    pub(crate) form: Form,
}

/// Lists the held locks, and the permits of semaphores, sorted by name
///
/// Iterates over all keys of the database with SCAN, and shows on a terminal how far it is.
#[derive(Args, Debug)]
pub(crate) struct List {
    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: OsString,

    #[command(flatten)]
    pub(crate) form: Form,
}

/// Shows the held locks, and refreshes the display
///
/// Shows names, holders, the time left, the length of the queue, changes of holder per second and
/// fencing tokens, the busiest locks first. A scan of all keys finds new names: it takes at most 5
/// % of the server's time, and the first line of the screen says how far the first scan is. With
/// --count, the first refresh waits for the end of that scan. LONGEST is how long the first call
/// or client in the queue of the name or of the semaphore has waited. If standard output is not a
/// terminal, each refresh prints one line for each name, without a header, tab-separated: Unix
/// time in seconds, NAME, HOLDER, LEFT, WAITING, LONGEST, CHANGES/s, TOKEN. A change of holder is
/// a change of the fencing token between two refreshes, counted over the last ten: several changes
/// between two refreshes count as one. A name is shown for ten refreshes after its last release.
/// Semaphores are shown while permits are out, with the number of permits and holders.
#[derive(Args, Debug)]
pub(crate) struct Top {
    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: OsString,

    /// The time between two refreshes
    #[arg(long, value_name = "TIME", value_parser = pause, default_value = "1s")]
    pub(crate) interval: Duration,

    /// Exit after this many refreshes [default: never]
    #[arg(long)]
    pub(crate) count: Option<u64>,

    #[command(flatten)]
    pub(crate) form: Form,
}

#[derive(Args, Debug)]
pub(crate) struct Form {
    /// Print one JSON object per line. If a name is not UTF-8, `name` is null and `name_hex` has
    /// its bytes
    #[arg(long)]
    pub(crate) json: bool,
}

/// Releases a lock on behalf of its holder
///
/// This takes away no permits of a semaphore: they return on release, or after their ttl if the
/// holder is dead. The library's `Semaphore::force_release` takes them away.
#[derive(Args, Debug)]
pub(crate) struct Unlock {
    /// The lock's name
    pub(crate) name: OsString,

    /// Confirm the release, although the holder may still be working under the lock
    #[arg(long)]
    pub(crate) force: bool,
}

/// Returns the lock's name, which may be any bytes.
pub(crate) fn name(text: &OsStr) -> Name {
    text.as_bytes().into()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_help_names_every_variable_that_a_client_reads() {
        let table = include_str!("../../api/client.rs").lines();
        let rows = table.filter_map(|line| line.trim().strip_prefix("/// | `")?.split('|').next());
        let variables = rows
            .flat_map(|names| names.split(['`', ',', ' ']))
            .filter(|name| name.starts_with("REDIS_") || name.starts_with("LOCK_"));
        let variables: Vec<&str> = variables.collect();
        assert!(variables.len() >= 16, "{variables:?}");
        let help = Cli::command().render_long_help().to_string();
        let is_end = |c: char| !c.is_ascii_uppercase() && c != '_';
        for variable in variables {
            let is_named = help.split(is_end).any(|word| word == variable);
            assert!(is_named, "{variable} is not in:\n{help}");
        }
    }

    #[track_caller]
    fn run(args: &[&str]) -> Run {
        let args = ["leasehold", "run"].iter().chain(args);
        match Cli::read(args.map(OsString::from)).map(|cli| cli.action) {
            Ok(Action::Run(run)) => run,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn command_needs_no_dashes_unless_it_begins_with_one() {
        for args in [
            &["a", "--fair", "sh", "-c", "x"][..],
            &["a", "--fair", "--", "sh", "-c", "x"],
            &["--fair", "a", "sh", "-c", "x"],
        ] {
            let run = run(args);
            assert!(run.fair);
            assert_eq!(run.names(), ["a"]);
            let (program, arguments) = run.command().unwrap();
            assert_eq!(program, "sh");
            assert_eq!(arguments, ["-c", "x"], "{args:?}");
        }
        // Words after the command are its arguments.
        let run = run(&["a", "env", "--fair", "--", "x"]);
        assert!(!run.fair);
        assert_eq!(run.command().unwrap().1, ["--fair", "--", "x"]);
        let error = Cli::try_parse_from(["leasehold", "run", "a", "-x"]).unwrap_err();
        assert!(error.to_string().contains("-- -x"), "{error}");
    }

    #[test]
    fn several_names_keep_their_order_and_commas() {
        let run = run(&["-n", "b,c", "--name", "a", "-n", "b,c", "--", "sh", "-c"]);
        assert_eq!(run.names(), ["b,c", "a"]);
        let (program, arguments) = run.command().unwrap();
        assert_eq!((program, arguments), ("sh".as_ref(), vec!["-c".as_ref()]));
    }

    #[test]
    fn word_after_the_dashes_is_the_command() {
        let command = |args: &[&str]| -> Vec<OsString> {
            let run = run(args);
            let (program, arguments) = run.command().unwrap();
            [&[program], &*arguments]
                .concat()
                .into_iter()
                .map(OsString::from)
                .collect()
        };
        let unnamed = ["--wait", "1s", "--", "echo", "hello"];
        assert!(run(&unnamed).names().is_empty());
        assert_eq!(command(&unnamed), ["echo", "hello"]);
        assert_eq!(command(&["-n", "a", "--", "echo", "--"]), ["echo", "--"]);
        assert_eq!(run(&["a", "--", "echo", "--", "b"]).names(), ["a"]);
    }

    #[test]
    fn missing_command_is_an_error() {
        for args in [&["a"][..], &["-n", "a"], &[]] {
            assert!(run(args).command().is_err(), "{args:?}");
        }
    }
}
