//! The command-line arguments.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use leasehold::{Client, ClientBuilder, Error, Name};

use crate::exit::TABLE;

/// Runs commands under distributed locks kept in Redis or Valkey, and shows who holds them.
///
/// The server is read from --url, else from REDIS_URL, else from REDIS_HOST, REDIS_PORT,
/// REDIS_USERNAME, REDIS_PASSWORD and REDIS_DB. The default is 127.0.0.1:6379. LOCK_TTL_MS,
/// LOCK_RENEW_INTERVAL_MS, LOCK_KEY_PREFIX and LOCK_CONNECTION_NAME are read too. Results go to
/// standard output, messages to standard error.
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
    /// The server, such as `redis://host:6379/0`, in place of the environment's. Other users of the
    /// machine can read command lines: put a password into REDIS_URL or REDIS_PASSWORD
    #[arg(long, global = true, help_heading = "Redis")]
    url: Option<String>,

    /// The prefix of lock keys [default: lock:]
    #[arg(long, global = true, value_name = "PREFIX", help_heading = "Redis")]
    key_prefix: Option<String>,

    /// The prefix of the channels on which releases are published [default: lock_release:]
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
    /// Prints a completion script for a shell
    Completions {
        shell: clap_complete::Shell,
    },
    /// Prints the manual page of this program, or of one of its commands
    Man {
        command: Option<String>,
    },
}

/// Runs a command under a lock, and exits with its exit code
///
/// The command's environment contains LEASEHOLD_FENCING_TOKEN and LEASEHOLD_NAME. The command runs
/// in its own process group: HUP, INT, QUIT, TERM, USR1 and USR2 are forwarded to the whole group.
/// Processes that the command leaves running in the group are ended before the lock is released.
/// The group cannot read from a terminal, so if standard input is a terminal, the command's
/// standard input is empty.
///
/// If the lock is lost, the group gets TERM, and KILL after --kill-after. If this process is
/// killed, the group is killed too. Processes that leave the group (by setsid, or a shell's job
/// control) are not ended.
#[derive(Args, Debug)]
pub(crate) struct Run {
    /// The lock's name
    pub(crate) name: OsString,

    /// How long the lock stays taken after this process is killed or its machine fails. It is
    /// renewed every third of this time. A time is a whole number and a unit: 500ms, 30s, 5m, 2h or
    /// 1d [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,

    /// The longest time to wait for the lock [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) wait: Option<Duration>,

    /// Hold a permit of the semaphore NAME, which has N of them, in place of the lock: at most N
    /// commands run at a time. The semaphore has nothing to do with the lock of that name
    #[arg(long, value_name = "N")]
    pub(crate) permits: Option<u32>,

    /// Do not wait for the lock
    #[arg(long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// The time from the grant for which the lock stays taken, even if the command ends or fails
    /// earlier. This process does not wait for it: the lock expires in Redis. If the command cannot
    /// be started, the lock is released at once. If this process is killed, the lock is free after
    /// the ttl
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "0s")]
    pub(crate) min_hold: Duration,

    /// End the command when it has held the lock for this time [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) max_hold: Option<Duration>,

    /// The time from TERM to KILL for a process group that does not end
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    pub(crate) kill_after: Duration,

    /// The exit code if the lock is not acquired
    #[arg(long, value_name = "CODE", default_value_t = crate::exit::NOT_ACQUIRED)]
    pub(crate) not_acquired_exit: u8,

    /// The owner that `leasehold status` shows [default: <host>/<pid>]
    #[arg(long)]
    pub(crate) owner: Option<String>,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Shows who holds locks, and how many clients wait for them
///
/// WAITING is the number of clients that are subscribed to the release: each counts once, and for
/// about ten seconds after it stops waiting. QUEUED is the number of calls in the queue of the fair
/// lock of that name.
///
/// If permits of semaphores of these names are out, or calls wait for some, a second table follows,
/// with a line for each holder.
#[derive(Args, Debug)]
pub(crate) struct Status {
    /// The locks' names
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<OsString>,

    #[command(flatten)]
    pub(crate) form: Form,
}

/// Lists the held locks, and the permits of semaphores, sorted by name
///
/// Iterates over all keys of the database with SCAN.
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
/// Shows names, holders, the time left, waiting clients, changes of holder per second and fencing
/// tokens, the busiest locks first. If standard output is not a terminal, each refresh prints one
/// line for each name. A change of holder is a change of the fencing token between two refreshes,
/// counted over the last ten: several changes between two refreshes count as one. A name is shown
/// for ten refreshes after its last release. Semaphores are shown while permits are out, with the
/// number of permits and holders.
#[derive(Args, Debug)]
pub(crate) struct Top {
    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: OsString,

    /// The time between two refreshes
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s")]
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

/// The longest time, in ms: a hundred years, which can be added to any instant without overflow.
const LONGEST: u64 = 36_500 * 86_400_000;

/// Parses a whole number and its unit: `500ms`, `30s`, `5m`, `2h`, `1d`.
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
            return Err("expected a whole number and a unit: 500ms, 30s, 5m, 2h or 1d".into());
        }
    };
    let number: u64 = number
        .parse()
        .map_err(|_| "expected a whole number before the unit")?;
    let millis = number
        .checked_mul(millis)
        .filter(|&millis| millis <= LONGEST);
    Ok(Duration::from_millis(
        millis.ok_or("must be at most a hundred years")?,
    ))
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
