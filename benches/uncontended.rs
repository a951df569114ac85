//! Lock and unlock on one thread. The client takes turns with the same scripts called by hand, and
//! with the plain SET NX and compare-and-delete that other crates send. Also measures what each
//! call inside the scripts costs.

use std::cell::RefCell;
use std::time::Duration;

use common::floor::pair::{ACQUIRE, Bare, Hand, RELEASE, RELEASE_WITHOUT_QUEUE};
use common::picture::{Panel, Picture, Row};
use common::{Report, Runner, Samples, Spread, processor_time};
use leasehold::{Client, Mutex};
use support::Server;

const ROUNDS: usize = 500;
const PAIRS: usize = 25;

/// For how long a lease lingers, in the row of that name.
const LINGERS: Duration = Duration::from_millis(1);

fn main() {
    let server = Server::start().long_lived();
    let report = Report::begin(
        "uncontended",
        ROUNDS,
        &format!("lock + unlock on one thread, {ROUNDS} rounds of {PAIRS}"),
    );
    let Pairs {
        vs_scripts,
        scripts_vs_bare,
        scripts_vs_before,
        linger_vs_scripts,
        times,
    } = pairs(&server);
    let costs = calls(&server);
    let ratios = vec![
        Row::bar("leasehold vs its scripts by hand", vs_scripts)
            .ours()
            .mark("≤", 1.03),
        Row::bar("the same, lingering 1 ms", linger_vs_scripts)
            .ours()
            .mark("≤", 0.1),
        Row::bar("its scripts vs the bare pair", scripts_vs_bare),
    ];
    let picture = Picture {
        title: "Lock + unlock on one thread".to_owned(),
        panels: vec![
            Panel::new("µs: p50 · p99 · max", times),
            Panel::new("relative time", ratios),
            Panel::new("µs that each call inside the scripts costs", costs),
        ],
    };
    report.end(
        &[
            ("pair_vs_scripts", format!("{:.3}", vs_scripts.median)),
            (
                "linger_pair_vs_scripts",
                format!("{:.3}", linger_vs_scripts.median),
            ),
            ("scripts_vs_bare", format!("{:.3}", scripts_vs_bare.median)),
            (
                "scripts_vs_before",
                format!("{:.3}", scripts_vs_before.median),
            ),
        ],
        &picture,
    );
}

struct Pairs {
    vs_scripts: Spread,
    scripts_vs_bare: Spread,
    /// Relative to the scripts without a queue, whose release does not ask whether a client waits.
    scripts_vs_before: Spread,
    /// The client keeps the lease for 1 ms after each unlock. Means: most pairs send nothing.
    linger_vs_scripts: Spread,
    times: Vec<Row>,
}

const HEADS: [&str; 6] = [
    "pair",
    "p50 µs",
    "p99 µs",
    "client CPU µs",
    "vs scripts by hand (quartiles)",
    "vs bare (quartiles)",
];

/// Runs the client, its scripts by hand, the bare pair, and the scripts without a queue.
fn pairs(server: &Server) -> Pairs {
    let url = server.url();
    let client = Client::open(&url).unwrap();
    let ours = client.mutex("ours");
    let lingers = client.mutex("lingers").linger(LINGERS);
    let (mut hand, mut bare) = (Hand::new(&url, "hand"), Bare::new(&url, "bare"));
    let mut without_queue = Hand::with(&url, "before", ACQUIRE, RELEASE_WITHOUT_QUEUE);
    let used = [(); 5].map(|()| RefCell::default());
    let [ours_cpu, hand_cpu, bare_cpu, without_queue_cpu, lingers_cpu] = &used;
    let mut runners: [Runner<'_>; 5] = [
        Box::new(|| round(ours_cpu, || lock_and_unlock(&ours))),
        Box::new(|| round(hand_cpu, || hand.pair())),
        Box::new(|| round(bare_cpu, || bare.pair())),
        Box::new(|| round(without_queue_cpu, || without_queue.pair())),
        Box::new(|| round(lingers_cpu, || lock_and_unlock(&lingers))),
    ];
    let samples = common::take_turns(ROUNDS, &mut runners);
    drop(runners);
    let [ours, scripts, bare, without_queue, lingers] = [0, 1, 2, 3, 4].map(|n| &samples[n]);
    let names = [
        "leasehold",
        "its scripts by hand",
        "bare pair of other crates",
        "the scripts without a queue",
        "leasehold, lingering 1 ms",
    ];
    let rows = names.iter().zip(&samples).zip(&used);
    let rows = rows.map(|((name, samples), used)| {
        vec![
            (*name).to_owned(),
            format!("{:.1}", samples.percentile(50.0)),
            format!("{:.1}", samples.percentile(99.0)),
            format!("{:.1}", used.borrow().percentile(50.0)),
            samples.ratio(scripts).show(3),
            samples.ratio(bare).show(3),
        ]
    });
    common::print_table(&HEADS, &rows.collect::<Vec<_>>());
    let times = names.iter().zip(&samples).enumerate();
    let times = times.map(|(n, (name, samples))| {
        let row = Row::range(*name, samples.range());
        if [0, 4].contains(&n) { row.ours() } else { row }
    });
    Pairs {
        vs_scripts: ours.ratio(scripts),
        scripts_vs_bare: scripts.ratio(bare),
        scripts_vs_before: scripts.ratio(without_queue),
        linger_vs_scripts: lingers.ratio_of_means(scripts),
        times: times.collect(),
    }
}

fn lock_and_unlock(mutex: &Mutex) {
    mutex.lock().unwrap().unlock().unwrap();
}

