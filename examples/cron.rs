//! Three processes start the same job every night, and one of them runs it.

use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Error, Mutex, MutexGuard, Taken};
use redis::Commands;

use support::child::Child;
use support::data::{connect, key};
use support::run::{Outcome, run};

mod support {
    pub(crate) mod child;
    pub(crate) mod data;
    pub(crate) mod run;
}

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

/// Calls `three_nights`, with a private Redis unless `REDIS_URL` is set. Your own program would not
/// need this.
fn main() -> ExitCode {
    run(three_nights, &[("worker", worker)])
}

/// Runs in each of the three processes.
fn worker() -> Outcome {
    let client = Client::from_env()?;
    // Each line of input starts a night. A real worker would use a clock.
    for night in io::stdin().lines() {
        let night = night?;
        let mutex = client.mutex(format!("report of {night}"));
        match try_while_unreachable(&mutex)? {
            Ok(guard) => {
                write_report(&night)?;
                println!("wrote the report");
                // The lock stays held for an hour, longer than any clock lags: a worker that
                // starts late must not run the job again. If this process dies before this call,
                // the lock becomes free after its ttl, and a late worker runs the job again.
                guard.keep_for(HOUR)?;
            }
            Err(_) => println!("found the lock held"),
        }
    }
    Ok(())
}

/// Tries once, and again while Redis is unreachable: otherwise a restart of Redis at that moment
/// would leave the job undone on all hosts.
fn try_while_unreachable(mutex: &Mutex) -> Result<Result<MutexGuard, Taken>, Error> {
    let began = Instant::now();
    loop {
        match mutex.try_lock() {
            Err(error) if error.is_retryable() && began.elapsed() < MINUTE => {
                thread::sleep(Duration::from_secs(1));
            }
            outcome => return outcome,
        }
    }
}

/// Appends to a list, whose length shows how often the job ran.
fn write_report(night: &str) -> Outcome {
    let () = connect()?.rpush(key(night), std::process::id())?;
    Ok(())
}

fn three_nights() -> Outcome {
    let mut workers = (0..3)
        .map(|_| Child::spawn("worker"))
        .collect::<Outcome<Vec<_>>>()?;
    println!("Three workers are running.");

    for night in ["Monday", "Tuesday", "Wednesday"] {
        println!("{night} night.");
        for worker in &mut workers {
            let input = worker.process.stdin.as_mut();
            writeln!(input.ok_or("a worker has no input pipe")?, "{night}")?;
        }
        let mut writers = Vec::new();
        for (n, worker) in workers.iter_mut().enumerate() {
            let outcome = worker.next().ok_or("a worker has ended")??;
            println!("  Process {} {outcome}.", worker.process.id());
            if outcome == "wrote the report" {
                writers.push(n);
            }
        }

        let reports: usize = connect()?.llen(key(night))?;
        assert_eq!(reports, 1, "the report of {night} is written once");
        assert_eq!(writers.len(), 1, "one worker writes the report");
        if night == "Tuesday" {
            let mut writer = workers.remove(writers[0]);
            writer.kill()?;
            println!(
                "  Process {} is killed. The others go on.",
                writer.process.id()
            );
        }
    }

    for mut worker in workers {
        assert!(worker.process.wait()?.success());
    }
    println!("Three nights, three reports.");
    Ok(())
}
