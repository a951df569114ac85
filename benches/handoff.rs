//! From the start of one process's unlock to the return of another process's `lock`, in turns with the same done by hand:
//! the same scripts, a subscriber thread that all waiters share, a channel, and the acquire on a second connection.

mod common;
#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use common::Contender;
use common::hand::{Hand, channel, connect};
use crossbeam_channel::{Receiver, Sender, unbounded};
use leasehold::{Client, Mutex, MutexGuard, Unlocked};
use rustix::time::{ClockId, clock_gettime};
use support::{Child, Server};

const ROUNDS: usize = 250;
const HAND_OFFS: usize = 12;

/// Enough for a waiter to be asleep by then, on either side of the comparison.
const FALLS_ASLEEP: Duration = Duration::from_millis(2);

/// What the waiting process is told to wait for.
const OURS: u8 = b'o';
const BY_HAND: u8 = b'h';
const NOTHING: u8 = b'n';

fn main() {
    // A process that plays a role ends with it.
    support::role(&[("waiter", wait)]);

    let server = Server::start().untimed();
    let url = server.url();
    println!("unlock here to lock there, {ROUNDS} rounds of {HAND_OFFS}");
    common::print_load("before");

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let child = Child::spawn("waiter", &[("URL", &url), ("PORT", &port)]);
    let (mut waiter, _) = listener.accept().unwrap();
    waiter.set_nodelay(true).unwrap();

    let (mut ours, mut by_hand) = (Ours::new(&url), ByHand::new(&url));
    let mut contenders: [Contender<'_>; 2] = [
        Box::new(|| hand_offs(&waiter, OURS, &mut ours)),
        Box::new(|| hand_offs(&waiter, BY_HAND, &mut by_hand)),
    ];
    let samples = common::take_turns(ROUNDS, &mut contenders);
    drop(contenders);
    waiter.write_all(&[NOTHING]).unwrap();
    child.wait().succeeded();

    let (ours, by_hand) = (&samples[0], &samples[1]);
    let vs_hand = ours.ratio(by_hand);
    let rows: Vec<_> = [("leasehold", ours), ("by hand", by_hand)]
        .iter()
        .map(|(name, samples)| {
            vec![
                (*name).to_owned(),
                format!("{:.1}", samples.percentile(50.0)),
                format!("{:.1}", samples.percentile(99.0)),
                samples.ratio(by_hand).show(3),
            ]
        })
        .collect();
    let heads = ["hand-off", "p50 µs", "p99 µs", "vs by hand (quartiles)"];
    common::print_table(&heads, &rows);
    common::print_load("after");
    common::print_figures(&[("handoff_vs_hand", format!("{:.3}", vs_hand.median))]);
}

/// Lets the other process wait for what this one holds, lets go, and hears when the other one had it.
fn hand_offs(mut waiter: &TcpStream, kind: u8, side: &mut impl Side) -> Vec<Duration> {
    (0..HAND_OFFS)
        .map(|_| {
            side.take();
            waiter.write_all(&[kind]).unwrap();
            thread::sleep(FALLS_ASLEEP);
            let began = clock();
            side.let_go();
            let mut taken = [0; 8];
            waiter.read_exact(&mut taken).unwrap();
            // It says so again when it has let go.
            waiter.read_exact(&mut [0]).unwrap();
            Duration::from_nanos(u64::from_ne_bytes(taken)) - began
        })
        .collect()
}

/// The other process: takes what it is told to, says when it had it, and lets go.
fn wait() {
    let url = support::given("URL");
    let port: u16 = support::given("PORT").parse().unwrap();
    let mut starter = TcpStream::connect(("127.0.0.1", port)).unwrap();
    starter.set_nodelay(true).unwrap();
    let (mut ours, mut by_hand) = (Ours::new(&url), ByHand::new(&url));
    loop {
        let mut kind = [0];
        starter.read_exact(&mut kind).unwrap();
        let side: &mut dyn Side = match kind {
            [OURS] => &mut ours,
            [BY_HAND] => &mut by_hand,
            _ => process::exit(0),
        };
        side.take();
        let taken = u64::try_from(clock().as_nanos()).unwrap();
        starter.write_all(&taken.to_ne_bytes()).unwrap();
        side.let_go();
        starter.write_all(&[0]).unwrap();
    }
}

/// A clock that both processes read alike.
fn clock() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap(),
        u32::try_from(time.tv_nsec).unwrap(),
    )
}

/// One way to do it.
trait Side {
    fn take(&mut self);
    fn let_go(&mut self);
}

struct Ours {
    mutex: Mutex,
    guard: Option<MutexGuard>,
}

impl Ours {
    fn new(url: &str) -> Self {
        let client = Client::open(url).unwrap();
        Self {
            mutex: client.mutex("ours"),
            guard: None,
        }
    }
}

impl Side for Ours {
    fn take(&mut self) {
        self.guard = Some(self.mutex.lock().unwrap());
    }

    fn let_go(&mut self) {
        let guard = self.guard.take().expect("it was taken");
        assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
    }
}

/// Who waits for which channel.
type Waiting = Arc<parking_lot::Mutex<HashMap<String, Sender<()>>>>;

struct ByHand {
    hand: Hand,
    url: String,
    /// Rung by the subscriber thread, which the first wait starts.
    released: Option<Receiver<()>>,
    id: Option<String>,
}

impl ByHand {
    const NAME: &str = "by-hand";

    fn new(url: &str) -> Self {
        Self {
            hand: Hand::new(url, Self::NAME),
            url: url.to_owned(),
            released: None,
            id: None,
        }
    }
}

impl Side for ByHand {
    fn take(&mut self) {
        // Only a release after the look is news.
        while self.released.as_ref().is_some_and(|r| r.try_recv().is_ok()) {}
        loop {
            self.id = self.hand.acquire();
            if self.id.is_some() {
                return;
            }
            match &self.released {
                // Lost only where it came before the subscription.
                Some(released) => drop(released.recv_timeout(Duration::from_secs(1))),
                None => self.released = Some(subscribe(&self.url, Self::NAME)),
            }
        }
    }

    fn let_go(&mut self) {
        let id = self.id.take().expect("it was taken");
        self.hand.release(&id);
    }
}

/// Starts the thread that hears for all who wait. It ends with the process.
fn subscribe(url: &str, name: &str) -> Receiver<()> {
    let mut connection = connect(url);
    connection.set_read_timeout(None).unwrap();
    let (wake, released) = unbounded();
    let waiting = Waiting::default();
    waiting.lock().insert(channel(name), wake);
    let (channel, (ready, subscribed)) = (channel(name), unbounded());
    thread::spawn(move || {
        let mut messages = connection.as_pubsub();
        messages.subscribe(channel).unwrap();
        ready.send(()).unwrap();
        while let Ok(message) = messages.get_message() {
            if let Some(waiter) = waiting.lock().get(message.get_channel_name()) {
                let _ = waiter.send(());
            }
        }
    });
    subscribed.recv().unwrap();
    released
}
