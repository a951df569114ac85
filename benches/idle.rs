//! How often an idle client wakes its threads: with a subscriber and no lease, and with one held
//! lease. Counts the voluntary context switches of the client's threads: each is the end of a wait.
//!
//! Needs Linux, which lists the threads of a process. Takes about two and a half minutes.

use std::time::Duration;

use common::picture::{Panel, Picture, Row};
use common::{Report, Spread};
use leasehold::Client;
use support::{Sentinels, Server, Setup, let_pass, ms, own_thread_waits};

/// The number of windows for each row.
const ROUNDS: usize = 3;
const WINDOW: Duration = Duration::from_secs(10);

/// How long a client keeps a subscription that no call uses, and a little more.
const UNSUBSCRIBED: Duration = Duration::from_secs(12);

/// The time between a client's last call and the first window.
const SETTLED: Duration = Duration::from_secs(2);

/// The ttl of the held lease: one window in two has a renewal.
const TTL: Duration = Duration::from_secs(60);

/// The most wake-ups in a window: with a subscriber and no lease, and with a held lease.
const ALLOWED: [u64; 2] = [0, 11];

fn main() {
    if !cfg!(target_os = "linux") {
        println!("idle: nothing is measured, because only Linux counts the waits of each thread");
        return;
    }
    let report = Report::begin(
        "idle",
        ROUNDS,
        &format!("wake-ups of all threads of an idle client, {ROUNDS} windows of {WINDOW:?}"),
    );
    let server = Server::start().long_lived();
    let one = measure(&server.url(), &server);
    drop(server);
    let sentinels = Sentinels::start(Setup::steady()).long_lived();
    let watched = measure(&sentinels.url(), sentinels.first_master());
    let [no_lease, lease] = ALLOWED.map(Some);
    let rows = [
        ("one server, a subscriber", "", &one[0], no_lease),
        ("one server, a held lease", "_lease", &one[1], lease),
        ("Sentinel, a subscriber", "_sentinel", &watched[0], None),
        (
            "Sentinel, a held lease",
            "_sentinel_lease",
            &watched[1],
            None,
        ),
    ];
    print(&rows);
    let figures = rows.map(|(_, key, windows, _)| {
        let most = total(busiest(windows)).to_string();
        (format!("wakeups_in_10s{key}"), most)
    });
    let figures: Vec<_> = figures
        .iter()
        .map(|(key, value)| (key.as_str(), value.clone()))
        .collect();
    let bars = rows.map(|(label, _, windows, allowed)| {
        let bar = Row::bar(label, spread(windows)).ours();
        match allowed {
            Some(allowed) => bar.mark("≤", allowed as f64),
            None => bar,
        }
    });
    let picture = Picture {
        title: "Wake-ups of all threads of an idle client".to_owned(),
        panels: vec![Panel::new("in 10 s", bars.into())],
    };
    report.end(&figures, &picture);
}

/// Prints the rows: the label, the last part of the key, the windows, and the most wake-ups.
fn print(rows: &[(&str, &str, &Vec<Window>, Option<u64>)]) {
    let heads = [
        "an idle client",
        "wake-ups in 10 s (quartiles)",
        "most",
        "target",
        "threads in the window with the most",
    ];
    let rows = rows.iter().map(|(label, _, windows, allowed)| {
        let busiest = busiest(windows);
        let threads = busiest
            .iter()
            .map(|(thread, waits)| format!("{thread} {waits}"));
        vec![
            (*label).to_owned(),
            spread(windows).show(0),
            total(busiest).to_string(),
            allowed.map_or_else(String::new, |allowed| format!("≤ {allowed}")),
            threads.collect::<Vec<_>>().join(", "),
        ]
    });
    common::print_table(&heads, &rows.collect::<Vec<_>>());
}

/// The waits of each thread of the client in one window.
type Window = Vec<(String, u64)>;

fn total(window: &Window) -> u64 {
    window.iter().map(|(_, waits)| waits).sum()
}

fn busiest(windows: &[Window]) -> &Window {
    let busiest = windows.iter().max_by_key(|window| total(window));
    busiest.expect("there are several windows")
}

fn spread(windows: &[Window]) -> Spread {
    Spread::of(windows.iter().map(|window| total(window) as f64))
}

/// Measures a client with a subscriber and no lease, and the same client with a held lease. Its
/// locks are on `server`.
fn measure(url: &str, server: &Server) -> [Vec<Window>; 2] {
    server.run("SET", &["lock:taken", "another holder"]);
    let client = Client::open(url).expect("the URL is valid");
    let refused = client.mutex("taken").try_lock_for(ms(300));
    assert!(refused.is_ok_and(|answer| answer.is_err()));
    let_pass(UNSUBSCRIBED);
    let idle = windows();
    let held = client.mutex("held").ttl(TTL).lock();
    let held = held.expect("the lock is free");
    let with_lease = windows();
    assert!(held.is_held());
    [idle, with_lease]
}

fn windows() -> Vec<Window> {
    let_pass(SETTLED);
    let windows = (0..ROUNDS).map(|_| {
        let before = own_thread_waits();
        let_pass(WINDOW);
        let waits = own_thread_waits().into_iter().map(|(id, (name, waits))| {
            let earlier = before.get(&id).map_or(0, |(_, waits)| *waits);
            (name, waits - earlier)
        });
        waits.collect()
    });
    windows.collect()
}
