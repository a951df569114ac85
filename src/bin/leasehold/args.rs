//! What can stand on the command line.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use leasehold::{Client, ClientBuilder, Error, Name};

use crate::exit::TABLE;

/// Runs commands under distributed locks kept in Redis or Valkey, and shows who holds them.
///
/// Where Redis is stands in REDIS_URL (or in REDIS_HOST, REDIS_PORT, REDIS_USERNAME, REDIS_PASSWORD and REDIS_DB), and
/// otherwise it is 127.0.0.1:6379. LOCK_TTL_MS, LOCK_RENEW_INTERVAL_MS, LOCK_KEY_PREFIX and LOCK_CONNECTION_NAME are
/// read too. Results go to standard output, messages to standard error.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, after_long_help = TABLE)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) connection: Connection,

    #[command(subcommand)]
    pub(crate) action: Action,
}

#[derive(Args, Debug)]
pub(crate) struct Connection {
    /// Where Redis is, as `redis://host:6379/0`, instead of what the environment says. Other users of the machine can
    /// read a command line: a password belongs into REDIS_URL or REDIS_PASSWORD.
    #[arg(long, global = true, help_heading = "Redis")]
    url: Option<String>,

    /// What stands before the name in the lock's key [default: lock:]
    #[arg(long, global = true, value_name = "PREFIX", help_heading = "Redis")]
    key_prefix: Option<String>,

    /// What stands before the name in the channel that a release is announced on [default: lock_release:]
    #[arg(long, global = true, value_name = "PREFIX", help_heading = "Redis")]
    channel_prefix: Option<String>,
}

impl Connection {
    pub(crate) fn builder(&self) -> Result<ClientBuilder, Error> {
        let mut builder = Client::builder();
        if let Some(url) = &self.url {
            builder = builder.url(url);
        }
        builder = builder.with_env()?;
        if let Some(prefix) = &self.key_prefix {
            builder = builder.key_prefix(prefix);
        }
        if let Some(prefix) = &self.channel_prefix {
            builder = builder.channel_prefix(prefix);
        }
        Ok(builder)
    }

    pub(crate) fn client(&self) -> Result<Client, Error> {
        self.builder()?.build()
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    #[command(after_long_help = TABLE)]
    Run(Run),
    Status(Status),
    List(List),
    Top(Top),
    Unlock(Unlock),
    /// Prints the completions for a shell
    Completions {
        shell: clap_complete::Shell,
    },
    /// Prints the manual page of this program, or of one of its commands
    Man {
        command: Option<String>,
    },
}

/// Runs a command under a lock, and ends with its exit code
///
/// The command finds LEASEHOLD_FENCING_TOKEN and LEASEHOLD_NAME in its environment. It runs in a process group of its
/// own: HUP, INT, QUIT, TERM, USR1 and USR2 are passed on to all of it. What the command leaves running in the group is
/// ended before the lock is released. A group of its own cannot read from a terminal, so where standard input is one,
/// the command's is empty.
///
/// When the lock is lost, the group gets TERM, and KILL after --kill-after. When this process is killed, the group is
/// killed too. Processes that leave the group (setsid, or a shell's job control) are out of reach.
#[derive(Args, Debug)]
pub(crate) struct Run {
    /// The lock's name
    pub(crate) name: OsString,

    /// How long the lock stays taken when this process is killed or its machine dies; until then it is renewed every
    /// third of this. A time is a whole number and its unit: 500ms, 30s, 5m, 2h or 1d [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,

    /// Wait so long for the lock [default: as long as it takes]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) wait: Option<Duration>,

    /// Do not wait for the lock
    #[arg(long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// Keep the name taken for so long from the grant on, also when the command ends or fails earlier. This process
    /// does not wait for it: the lock is left to run out. A command that could not be started keeps nothing. Nor does
    /// this process when it is killed: the name is then free after the ttl
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "0s")]
    pub(crate) min_hold: Duration,

    /// End the command when it has held the lock for so long [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) max_hold: Option<Duration>,

    /// How long the process group has to end after TERM, before it gets KILL
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    pub(crate) kill_after: Duration,

    /// The exit code when the lock is not acquired
    #[arg(long, value_name = "CODE", default_value_t = crate::exit::NOT_ACQUIRED)]
    pub(crate) not_acquired_exit: u8,

    /// Who holds the lock, for people who look [default: <host>/<pid>]
    #[arg(long)]
    pub(crate) owner: Option<String>,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Shows who holds these locks, and who waits for them
///
/// Waiting are the clients that listen for the release: each counts once, and for some ten seconds after it has ended
/// to wait. Queued are the calls in the queue of the fair lock of that name.
#[derive(Args, Debug)]
pub(crate) struct Status {
    /// The locks' names
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<OsString>,

    #[command(flatten)]
    pub(crate) form: Form,
}

/// Lists the locks that are held, by name
///
/// It goes through all keys of the database, with SCAN.
#[derive(Args, Debug)]
pub(crate) struct List {
    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: OsString,

    #[command(flatten)]
    pub(crate) form: Form,
}

/// Shows the locks that are held, again and again
///
/// Names, holders, time left, waiting clients, changes of holder a second and fencing tokens, the busiest first. They
/// are refreshed in place; where standard output is no terminal, each look prints a line for each name. Changes are
/// those of the fencing token between two looks, over the last ten of them: of several between two looks one is seen. A
/// name is shown for ten looks after its last release.
#[derive(Args, Debug)]
pub(crate) struct Top {
    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: OsString,

    /// How long to wait between two looks
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s")]
    pub(crate) interval: Duration,

    /// End after so many looks [default: never]
    #[arg(long)]
    pub(crate) count: Option<u64>,

    #[command(flatten)]
    pub(crate) form: Form,
}

#[derive(Args, Debug)]
pub(crate) struct Form {
    /// One JSON object a line. `name` is null where the name is no UTF-8; `name_hex` has its bytes then
    #[arg(long)]
    pub(crate) json: bool,
}

/// Takes a lock away from its holder
#[derive(Args, Debug)]
pub(crate) struct Unlock {
    /// The lock's name
    pub(crate) name: OsString,

    /// Do it, although the holder may be in the middle of its work
    #[arg(long)]
    pub(crate) force: bool,
}

/// A name may be any bytes.
pub(crate) fn name(text: &OsStr) -> Name {
    text.as_bytes().into()
}

/// In ms. Any instant can be so far away.
const LONGEST: u64 = 36_500 * 86_400_000;

/// A whole number with its unit: `500ms`, `30s`, `5m`, `2h`, `1d`.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let millis: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => {
            return Err(
                "a whole number and its unit are expected: 500ms, 30s, 5m, 2h or 1d".into(),
            );
        }
    };
    let number: u64 = number
        .parse()
        .map_err(|_| "a whole number is expected before the unit")?;
    let millis = number
        .checked_mul(millis)
        .filter(|&millis| millis <= LONGEST);
    Ok(Duration::from_millis(
        millis.ok_or("more than a hundred years are too long")?,
    ))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn smoke() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7_200)));
        for wrong in [
            "",
            "10",
            "s",
            "-1s",
            "1.5s",
            "10 s",
            "1S",
            "99999999999999999999s",
            "18446744073709551615d",
            "36501d",
        ] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
