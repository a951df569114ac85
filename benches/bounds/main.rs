//! How late calls return when nothing answers: `try_lock_for` on an open connection that hangs,
//! `lock` with `unreachable_for`, and `try_lock` on a peer that accepts connections and sends
//! nothing. Then the same for `try_lock_for` in many new clients at once, on each kind of
//! deployment: see [`new_clients`].
//!
//! While a call of the first part runs, another thread sleeps for 20 ms again and again. Three
//! times its longest delay is subtracted from the call's: see `Timed::overrun`.
//!
//! Takes about two minutes; with `QUICK=1`, which leaves out the longest bound and most rounds,
//! half a minute.

mod new_clients;

use std::env;
use std::thread;
use std::time::Duration;

use common::picture::{Panel, Picture, Row};
use common::{Report, Spread};
use leasehold::{Client, ClientBuilder};
use support::{BlackHole, Control, Server, Timed, let_pass, ms};

use new_clients::Results;

/// Calls of each kind for each bound.
const REPEATS: usize = 20;

const BOUNDS: [(&str, Duration); 3] = [
    ("100 ms", ms(100)),
    ("1.5 s", ms(1_500)),
    ("15 s", ms(15_000)),
];

/// How late a call may return, as [`Timed::overrun`] measures it.
const ALLOWED: Duration = ms(50);

/// Rounds of the new clients, and with `QUICK=1`.
const ROUNDS: [usize; 2] = [5, 1];

/// The time between the starts of two calls: calls that end together would compete for a processor.
const APART: Duration = ms(23);

const HOUR: Duration = Duration::from_secs(3_600);

/// A kind of call that no server answers.
struct Kind {
    name: &'static str,
    /// The first part of the keys of its figures.
    key: &'static str,
    /// Prepares a call to the server at a URL, with a bound.
    call: fn(&str, Duration) -> Call,
}

/// A call that must fail. It returns its client, so that the client is dropped only after all calls
/// have returned.
type Call = Box<dyn FnOnce() -> Client + Send>;

const KINDS: [Kind; 3] = [
    Kind {
        name: "try_lock_for, open connection hangs",
        key: "hung",
        call: on_open_connection,
    },
    Kind {
        name: "lock, unreachable_for",
        key: "unreachable",
        call: while_unreachable,
    },
    Kind {
        name: "try_lock, peer is silent",
        key: "connect",
        call: to_new_peer,
    },
];

fn main() {
    let report = Report::begin(
        "bounds",
        REPEATS,
        &format!(
            "{REPEATS} overlapping calls of each kind, and how much later than a sleep they return"
        ),
    );
    let is_quick = env::var_os("QUICK").is_some();
    let bounds = if is_quick { &BOUNDS[..2] } else { &BOUNDS[..] };
    let mut rows = Vec::new();
    let mut figures = Vec::new();
    let mut bars = KINDS.each_ref().map(|_| Vec::new());
    for (shown, bound) in bounds {
        for ((kind, lates), bars) in KINDS.iter().zip(lates(*bound)).zip(&mut bars) {
            let lates = lates.iter().map(|late| late.as_secs_f64() * 1e3);
            let most = lates.clone().fold(0.0, f64::max);
            let spread = Spread::of(lates);
            let is_kept = most <= ALLOWED.as_secs_f64() * 1e3;
            rows.push(vec![
                kind.name.into(),
                (*shown).into(),
                spread.show(1),
                format!("{most:.1}"),
                if is_kept { "kept" } else { "LATE" }.into(),
            ]);
            let key = format!("{}_{}ms_late_ms", kind.key, bound.as_millis());
            figures.push((key, format!("{most:.1}")));
            bars.push(Row::bar(*shown, spread).ours().mark("≤", 50.0));
        }
    }
    rows.sort_by_key(|row| KINDS.iter().position(|kind| kind.name == row[0]));
    let heads = ["call", "bound", "ms late (quartiles)", "most", "50 ms"];
    common::print_table(&heads, &rows);
    let new = new_clients::measure(ROUNDS[usize::from(is_quick)]);
    common::print_table(&Results::HEADS, &new.rows);
    figures.extend(new.figures);
    let title = "ms that calls return after their bound".into();
    let panels = KINDS.iter().zip(bars);
    let panels =
        panels.map(|(kind, bars)| Panel::new(format!("nothing answers: {}", kind.name), bars));
    let panels = panels.chain(new.panels).collect();
    let figures: Vec<_> = figures
        .iter()
        .map(|(key, most)| (key.as_str(), most.clone()))
        .collect();
    report.end(&figures, &Picture { title, panels });
}

/// Starts the calls with this bound, one every [`APART`]. Returns how late each was, by kind.
fn lates(bound: Duration) -> [Vec<Duration>; 3] {
    let server = Server::start().long_lived();
    let hole = BlackHole::start();
    let urls = [server.url(), server.url(), hole.url()];
    let mut calls = Vec::new();
    for _ in 0..REPEATS {
        for (n, kind) in KINDS.iter().enumerate() {
            calls.push((n, (kind.call)(&urls[n], bound)));
        }
    }
    server.pause();
    let started = calls.into_iter().map(|(n, call)| {
        let_pass(APART);
        let timed = move || (n, Control::run(bound, call));
        thread::spawn(timed)
    });
    let started: Vec<_> = started.collect();
    let ended = started.into_iter().map(|thread| thread.join());
    let ended: Vec<(usize, Timed<Client>)> = ended
        .map(|call| call.expect("the call fails as expected"))
        .collect();
    // The clients are dropped when this function returns, and undo their calls: the server must
    // reply.
    server.resume();
    drop(hole);
    let mut lates = KINDS.each_ref().map(|_| Vec::new());
    for (n, timed) in &ended {
        assert!(timed.took >= bound, "{} returned early", KINDS[*n].name);
        lates[*n].push(timed.overrun());
    }
    lates
}

fn builder(url: &str) -> ClientBuilder {
    Client::builder().url(url).breaker(0).unreachable_for(HOUR)
}

/// A client with an open connection.
fn connected(builder: ClientBuilder) -> Client {
    let client = builder.build().expect("the settings are valid");
    client.ping().expect("the server answers");
    client
}

fn on_open_connection(url: &str, bound: Duration) -> Call {
    let client = connected(builder(url).command_timeout(HOUR));
    Box::new(move || {
        assert!(client.mutex("x").try_lock_for(bound).is_err());
        client
    })
}

fn while_unreachable(url: &str, bound: Duration) -> Call {
    let client = connected(builder(url).unreachable_for(bound));
    Box::new(move || {
        assert!(client.mutex("x").lock().is_err());
        client
    })
}

fn to_new_peer(url: &str, bound: Duration) -> Call {
    let client = builder(url).command_timeout(bound).connect_timeout(bound);
    let client = client.build().expect("the settings are valid");
    Box::new(move || {
        assert!(client.mutex("x").try_lock().is_err());
        client
    })
}