/// Times each pair of a round, and records the processor time of a pair, averaged over the round.
fn round(used: &RefCell<Samples>, pair: impl FnMut()) -> Vec<Duration> {
    let before = processor_time();
    let times = common::timed(PAIRS, pair);
    let used_now = (processor_time() - before) / PAIRS as u32;
    used.borrow_mut().push(vec![used_now]);
    times
}

/// The scripts with one or several calls left out, written as they would be without them.
struct Variant {
    without: &'static str,
    serves: &'static str,
    /// Texts in each script, and their replacements without the calls.
    acquire: &'static [(&'static str, &'static str)],
    release: &'static [(&'static str, &'static str)],
}

const WITHOUT_TIME: (&str, &str) = ("redis.pcall('TIME')", "{'1764218113', '123456'}");
const WITHOUT_SET: (&str, &str) = (
    "redis.pcall('SET', KEYS[2], text, 'KEEPTTL', 'GET')",
    "text",
);
// Without these calls, a token is not above the last one.
const WITHOUT_ORDER: (&str, &str) = ("fence < token and ", "");
const WITHOUT_PUBLISH: (&str, &str) = ("redis.pcall('PUBLISH', ARGV[2], ARGV[1])", "local _ = 0");

const VARIANTS: [Variant; 8] = [
    Variant {
        without: "TIME",
        serves: "tokens rise across FLUSHALL, restart, failover",
        acquire: &[WITHOUT_TIME, WITHOUT_ORDER],
        release: &[],
    },
    Variant {
        without: "SET of the fence",
        serves: "tokens rise when the clock stops or is set back",
        acquire: &[WITHOUT_SET, WITHOUT_ORDER],
        release: &[],
    },
    Variant {
        without: "GET of that SET",
        serves: "invalid data is found",
        acquire: &[
            (", 'KEEPTTL', 'GET')", ", 'KEEPTTL')"),
            (
                "#fence == 16 and fence < token and fence > string.sub(seconds, 1, 7)",
                "fence.ok",
            ),
            ("\n      and string.match(fence, '^%d+$', 8)", ""),
        ],
        release: &[],
    },
    Variant {
        without: "KEEPTTL of that SET",
        serves: "unused fences expire",
        acquire: &[(", 'KEEPTTL', 'GET')", ", 'GET')")],
        release: &[],
    },
    Variant {
        without: "PUBLISH",
        serves: "the release wakes a waiter",
        acquire: &[],
        release: &[WITHOUT_PUBLISH],
    },
    Variant {
        without: "GET of the lock",
        serves: "a late release does not affect the next holder",
        acquire: &[],
        release: &[("redis.call('GET', KEYS[1])", "ARGV[1]")],
    },
    Variant {
        without: "the whole fence",
        serves: "",
        acquire: &[WITHOUT_TIME, WITHOUT_SET, WITHOUT_ORDER],
        release: &[],
    },
    Variant {
        without: "fence and PUBLISH",
        serves: "",
        acquire: &[WITHOUT_TIME, WITHOUT_SET, WITHOUT_ORDER],
        release: &[WITHOUT_PUBLISH],
    },
];

// The bench does not compile if a script no longer contains a text.
const _: () = {
    let mut n = 0;
    while n < VARIANTS.len() {
        assert_contains(ACQUIRE, VARIANTS[n].acquire);
        assert_contains(RELEASE, VARIANTS[n].release);
        n += 1;
    }
};

const fn assert_contains(script: &str, calls: &[(&str, &str)]) {
    let mut n = 0;
    while n < calls.len() {
        let (call, mut rest) = (calls[n].0.as_bytes(), script.as_bytes());
        while !starts_with(rest, call) {
            rest = match rest {
                [_, rest @ ..] => rest,
                [] => panic!("the script no longer contains the text"),
            };
        }
        n += 1;
    }
}

const fn starts_with(text: &[u8], start: &[u8]) -> bool {
    let mut n = 0;
    while n < start.len() {
        if n == text.len() || text[n] != start[n] {
            return false;
        }
        n += 1;
    }
    true
}

fn without(script: &str, calls: &[(&str, &str)]) -> String {
    calls
        .iter()
        .fold(script.to_owned(), |script, (call, instead)| {
            script.replace(call, instead)
        })
}

/// Measures what each call inside the scripts costs. All scripts are called by hand.
fn calls(server: &Server) -> Vec<Row> {
    let url = server.url();
    let mut hands = vec![Hand::new(&url, "whole")];
    hands.extend(VARIANTS.iter().enumerate().map(|(n, variant)| {
        let acquire = without(ACQUIRE, variant.acquire);
        let release = without(RELEASE, variant.release);
        Hand::with(&url, &format!("variant-{n}"), &acquire, &release)
    }));
    let mut runners: Vec<Runner<'_>> = hands
        .iter_mut()
        .map(|hand| {
            let runner: Runner<'_> = Box::new(|| common::timed(PAIRS, || hand.pair()));
            runner
        })
        .collect();
    let samples = common::take_turns(ROUNDS, &mut runners);
    let Some((whole, rest)) = samples.split_first() else {
        return Vec::new();
    };
    let rows: Vec<_> = VARIANTS
        .iter()
        .zip(rest)
        .map(|(variant, samples)| {
            vec![
                variant.without.to_owned(),
                format!("{:.1}", samples.percentile(50.0)),
                format!("{:.1}", samples.percentile(99.0)),
                whole.surplus(samples).show(1),
                variant.serves.to_owned(),
            ]
        })
        .collect();
    println!("the scripts by hand, with one or several calls left out");
    let heads = [
        "without",
        "p50 µs",
        "p99 µs",
        "costs µs (quartiles)",
        "what it is for",
    ];
    common::print_table(&heads, &rows);
    let costs = VARIANTS.iter().zip(rest);
    costs
        .map(|(variant, samples)| Row::bar(variant.without, whole.surplus(samples)))
        .collect()
}
