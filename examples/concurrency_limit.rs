//! An API allows three calls at a time. Twelve workers in four processes share that limit, and one
//! process is killed in the middle of its calls.
//!
//! A semaphore limits how many calls are in progress at a time. It does not limit how many start in
//! a second: short calls follow one another as fast as permits come back. For a rate, such as 100
//! calls a minute, use a rate limiter: the crate `governor` within one process. For a fleet, count
//! in Redis, with `INCR` and `EXPIRE` on a key for each window of time, or with a token bucket or
//! GCRA in a script. A program that must keep to both limits asks the rate limiter first, because a
//! permit that waits for the rate keeps others from the API.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Semaphore};
use redis::Commands;

use support::child::Child;
use support::data::{connect, key};
use support::run::{Outcome, run};

mod support {
    pub(crate) mod child;
    pub(crate) mod data;
    pub(crate) mod run;
}

/// How many calls the API allows at a time.
const LIMIT: u32 = 3;

const WORKERS_PER_PROCESS: u32 = 3;
const CALLS_PER_WORKER: u32 = 10;

/// The longest time for which the permits of a killed process stay unavailable.
const TTL: Duration = Duration::from_secs(2);

/// Calls `one_day`, with a private Redis unless `REDIS_URL` is set. Your own program would not
/// need this.
fn main() -> ExitCode {
    let roles = [
        ("workers", workers as fn() -> Outcome),
        ("workers that hang", workers_that_hang),
    ];
    run(one_day, &roles)
}

/// The limit that all processes share.
fn limit() -> Outcome<Semaphore> {
    let client = Client::from_env()?;
    Ok(client.semaphore("api.example.com", LIMIT).ttl(TTL))
}

/// Runs in a process with three workers. Each makes its calls one after the other.
fn workers() -> Outcome {
    let (limit, port) = (limit()?, port()?);
    in_threads(|| {
        for _ in 0..CALLS_PER_WORKER {
            let permit = limit.acquire()?;
            // After a pause longer than the ttl, another worker may have the permit.
            permit.ensure_held()?;
            assert_eq!(call(port, b"fast")?, *b"200", "the limit holds");
            permit.release()?;
        }
        Ok(())
    })?;
    // The parent process adds up the calls.
    println!("{}", WORKERS_PER_PROCESS * CALLS_PER_WORKER);
    Ok(())
}

/// Runs in the process that is killed. Its calls hang.
fn workers_that_hang() -> Outcome {
    let (limit, port) = (limit()?, port()?);
    in_threads(|| {
        let permit = limit.acquire()?;
        println!("calls the API");
        call(port, b"slow")?;
        drop(permit);
        Ok(())
    })
}

fn one_day() -> Outcome {
    let api = Api::start()?;
    let limit = limit()?;
    let mut hanging = Child::spawn("workers that hang")?;
    for _ in 0..WORKERS_PER_PROCESS {
        hanging
            .next()
            .ok_or("the process ended before all its workers called the API")??;
    }
    println!("Three workers of the first process call the API, and their calls hang.");
    assert_eq!(limit.available()?, 0);
    assert!(limit.try_acquire()?.is_err());

    let mut others = Vec::new();
    for _ in 0..3 {
        others.push(Child::spawn("workers")?);
    }
    while limit.waiting()? < 9 {
        thread::sleep(Duration::from_millis(2));
    }
    println!("Nine workers of three other processes wait for a permit.");

    hanging.kill()?;
    let killed = Instant::now();
    let mut calls = 0;
    for mut other in others {
        let made = other
            .next()
            .ok_or("a process ended before its calls were done")??;
        calls += made.parse::<u32>()?;
        assert!(other.process.wait()?.success());
    }
    println!(
        "The first process is killed. Its permits come back after {TTL:?}: {calls} calls are done \
         {:.1} s later.",
        killed.elapsed().as_secs_f64()
    );
    assert_eq!(calls, 9 * CALLS_PER_WORKER);
    let most = api.most_at_a_time.load(Ordering::SeqCst);
    assert_eq!(most, LIMIT, "the limit is used, and never exceeded");
    assert_eq!(limit.available()?, LIMIT, "no permit is lost");
    println!("The API never had more than {most} calls at a time.");
    Ok(())
}

/// Runs `work` in a thread for each worker of this process.
fn in_threads(work: impl Fn() -> Outcome + Sync) -> Outcome {
    thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS_PER_PROCESS)
            .map(|_| scope.spawn(&work))
            .collect();
        for worker in workers {
            worker.join().expect("no worker panics")?;
        }
        Ok(())
    })
}

fn port() -> Outcome<u16> {
    Ok(connect()?.get(key("port"))?)
}

fn call(port: u16, request: &[u8; 4]) -> Outcome<[u8; 3]> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(request)?;
    let mut status = [0; 3];
    stream.read_exact(&mut status)?;
    Ok(status)
}

/// Stands for a remote API, which answers 429 to a call above its limit.
struct Api {
    calls_in_progress: AtomicU32,
    most_at_a_time: AtomicU32,
}

impl Api {
    fn start() -> Outcome<&'static Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let () = connect()?.set(key("port"), listener.local_addr()?.port())?;
        let api: &Self = Box::leak(Box::new(Self {
            calls_in_progress: AtomicU32::new(0),
            most_at_a_time: AtomicU32::new(0),
        }));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || api.serve(stream));
            }
        });
        Ok(api)
    }

    /// Serves one call: a fast one takes 10 ms, a slow one lasts until its caller disconnects.
    fn serve(&self, mut stream: TcpStream) {
        let mut request = [0; 4];
        if stream.read_exact(&mut request).is_err() {
            return;
        }
        let calls = self.calls_in_progress.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_a_time.fetch_max(calls, Ordering::SeqCst);
        if request == *b"slow" {
            // Returns when the caller has closed the connection.
            let _ = stream.read(&mut request);
        } else {
            thread::sleep(Duration::from_millis(10));
        }
        // Before the answer: the caller may release its permit as soon as it has one.
        self.calls_in_progress.fetch_sub(1, Ordering::SeqCst);
        let status = if calls > LIMIT { b"429" } else { b"200" };
        // Writing fails if the caller has disconnected.
        let _ = stream.write_all(status);
    }
}
