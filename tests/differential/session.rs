//! Runs the same commands on a real server and on the test kit, by the real server's clock.
//!
//! Commands run in batches: each between two `TIME`s of the real server, in one write. The kit runs
//! them at the first of the two times. A batch in which the real server took too long proves
//! nothing: the real server gets back the keys from before the batch, and the same commands run
//! again in shorter batches. After each batch the keys are compared, and the kit takes over the
//! exact times of the real server, so that differences do not add up.
//!
//! Each command depends only on the seed, its number and the time. So a run with the same seed
//! repeats the commands, except for the times in them, however long the batches are.
//!
//! Nothing expires while a batch runs, neither a key nor a place, a reader or a permit: before the
//! batch, the session waits until those have expired that would. So both servers agree on what has
//! expired, however slow the machine is.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::ops::Range;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use support::{let_pass, watchdog};

use crate::compare::{are_equal, micros};
use crate::kit::{Kit, Reply};
use crate::real::Real;
use crate::state::{State, dump_commands};
use crate::words::{Command, Words};

/// The largest number of commands in a batch.
const BATCH: u64 = 100;

/// A batch that takes longer than this, in µs, does not count.
pub(crate) const BATCH_LIMIT: u64 = 10_000;

/// A batch with a command that takes longer than this, in µs, does not count.
const COMMAND_LIMIT: u64 = 1_000;

/// The longest time for 100 000 commands: enough for an overloaded machine.
const LIMIT: Duration = Duration::from_secs(300);

/// Nothing expires within this time after a batch begins, in ms: longer than [`BATCH_LIMIT`].
const QUIET: u64 = 25;

/// Short ttls in ms: they end after a batch, and the next one waits for that.
pub(crate) const SHORT_TTL: Range<u64> = 25..40;

pub(crate) struct Session {
    real: Real,
    kit: Kit,
    keys: &'static [&'static str],
    /// Both servers' keys at the start of the batch.
    state: State,
    /// The number of commands in the next batch.
    batch_size: u64,
    /// The number of commands compared.
    done: u64,
    /// The digests of scripts that have replied with something other than an error.
    pub(crate) succeeded: BTreeSet<Vec<u8>>,
}

/// A batch that the real server ran.
struct Batch {
    commands: Vec<Command>,
    replies: Vec<Reply>,
    /// The time before each command and after the last, in µs.
    times: Vec<u64>,
    /// From the time for which the commands were made, until the keys had been read, in µs.
    span: Range<u64>,
    state: State,
    messages: Reply,
}

