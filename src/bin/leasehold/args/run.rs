//! The arguments of `leasehold run`.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use clap::Args;

use crate::args::duration::{duration, pause};
use crate::exit::{Failure, NOT_ACQUIRED, USAGE};

const USAGE_OF_RUN: &str = "\
leasehold run [OPTIONS] NAME [--] CMD [ARG]...
       leasehold run [OPTIONS] -n NAME [-n NAME]... -- CMD [ARG]...";

/// Runs a command under a lock, and exits with its exit code
///
/// Options stand before the command. Write -- before a command that begins with a dash, and after
/// names that are given with --name.
///
/// The command's environment contains LEASEHOLD_NAME and LEASEHOLD_FENCING_TOKEN. With several
/// names, these are LEASEHOLD_NAME_1 and LEASEHOLD_FENCING_TOKEN_1 for the first of them, and so
/// on. LEASEHOLD_ANCESTORS has the holder ids of the runs above it: a run whose lock one of these
/// holds exits with 64, in place of waiting for ever.
///
/// The command runs in its own process group: HUP, INT, QUIT, TERM, USR1 and USR2 are forwarded to
/// the whole group. Processes that the command leaves running in the group are ended before the
/// lock is released. The group cannot use the terminal. If standard input is a terminal, the
/// command's standard input is empty. A command that opens the terminal itself, as sudo and ssh do
/// for a password, is ended, and this program exits with 64. --foreground gives it the terminal.
///
/// If the lock is lost, the group gets TERM, and KILL after --kill-after. If this process is
/// killed, the group is killed too. Processes that leave the group (by setsid, or a shell's job
/// control) are not ended, except the command itself, with its own group if it leads one.
#[derive(Args, Clone, Debug)]
#[command(override_usage = USAGE_OF_RUN)]
pub(crate) struct Run {
    /// The lock's name
    #[arg(value_name = "NAME")]
    word: Option<OsString>,

    /// A name, in place of NAME; may be given several times: the run then holds all of the names or
    /// none
    #[arg(short, long = "name", value_name = "NAME")]
    names: Vec<OsString>,

    /// Leave the terminal to the command, which sudo, ssh and psql need for their prompts. The
    /// command then stays in this process's group: Ctrl-C and Ctrl-Z reach it directly, and
    /// processes that it starts are neither signalled nor ended
    #[arg(long)]
    pub(crate) foreground: bool,

    /// Take the lock in the order in which the runs with --fair asked for it, on all machines
    #[arg(long)]
    pub(crate) fair: bool,

    /// Hold a permit of the semaphore NAME, which has N of them, in place of the lock: at most N
    /// commands run at a time. The semaphore is independent of the lock of that name
    #[arg(long, value_name = "N")]
    pub(crate) permits: Option<u32>,

    /// Hold the lock for reading: other runs with --read may hold it at the same time. Readers and
    /// writers get it in the order in which they asked for it
    #[arg(long, conflicts_with_all = ["fair", "permits"])]
    pub(crate) read: bool,

    /// Hold the lock for writing: no other run may hold it at the same time. Readers and writers
    /// get it in the order in which they asked for it
    #[arg(long, conflicts_with_all = ["read", "fair", "permits"])]
    pub(crate) write: bool,

    /// How long the lock stays taken after this process is killed or its machine fails. It is
    /// renewed every third of this time. A time is a number and a unit: 500ms, 1.5s, 30s, 5m, 2h or
    /// 1d [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,

    /// The longest time to wait for the lock. If Redis does not reply to the last attempt, the lock
    /// may stay taken for the ttl [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) wait: Option<Duration>,

    /// Do not wait for the lock. With --unreachable-for, wait for Redis if it is unreachable
    #[arg(long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// The time from the grant for which the lock stays taken, even if the command ends or fails
    /// earlier. This process leaves the lock to expire in Redis and exits; if Redis does not
    /// confirm that, it stays and renews the lock. If the command cannot be started, the lock is
    /// released at once. If this process is killed, the lock is free after the ttl. In a crontab of
    /// several hosts, this must be longer than the clocks differ, and shorter than the interval
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "0s")]
    pub(crate) min_hold: Duration,

    /// End the command when it has held the lock for this time. The lock is released when the
    /// command and its processes have ended [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = pause)]
    pub(crate) max_hold: Option<Duration>,

    /// End the command when less than this time of the lease is left, because Redis does not
    /// confirm its renewal: TERM at that moment, and KILL at the end of the lease, or after
    /// --kill-after if that is earlier. So the command has ended before another host can take the
    /// lock. Must leave room for a renewal: with --ttl 30s, it must be below 17s [default: end the
    /// command when the lock is lost]
    #[arg(long, value_name = "TIME", value_parser = pause)]
    pub(crate) end_before: Option<Duration>,

    /// The time from TERM to KILL for a process group that does not end
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    pub(crate) kill_after: Duration,

    /// The exit code if the lock is not acquired. With 0, nothing is printed then, so cron sends no
    /// mail
    #[arg(long, value_name = "CODE", default_value_t = NOT_ACQUIRED)]
    pub(crate) not_acquired_exit: u8,

    /// The owner that `leasehold status` shows [default: <host>/<pid>]
    #[arg(long)]
    pub(crate) owner: Option<String>,

    /// The command and its arguments
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    words: Vec<OsString>,
}

impl Run {
    pub(super) fn has_word(&self) -> bool {
        self.word.is_some()
    }

    /// Moves the word that clap took as the name to the front of the command.
    pub(super) fn take_word_as_command(&mut self) {
        self.words.splice(0..0, self.word.take());
    }

    /// Returns the lock's names, each once, in the order in which they were given. The first of
    /// them is the first in the command's environment.
    pub(crate) fn names(&self) -> Vec<&OsStr> {
        let mut names: Vec<&OsStr> = Vec::new();
        let words = match self.names.as_slice() {
            [] => self.word.as_slice(),
            names => names,
        };
        for name in words {
            if !names.contains(&name.as_os_str()) {
                names.push(name);
            }
        }
        names
    }

    /// Returns the command: the program, and its arguments.
    pub(crate) fn command(&self) -> Result<(&OsStr, Vec<&OsStr>), Failure> {
        // With --name, the first word is not a name, but the program.
        let first = self.word.iter().filter(|_| !self.names.is_empty());
        let mut words = first.chain(&self.words).map(OsString::as_os_str);
        match words.next() {
            Some(program) => Ok((program, words.collect())),
            None => Err(Failure::new(
                USAGE,
                "the command is missing: leasehold run NAME -- CMD",
            )),
        }
    }
}
