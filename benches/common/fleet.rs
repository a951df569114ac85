//! Processes contending for one name, each with several threads. All use one clock to record when
//! they held it.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::process;
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::clocks::{clock, processor_time, server_processor_time};
use crate::floor::pair::connect;
use crate::monitor::Monitor;
use crate::window::{Account, HeldPeriod, Window};
use support::{self, Child, Server, TempDir};

/// The start of a run that is not counted: connections, scripts, the first subscription.
const WARM_UP: Duration = Duration::from_millis(300);

/// The end of a run, counted under MONITOR. MONITOR slows the server down, so only the number of
/// requests is taken from this part.
const MONITORED: Duration = Duration::from_millis(500);

/// The offset of the process that holds the lock, in the file of the counter.
const HOLDER_AT: u64 = 8;

/// How long after the end a process may take to report.
const PATIENCE: Duration = Duration::from_secs(20);

/// The candidates, and how long they run.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    pub kind: &'a str,
    pub processes: usize,
    pub threads: usize,
    pub section: Duration,
    pub lasts: Duration,
}

/// The critical section: some work, and a check whether another process was inside.
#[derive(Clone)]
pub struct Section {
    /// A counter that is read and written in two steps, and then the process that holds the lock.
    /// `None` if no process contends.
    plain: Option<Arc<File>>,
    lasts: Duration,
    /// The token, the start and the end of the last section, until its thread records them.
    held: Arc<Mutex<Option<(u64, u64, u64)>>>,
}

impl Section {
    /// A section that only takes time.
    pub fn alone(lasts: Duration) -> Self {
        Self {
            plain: None,
            lasts,
            held: Arc::default(),
        }
    }

    /// `token` is 0 if the lock has none.
    pub fn run(&self, token: u64) {
        let from = nanos();
        let mut count = [0; 8];
        if let Some(plain) = &self.plain {
            plain.read_exact_at(&mut count, 0).unwrap();
            let id = u64::from(process::id());
            plain.write_all_at(&id.to_ne_bytes(), HOLDER_AT).unwrap();
        }
        if !self.lasts.is_zero() {
            thread::sleep(self.lasts);
        }
        if let Some(plain) = &self.plain {
            let count = u64::from_ne_bytes(count) + 1;
            plain.write_all_at(&count.to_ne_bytes(), 0).unwrap();
        }
        let held = Some((token, from, nanos()));
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = held;
    }
}

/// Makes each process wait until the other one holds the lock before it asks for it again. Of two
/// processes, one then always waits when the other unlocks.
pub fn alternating(lockers: Lockers) -> Lockers {
    Box::new(move || {
        let mut locker = lockers();
        Box::new(move |section| {
            section.wait_for_other();
            locker(section)
        })
    })
}