impl Session {
    pub(crate) fn start(keys: &'static [&'static str]) -> Self {
        Self {
            real: Real::start(),
            kit: Kit::new(),
            keys,
            state: State::default(),
            batch_size: 1,
            done: 0,
            succeeded: BTreeSet::new(),
        }
    }

    /// Compiles a script on both servers and returns its digest.
    pub(crate) fn load(&mut self, source: &str) -> String {
        let digests = [self.real.load(source), self.kit.load(source)];
        assert_eq!(digests[0], digests[1]);
        digests[0].clone()
    }

    pub(crate) fn subscribe(&mut self, channel: &str) {
        self.real.subscribe(channel);
        self.kit.subscribe(channel);
    }

    /// Runs random commands until `steps` of them were compared.
    pub(crate) fn run(&mut self, steps: u64, seed: u64, next: impl Fn(&mut Words<'_>) -> Command) {
        // Not by `eprintln!`: the test harness captures that, and the text would be lost if the
        // watchdog aborts the process.
        let _ = writeln!(io::stderr(), "LEASEHOLD_SEED={seed}");
        // A script that never ends on the kit must not keep the test running.
        let _watchdog = watchdog(LIMIT * u32::try_from(steps / 100_000 + 1).unwrap());
        while self.done < steps {
            let now = self.wait_until_nothing_expires();
            let count = self.batch_size.min(steps - self.done);
            let commands = (self.done..self.done + count).map(|step| {
                let mut words = Words {
                    rng: &mut SmallRng::seed_from_u64(seed.rotate_left(32) ^ step),
                    now: now / 1000,
                };
                next(&mut words)
            });
            let commands = commands.flat_map(|command| self.with_expired_removed(command));
            let commands = commands.collect();
            let batch = self.run_on_real(now, commands);
            if batch.took_too_long() || batch.has_a_command_in_two_seconds() {
                self.undo();
                self.batch_size = (self.batch_size / 2).max(1);
                continue;
            }
            if let Err(difference) = self.repeat_on_kit(&batch) {
                panic!(
                    "LEASEHOLD_SEED={seed}, batch from step {}: {difference}\nbefore: {}",
                    self.done, self.state
                );
            }
            self.done += count;
            self.batch_size = (self.batch_size + 1).min(BATCH);
            self.state = batch.state;
        }
    }

    /// Waits until nothing expires for [`QUIET`]. Returns the real server's time then, in µs.
    fn wait_until_nothing_expires(&mut self) -> u64 {
        loop {
            let now = time(&self.real.run(&[vec![b"TIME".to_vec()]])[0]);
            let now_ms = now / 1000;
            let soon = now_ms.saturating_sub(2)..now_ms + QUIET;
            let mut ends = self.state.ends();
            let Some(end) = ends.find(|end| soon.contains(end)) else {
                return now;
            };
            let_pass(Duration::from_millis(end + 3 - now_ms));
        }
    }

    /// Puts a read of all keys before `DBSIZE`: it counts expired keys until a read removes them.
    fn with_expired_removed(&self, command: Command) -> Vec<Command> {
        if !command[0].eq_ignore_ascii_case(b"DBSIZE") {
            return vec![command];
        }
        let read = ["EXISTS"].iter().chain(self.keys);
        vec![read.map(|word| word.as_bytes().to_vec()).collect(), command]
    }

    fn run_on_real(&mut self, began: u64, commands: Vec<Command>) -> Batch {
        let time_command = || vec![b"TIME".to_vec()];
        let mut sent: Vec<Command> = commands
            .iter()
            .flat_map(|command| [time_command(), command.clone()])
            .collect();
        sent.push(time_command());
        sent.extend(dump_commands(self.keys));
        sent.push(time_command());
        let mut replies = self.real.run(&sent).into_iter();
        let mut batch = Batch {
            replies: Vec::new(),
            times: Vec::new(),
            span: began..began,
            state: State::default(),
            messages: self.real.messages(),
            commands,
        };
        for _ in &batch.commands {
            batch.times.push(time(&replies.next().unwrap()));
            batch.replies.push(replies.next().unwrap());
        }
        batch.times.push(time(&replies.next().unwrap()));
        batch.state = State::of_real(self.keys, &mut replies);
        batch.span.end = time(&replies.next().unwrap());
        batch
    }

    /// Runs a batch on the kit, and fails with the first difference. Without one, gives the kit the
    /// exact times of the real server.
    fn repeat_on_kit(&mut self, batch: &Batch) -> Result<(), String> {
        let windows = batch.times.windows(2);
        let steps = batch.commands.iter().zip(&batch.replies).zip(windows);
        for (step, ((command, real), window)) in steps.enumerate() {
            let now = window[0];
            let kit = self.kit.run(now, command);
            if are_equal(&command[0], real, &kit, now) {
                if command[0] == b"EVALSHA" && !matches!(kit, Reply::Error(_)) {
                    self.succeeded.insert(command[1].clone());
                }
                continue;
            }
            return Err(format!(
                "{}\nreal: {}\nkit: {}\nbetween {now} and {}, after\n{}",
                shown(command),
                shown_reply(real),
                shown_reply(&kit),
                window[1],
                shown_all(&batch.commands[..step])
            ));
        }
        let now = *batch.times.last().unwrap();
        let messages = self.kit.messages();
        if !are_equal(b"SUBSCRIBE", &batch.messages, &messages, now) {
            return Err(format!(
                "messages\nreal: {}\nkit: {}\nafter\n{}",
                shown_reply(&batch.messages),
                shown_reply(&messages),
                shown_all(&batch.commands)
            ));
        }
        let kit = State::of_kit(&mut self.kit, self.keys, now);
        kit.compare(&batch.state, now)
            .map_err(|difference| format!("{difference}\nafter\n{}", shown_all(&batch.commands)))?;
        batch.state.copy_to(&mut self.kit, &kit, now);
        Ok(())
    }

    /// Gives the real server the keys from before the batch, which the kit still has.
    fn undo(&mut self) {
        let mut commands = vec![vec![b"FLUSHALL".to_vec()]];
        commands.extend(self.state.write_commands());
        self.real.run(&commands);
    }
}

impl Batch {
    fn took_too_long(&self) -> bool {
        let mut windows = self.times.windows(2);
        self.span.end - self.span.start > BATCH_LIMIT
            || windows.any(|window| window[1] - window[0] > COMMAND_LIMIT)
    }

    /// Returns whether a second may have begun before the real server ran a command, and after the
    /// time that the kit takes for it: a refresh of a queue renews another key in each second.
    fn has_a_command_in_two_seconds(&self) -> bool {
        let mut windows = self.times.windows(2);
        windows.any(|window| window[0] / 1_000_000 != window[1] / 1_000_000)
    }
}

/// Returns the time in a reply to TIME, in µs.
fn time(reply: &Reply) -> u64 {
    let time = micros(reply).unwrap_or_else(|| panic!("no time: {}", shown_reply(reply)));
    time.cast_unsigned()
}

fn shown(command: &[Vec<u8>]) -> String {
    let args = command
        .iter()
        .map(|arg| format!("\"{}\"", arg.escape_ascii()));
    args.collect::<Vec<_>>().join(" ")
}

fn shown_all(commands: &[Command]) -> String {
    let shown = commands.iter().map(|command| shown(command));
    shown.collect::<Vec<_>>().join("\n")
}

pub(crate) fn shown_reply(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(Some(text)) => format!("\"{}\"", text.escape_ascii()),
        Reply::Array(Some(items)) => {
            let items: Vec<String> = items.iter().map(shown_reply).collect();
            format!("[{}]", items.join(" "))
        }
        other => format!("{other:?}"),
    }
}
