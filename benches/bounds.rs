//! How late calls return when nothing answers: on an open connection that hangs, from `lock` with
//! `unreachable_for`, and from a peer that accepts connections and sends nothing. Next to each
//! call, a thread only sleeps for the same time.

mod common;

use std::thread;
use std::time::Duration;

use common::picture::{Panel, Picture, Row};
use common::{Report, Spread};
use leasehold::{Client, ClientBuilder};
use support::{BlackHole, Control, Proxy, Server, Traffic, let_pass, ms};

/// Calls of each kind, all concurrent.
const REPEATS: usize = 20;

const LIMITS: [(&str, Duration); 3] = [
    ("100 ms", ms(100)),
    ("1.5 s", ms(1_500)),
    ("15 s", ms(15_000)),
];

/// The interval between two starts: calls that end together would compete for a processor.
const APART: Duration = ms(23);

const HOUR: Duration = Duration::from_secs(3_600);

const KINDS: [&str; 3] = ["try_lock_for", "lock, unreachable_for", "connect"];

type Call = Box<dyn FnOnce() + Send>;

fn main() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let hole = BlackHole::start();
    let report = Report::begin(
        "bounds",
        REPEATS,
        &format!(
            "{REPEATS} concurrent calls of each kind, and how much later than a sleep they return"
        ),
    );
    let mut calls: Vec<(usize, usize, Call)> = Vec::new();
    for (n, (_, limit)) in LIMITS.into_iter().enumerate() {
        for _ in 0..REPEATS {
            calls.push((0, n, on_hung_connection(&proxy, limit)));
            calls.push((1, n, while_unreachable(&proxy, limit)));
            calls.push((2, n, on_silent_peer(&hole, limit)));
        }
    }
    proxy.set_all(Traffic::Stall);
    let lates = run(calls);
    let mut rows = Vec::new();
    let mut figures = Vec::new();
    let mut panels = Vec::new();
    for (kind, name) in KINDS.into_iter().enumerate() {
        let mut bars = Vec::new();
        for (limit, (shown, _)) in LIMITS.into_iter().enumerate() {
            let of = lates
                .iter()
                .filter(|late| (late.0, late.1) == (kind, limit));
            let of: Vec<f64> = of.map(|late| late.2.as_secs_f64() * 1e3).collect();
            let most = of.iter().copied().fold(0.0, f64::max);
            let spread = Spread::of(of.into_iter());
            rows.push(vec![
                name.into(),
                shown.into(),
                spread.show(1),
                format!("{most:.1}"),
            ]);
            figures.push((KEYS[kind][limit], format!("{most:.1}")));
            bars.push(Row::bar(shown, spread).ours().mark("≤", 50.0));
        }
        panels.push(Panel::new(name, bars));
    }
    common::print_table(&["call", "bound", "ms late (quartiles)", "most"], &rows);
    let title = "ms that calls return after their bound when nothing answers".into();
    report.end(&figures, &Picture { title, panels });
}

const KEYS: [[&str; 3]; 3] = [
    [
        "hung_100ms_late_ms",
        "hung_1500ms_late_ms",
        "hung_15s_late_ms",
    ],
    [
        "unreachable_100ms_late_ms",
        "unreachable_1500ms_late_ms",
        "unreachable_15s_late_ms",
    ],
    [
        "connect_100ms_late_ms",
        "connect_1500ms_late_ms",
        "connect_15s_late_ms",
    ],
];

fn builder(url: &str) -> ClientBuilder {
    Client::builder().url(url).breaker(0).unreachable_for(HOUR)
}

/// A client with an open connection.
fn warm(builder: ClientBuilder) -> Client {
    let client = builder.build().expect("the settings are valid");
    client.ping().expect("the server answers");
    client
}

fn on_hung_connection(proxy: &Proxy, limit: Duration) -> Call {
    let client = warm(builder(&proxy.url()).command_timeout(HOUR));
    Box::new(move || assert!(client.mutex("x").try_lock_for(limit).is_err()))
}

fn while_unreachable(proxy: &Proxy, limit: Duration) -> Call {
    let client = warm(builder(&proxy.url()).unreachable_for(limit));
    Box::new(move || assert!(client.mutex("x").lock().is_err()))
}

fn on_silent_peer(hole: &BlackHole, limit: Duration) -> Call {
    let client = builder(&hole.url())
        .command_timeout(limit)
        .connect_timeout(limit);
    let client = client.build().expect("the settings are valid");
    Box::new(move || assert!(client.mutex("x").try_lock().is_err()))
}

/// Runs all calls concurrently. Returns how late each was.
fn run(calls: Vec<(usize, usize, Call)>) -> Vec<(usize, usize, Duration)> {
    let started = calls.into_iter().map(|(kind, limit, call)| {
        let_pass(APART);
        let timed = move || {
            let timed = Control::run(LIMITS[limit].1, call);
            // The call succeeds or fails the same way whether or not its thread is late.
            (kind, limit, timed.overrun())
        };
        thread::spawn(timed)
    });
    let started: Vec<_> = started.collect();
    let ended = started.into_iter().map(|thread| thread.join());
    ended
        .map(|late| late.expect("the call fails as expected"))
        .collect()
}