impl Section {
    fn wait_for_other(&self) {
        // Longer than the pause of a waiter. At the end of a run, the other process is gone.
        const LONGEST: Duration = Duration::from_millis(300);
        let plain = self.plain.as_ref().expect("two processes contend");
        let own = u64::from(process::id()).to_ne_bytes();
        let began = Instant::now();
        let mut holder = own;
        while began.elapsed() < LONGEST {
            plain.read_exact_at(&mut holder, HOLDER_AT).unwrap();
            if holder != own {
                return;
            }
            thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Locks, runs the section and unlocks; one thread calls it repeatedly.
pub type Locker = Box<dyn FnMut(&Section) -> Result<(), String> + Send>;

/// Creates a locker for each thread of a process.
pub type Lockers = Box<dyn Fn() -> Locker>;

/// Opens a candidate by its kind and the server's URL.
pub type Open = fn(kind: &str, url: &str) -> Lockers;

fn nanos() -> u64 {
    u64::try_from(clock().as_nanos()).expect("an uptime below 584 years")
}

/// The role `member` of each process: contends for the given period and exits.
pub fn contend(open: Open) {
    let number = |key: &str| support::parameter(key).parse::<u64>().expect("a number");
    let port = u16::try_from(number("PORT")).expect("a port");
    let plain = support::parameter("PLAIN");
    let plain = File::options().read(true).write(true).open(plain);
    let plain = Arc::new(plain.unwrap());
    let open_more = open(&support::parameter("KIND"), &support::parameter("URL"));
    let lockers: Vec<_> = (0..number("THREADS")).map(|_| open_more()).collect();
    let barrier = Barrier::new(lockers.len() + 1);

    let mut starter = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut word = || {
        let mut word = [0; 8];
        starter.read_exact(&mut word).unwrap();
        u64::from_ne_bytes(word)
    };
    let (begins, ends) = (word(), word());
    let used = processor_time();
    let results: Vec<(Vec<HeldPeriod>, Vec<String>)> = thread::scope(|scope| {
        let threads: Vec<_> = lockers
            .into_iter()
            .zip(0..)
            .map(|(locker, thread)| {
                let section = Section {
                    plain: Some(Arc::clone(&plain)),
                    lasts: Duration::from_micros(number("SECTION_US")),
                    held: Arc::default(),
                };
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    thread::sleep(Duration::from_nanos(begins.saturating_sub(nanos())));
                    lock_until(ends, thread, locker, &section)
                })
            })
            .collect();
        barrier.wait();
        let threads = threads.into_iter().map(|thread| thread.join().unwrap());
        threads.collect()
    });
    let used = u64::try_from((processor_time() - used).as_nanos()).unwrap();
    // The parent ends this process once it has the report: a lease that lingers is released first.
    drop(open_more);

    let failures: Vec<_> = results.iter().flat_map(|(_, failures)| failures).collect();
    let first = failures.first().map_or("", |failure| failure.as_str());
    let holds: Vec<u64> = results
        .iter()
        .flat_map(|(holds, _)| holds)
        .flat_map(HeldPeriod::words)
        .collect();
    let mut words = vec![used, failures.len() as u64, first.len() as u64];
    words.push(holds.len() as u64);
    words.extend(holds);
    let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
    starter.write_all(&bytes).unwrap();
    starter.write_all(first.as_bytes()).unwrap();
    // Exiting ends whatever a lock left running.
    process::exit(0);
}

/// Returns whether the process is the first to claim this key.
pub fn is_first(url: &str, key: &str) -> bool {
    let mut claim = redis::cmd("SETNX");
    claim.arg(key).arg(1).query(&mut connect(url)).unwrap()
}

fn lock_until(
    ends: u64,
    thread: u64,
    mut locker: Locker,
    section: &Section,
) -> (Vec<HeldPeriod>, Vec<String>) {
    let (mut holds, mut failures) = (Vec::new(), Vec::new());
    loop {
        let asked = nanos();
        if asked >= ends {
            return (holds, failures);
        }
        if let Err(failure) = locker(section) {
            failures.push(failure);
        }
        let held = section.held.lock();
        if let Some((token, from, to)) = held.unwrap_or_else(PoisonError::into_inner).take() {
            holds.push(HeldPeriod {
                process: 0,
                thread,
                asked,
                from,
                to,
                token,
            });
        }
    }
}

/// Runs the processes and combines their reports. The bench must have the role `member`, which
/// calls `contend`.
pub fn measure(server: &Server, terms: Terms<'_>) -> Window {
    let plain = Plain::new();
    let (children, mut wires) = start_processes(server, terms, &plain);

    let begins = clock() + Duration::from_millis(50);
    let counts = begins + WARM_UP;
    let monitored = counts + terms.lasts;
    let ends = monitored + MONITORED;
    for wire in &mut wires {
        for at in [begins, ends] {
            let at = u64::try_from(at.as_nanos()).unwrap();
            wire.write_all(&at.to_ne_bytes()).unwrap();
        }
    }
    sleep_until(counts);
    let server_used = server_processor_time(server);
    sleep_until(monitored);
    let server_used = server_processor_time(server) - server_used;
    let monitor = Monitor::start(server);
    let from = nanos();
    sleep_until(ends.saturating_sub(Duration::from_millis(50)));
    let requests = monitor.stop();
    let to = nanos();

    let deadline = Instant::now() + PATIENCE;
    let mut window = Window {
        processes: terms.processes,
        threads: terms.threads,
        window: [counts, monitored].map(|at| u64::try_from(at.as_nanos()).unwrap()),
        server_used,
        monitored: ([from, to], requests),
        ..Window::default()
    };
    for (wire, process) in wires.into_iter().zip(0..) {
        let left = deadline.saturating_duration_since(Instant::now());
        match account(wire, left.max(Duration::from_millis(10))) {
            Some(account) => window.add(process, account),
            None => window.hung += 1,
        }
    }
    // Kills processes that hang.
    drop(children);
    window.sum_up(plain.count());
    window
}

/// Starts the processes, and returns them with a connection to each.
fn start_processes(
    server: &Server,
    terms: Terms<'_>,
    plain: &Plain,
) -> (Vec<Child>, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (url, port) = (server.url(), listener.local_addr().unwrap().port());
    let (port, threads) = (port.to_string(), terms.threads.to_string());
    let section = terms.section.as_micros().to_string();
    let parameters = [
        ("URL", &*url),
        ("KIND", terms.kind),
        ("PORT", &port),
        ("THREADS", &threads),
        ("SECTION_US", &section),
        ("PLAIN", &plain.path()),
    ];
    let children: Vec<_> = (0..terms.processes)
        .map(|_| Child::spawn("member", &parameters))
        .collect();
    let accept = |_| listener.accept().unwrap().0;
    let wires = children.iter().map(accept).collect();
    (children, wires)
}

fn account(mut wire: TcpStream, within: Duration) -> Option<Account> {
    wire.set_read_timeout(Some(within)).unwrap();
    let mut bytes = Vec::new();
    wire.read_to_end(&mut bytes).ok()?;
    let (words, _) = bytes.as_chunks::<8>();
    let words: Vec<u64> = words.iter().copied().map(u64::from_ne_bytes).collect();
    let [used, failures, _, count, holds @ ..] = &words[..] else {
        return None;
    };
    let count = usize::try_from(*count).unwrap();
    let (holds, _) = holds[..count].as_chunks();
    Some(Account {
        holds: holds.iter().map(HeldPeriod::of).collect(),
        used: Duration::from_nanos(*used),
        failures: *failures,
        first: String::from_utf8_lossy(&bytes[8 * (4 + count)..]).into_owned(),
    })
}

fn sleep_until(at: Duration) {
    thread::sleep(at.saturating_sub(clock()));
}

/// The counter's file, removed on drop.
struct Plain(TempDir);

impl Plain {
    fn new() -> Self {
        let this = Self(TempDir::create());
        fs::write(this.path(), [0; 16]).unwrap();
        this
    }

    fn path(&self) -> String {
        let path = self.0.join("count");
        path.to_str().expect("a plain path").to_owned()
    }

    fn count(&self) -> u64 {
        let bytes = fs::read(self.path()).unwrap();
        u64::from_ne_bytes(bytes[..8].try_into().unwrap())
    }
}
