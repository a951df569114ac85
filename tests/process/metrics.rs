//! Promise: with the feature `metrics`, a client's statistics reach the program's recorder under
//! the documented names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold::Client;
use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use parking_lot::Mutex;
use support::{Cluster, ClusterSetup, Proxy, Server, eventually, ms, thread_count};

support::own_process![basic_metrics_reach_the_recorder,];

/// A recorder that keeps all values by name and labels.
#[derive(Clone, Default)]
struct TestRecorder(Arc<Recorded>);

#[derive(Default)]
struct Recorded {
    counters: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    gauges: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    histograms: Mutex<BTreeMap<String, Arc<Times>>>,
    described: Mutex<BTreeSet<String>>,
}

#[derive(Default)]
struct Times(Mutex<Vec<f64>>);

impl HistogramFn for Times {
    fn record(&self, value: f64) {
        self.0.lock().push(value);
    }
}

/// Formats a key as Prometheus does.
fn formatted(key: &Key) -> String {
    let labels: Vec<_> = key
        .labels()
        .map(|label| format!("{}={}", label.key(), label.value()))
        .collect();
    format!("{}{{{}}}", key.name(), labels.join(","))
}

impl Recorder for TestRecorder {
    fn describe_counter(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.0.described.lock().insert(key.as_str().to_owned());
    }

    fn describe_gauge(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.0.described.lock().insert(key.as_str().to_owned());
    }

    fn describe_histogram(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.0.described.lock().insert(key.as_str().to_owned());
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let mut counters = self.0.counters.lock();
        Counter::from_arc(Arc::clone(counters.entry(formatted(key)).or_default()))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let mut gauges = self.0.gauges.lock();
        Gauge::from_arc(Arc::clone(gauges.entry(formatted(key)).or_default()))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        let mut histograms = self.0.histograms.lock();
        Histogram::from_arc(Arc::clone(histograms.entry(formatted(key)).or_default()))
    }
}

impl TestRecorder {
    fn counter(&self, name: &str) -> u64 {
        let counters = self.0.counters.lock();
        counters
            .get(name)
            .map_or(0, |count| count.load(Ordering::SeqCst))
    }

    fn gauge(&self, name: &str) -> Option<f64> {
        let gauges = self.0.gauges.lock();
        let bits = gauges.get(name)?.load(Ordering::SeqCst);
        Some(f64::from_bits(bits))
    }

    fn times(&self, name: &str) -> Vec<f64> {
        let histograms = self.0.histograms.lock();
        histograms
            .get(name)
            .map_or_else(Vec::new, |times| times.0.lock().clone())
    }
}

// One test only: the recorder is global to the process.
fn basic_metrics_reach_the_recorder() {
    let recorder = TestRecorder::default();
    metrics::set_global_recorder(recorder.clone())
        .unwrap_or_else(|_| panic!("no other recorder is set"));
    let server = Server::start();
    let client = Client::open(server.url()).unwrap();
    for _ in 0..3 {
        drop(client.mutex("a").lock().unwrap());
    }
    let guard = client.mutex("b").auto_renew(false).lock().unwrap();
    guard.renew().unwrap();
    assert!(client.mutex("b").try_lock().unwrap().is_err());
    eventually(ms(20_000), || {
        recorder.counter("leasehold_refused_total{}") == 1
            && recorder.gauge("leasehold_held{client=1}") == Some(1.0)
    });

    // A recorder that is installed late still learns the descriptions.
    recorder.0.described.lock().clear();
    eventually(ms(20_000), || !recorder.0.described.lock().is_empty());

    // Each count is reported once.
    guard.renew().unwrap();
    eventually(ms(20_000), || {
        recorder.counter("leasehold_renewals_total{outcome=ok}") == 2
    });
    assert_values_of_first_client(&recorder, &client);

    // A second client adds to the counts, but has its own gauges.
    let other = Client::open(server.url()).unwrap();
    drop(other.mutex("a").lock().unwrap());
    drop(other);
    assert_eq!(recorder.counter("leasehold_acquired_total{how=at_once}"), 5);
    assert_eq!(recorder.gauge("leasehold_connections{client=2}"), Some(0.0));

    // The effects of a shutdown are reported before it returns.
    assert!(client.shutdown(ms(10_000)).is_clean());
    assert_eq!(
        recorder.counter("leasehold_lost_total{reason=shut_down}"),
        1
    );
    assert_eq!(recorder.gauge("leasehold_held{client=1}"), Some(0.0));

    assert_a_cluster_is_reported(&recorder);
    assert_no_lag_without_a_lease(&recorder, &server);
    assert_every_name_is_documented(&recorder);
}

