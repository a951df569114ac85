//! Eight processes that share four permits, and eight that mostly read: through leasehold, through
//! the crate among the others that has semaphores and read-write locks, and by hand.

use std::thread;

use distributed_lock_core::traits::{
    DistributedReaderWriterLock, DistributedSemaphore, LockHandle, ReaderWriterLockProvider,
    SemaphoreProvider,
};
use leasehold::Client;
use support::{Server, ms};

use crate::common;
use crate::common::contenders::{
    READ, WRITE, numbered, permits, polled_permits, polling_readers, readers,
};
use crate::common::fleet::{Locker, Lockers, Terms, measure};
use crate::common::series::{Series, run_in_turns};
use crate::common::window::Window;
use crate::kinds::{NAME, TUNED, distributed_lock_provider, runtime};
use crate::{LASTS, PROCESSES, ROUNDS, is_ours, problems};

const PERMITS: u32 = 4;

/// One section in this many is a write.
const WRITES: u64 = 20;

const SEMAPHORES: [(&str, &str); 4] = [
    ("leasehold Semaphore", "permits"),
    ("by hand, every 1 ms", "permits-polled"),
    ("distributed-lock-redis", "permits-distributed-lock"),
    (
        "distributed-lock-redis, tuned",
        "permits-distributed-lock-tuned",
    ),
];

const RW_LOCKS: [(&str, &str); 4] = [
    ("leasehold RwLock", "readers"),
    ("by hand, every 1 ms", "readers-polling"),
    ("distributed-lock-redis", "readers-distributed-lock"),
    (
        "distributed-lock-redis, tuned",
        "readers-distributed-lock-tuned",
    ),
];

/// Opens a contender; `None` if the kind is none of these.
pub(crate) fn open(kind: &str, url: &str) -> Option<Lockers> {
    let client = || Client::open(url).unwrap();
    let is_tuned = kind.ends_with("-tuned");
    let here = url.to_owned();
    Some(match kind {
        "permits" => permits(client().semaphore(NAME, PERMITS), READ),
        "permits-polled" => polled_permits(url, PERMITS),
        "permits-distributed-lock" | "permits-distributed-lock-tuned" => {
            Box::new(move || distributed_semaphore(&here, is_tuned))
        }
        "readers" => readers(client().rw_lock(NAME), writes),
        "readers-polling" => polling_readers(url, writes),
        "readers-distributed-lock" | "readers-distributed-lock-tuned" => {
            Box::new(move || distributed_rw_lock(&here, is_tuned))
        }
        _ => return None,
    })
}

fn writes(number: u64) -> bool {
    number.is_multiple_of(WRITES)
}

/// Repeats an attempt every 1 ms, as tuned contenders do, or waits as the crate does.
macro_rules! acquire {
    ($is_tuned:expr, $attempt:expr, $wait:expr) => {
        match $is_tuned {
            true => loop {
                match $attempt.await.map_err(|error| error.to_string())? {
                    Some(handle) => break handle,
                    None => thread::sleep(TUNED),
                }
            },
            false => $wait.await.map_err(|error| error.to_string())?,
        }
    };
}

fn distributed_semaphore(url: &str, is_tuned: bool) -> Locker {
    let runtime = runtime();
    let provider = distributed_lock_provider(&runtime, url, is_tuned);
    Box::new(move |section| {
        let semaphore = provider.create_semaphore(NAME, PERMITS);
        runtime.block_on(async {
            let permit = acquire!(is_tuned, semaphore.try_acquire(), semaphore.acquire(None));
            section.run(READ);
            permit.release().await.map_err(|error| error.to_string())
        })
    })
}

fn distributed_rw_lock(url: &str, is_tuned: bool) -> Locker {
    let (runtime, mut number) = (runtime(), numbered());
    let provider = distributed_lock_provider(&runtime, url, is_tuned);
    Box::new(move |section| {
        let lock = provider.create_reader_writer_lock(NAME);
        let writes = writes(number());
        runtime.block_on(async {
            if writes {
                let writer = acquire!(is_tuned, lock.try_acquire_write(), lock.acquire_write(None));
                section.run(WRITE);
                return writer.release().await.map_err(|error| error.to_string());
            }
            let reader = acquire!(is_tuned, lock.try_acquire_read(), lock.acquire_read(None));
            section.run(READ);
            reader.release().await.map_err(|error| error.to_string())
        })
    })
}

/// Runs all of these contenders, and prints two tables.
pub(crate) fn run(server: &Server) {
    let semaphores = contended(server, &SEMAPHORES);
    let over = |it: &Window| it.begun_over(PERMITS as usize) as u64;
    table("4 permits, sections of 1 ms", &semaphores, over);
    let rw_locks = contended(server, &RW_LOCKS);
    let overlapping = |it: &Window| it.overlaps_with(WRITE) as u64;
    table("95 % of sections read, 1 ms", &rw_locks, overlapping);
}

fn contended(server: &Server, contenders: &[(&'static str, &'static str)]) -> Vec<Series> {
    let series = contenders
        .iter()
        .map(|(label, _)| Series::new(label, ms(1)));
    let mut ran: Vec<Series> = series.collect();
    run_in_turns(ROUNDS, &mut ran, |n| {
        let terms = Terms {
            kind: contenders[n].1,
            processes: PROCESSES,
            threads: 1,
            section: ms(1),
            lasts: LASTS,
        };
        server.run("FLUSHALL", &[]);
        measure(server, terms)
    });
    ran
}

/// Prints what the contenders did, and how many of their holds began although `excess` of others
/// did not permit it.
fn table(title: &str, ran: &[Series], excess: fn(&Window) -> u64) {
    let rows = ran.iter().map(|ran| {
        let [p50, p99, most] = ran.points(Window::waits);
        let [write_p50, write_p99, write_most] = ran.points(|it| it.waits_of(WRITE));
        let mut row = vec![ran.label.to_owned()];
        let rate = ran.spread(Window::acquisitions_per_s).median;
        let numbers = [rate, p50, p99, most, write_p50, write_p99, write_most];
        row.extend(numbers.map(|number| format!("{number:.0}")));
        let problems = problems(ran, excess);
        assert!(!is_ours(ran.label) || problems.is_empty(), "{problems}");
        row.push(problems);
        row
    });
    let heads = [
        "lock",
        "sections/s",
        "wait p50 µs",
        "p99",
        "max",
        "to write p50",
        "p99",
        "max",
        "problems",
    ];
    println!("\n{title}");
    common::print_table(&heads, &rows.collect::<Vec<_>>());
}
