//! The test kit: starting a server, and a lock and unlock over it.

use leasehold::testing::Server;
use std::time::{Duration, Instant};

const ROUNDS: usize = 300;
const PAIRS: u32 = 20;

fn main() {
    let starts = (0..ROUNDS).map(|_| {
        let began = Instant::now();
        let server = Server::start();
        let took = began.elapsed();
        drop(server);
        took
    });
    report("start a server", Duration::from_millis(2), starts.collect());

    let first = (0..ROUNDS).map(|_| {
        let server = Server::start();
        let client = server.client();
        let began = Instant::now();
        pair(&client);
        began.elapsed()
    });
    report("first lock and unlock", Duration::MAX, first.collect());

    let server = Server::start();
    let client = server.client();
    let pairs = (0..ROUNDS).map(|_| {
        let began = Instant::now();
        for _ in 0..PAIRS {
            pair(&client);
        }
        began.elapsed() / PAIRS
    });
    report(
        "lock and unlock",
        Duration::from_micros(200),
        pairs.collect(),
    );
}

fn pair(client: &leasehold::Client) {
    let guard = client.mutex("account:123").lock().expect("the server runs");
    guard.unlock().expect("the server runs");
}

/// Prints the median and the p90, and the limit of the median if there is one.
fn report(what: &str, below: Duration, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |tenths: usize| times[times.len() * tenths / 10];
    let limit = match below {
        Duration::MAX => String::new(),
        below => format!(", should be below {below:?}"),
    };
    println!("{what}: median {:?}, p90 {:?}{limit}", at(5), at(9));
}