/// Asserts the values after four locks and three releases by one client.
fn assert_values_of_first_client(recorder: &TestRecorder, client: &Client) {
    assert_eq!(recorder.counter("leasehold_attempts_total{}"), 4);
    assert_eq!(recorder.counter("leasehold_acquired_total{how=at_once}"), 4);
    assert_eq!(
        recorder.counter("leasehold_acquired_total{how=after_waiting}"),
        0
    );
    assert_eq!(recorder.counter("leasehold_released_total{}"), 3);
    assert_eq!(recorder.gauge("leasehold_waiting{client=1}"), Some(0.0));
    assert_eq!(
        recorder.gauge("leasehold_renewal_lag_seconds{client=1}"),
        Some(0.0)
    );
    assert!(recorder.gauge("leasehold_connections{client=1}") > Some(0.0));
    assert_eq!(
        recorder.gauge("leasehold_open_breakers{client=1}"),
        Some(0.0)
    );
    let (wait, hold) = (
        recorder.times("leasehold_wait_seconds{}"),
        recorder.times("leasehold_hold_seconds{}"),
    );
    assert_eq!((wait.len(), hold.len()), (4, 3));
    let longest = client.stats().wait.max.as_secs_f64();
    assert_eq!(wait.iter().copied().fold(0.0, f64::max), longest);
    assert!(recorder.times("leasehold_command_seconds{}").len() >= 8);
}

/// In a cluster, the statistics are reported whichever masters are in use.
fn assert_a_cluster_is_reported(recorder: &TestRecorder) {
    let cluster = Cluster::with(ClusterSetup::steady(3, 0));
    for (node, number) in [(0, 3), (1, 4), (2, 5)] {
        let client = Client::open(cluster.url()).unwrap();
        let mutex = client.mutex(cluster.name_owned_by("a", node));
        let guard = mutex.renew_every(ms(100)).lock().unwrap();
        let held = format!("leasehold_held{{client={number}}}");
        eventually(ms(20_000), || recorder.gauge(&held) == Some(1.0));
        // A dialer that it starts has its name for a moment.
        eventually(ms(20_000), || thread_count("leasehold-engin") == 1);
        drop(guard);
        assert!(client.shutdown(ms(10_000)).is_clean());
        assert_eq!(recorder.gauge(&held), Some(0.0));
    }
}

/// The lag of a late renewal is reported as 0 after the release, so that an alert on it ends.
fn assert_no_lag_without_a_lease(recorder: &TestRecorder, server: &Server) {
    let proxy = Proxy::new(server);
    let client = Client::open(proxy.url()).unwrap();
    let guard = client.mutex("a").renew_every(ms(100)).lock().unwrap();
    proxy.delay(ms(0), ms(400));
    let lag = || recorder.gauge("leasehold_renewal_lag_seconds{client=6}");
    eventually(ms(20_000), || lag() > Some(0.0));
    drop(guard);
    eventually(ms(20_000), || lag() == Some(0.0));
}

fn assert_every_name_is_documented(recorder: &TestRecorder) {
    let documentation = include_str!("../../src/guide/observability.rs");
    let names = documentation
        .lines()
        .filter_map(|line| line.strip_prefix("//! | `leasehold_")?.split('`').next())
        .map(|name| format!("leasehold_{name}"));
    let documented: BTreeSet<String> = names.collect();
    let bare = |name: &String| name.split('{').next().unwrap_or_default().to_owned();
    let mut reported: BTreeSet<String> = recorder.0.counters.lock().keys().map(bare).collect();
    reported.extend(recorder.0.gauges.lock().keys().map(bare));
    reported.extend(recorder.0.histograms.lock().keys().map(bare));
    assert_eq!(reported, documented);
    assert_eq!(*recorder.0.described.lock(), documented);
    // The same table lists the values of each label.
    for name in recorder.0.counters.lock().keys() {
        let label = name.split(['{', '}']).nth(1).unwrap_or_default();
        if let Some((key, value)) = label.split_once('=') {
            let line = documentation
                .lines()
                .find(|line| line.contains(&bare(name)))
                .unwrap();
            assert!(line.contains(&format!("`{key}`")), "{line}");
            assert!(line.contains(&format!("`{value}`")), "{line}: {value}");
        }
    }
}
