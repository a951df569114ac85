//! A logger that keeps every record of this process for assertions.

use std::sync::OnceLock;

use log::kv::{Error, Key, Value, VisitSource};
use log::{Level, LevelFilter, Log, Metadata, Record};
use parking_lot::Mutex;

#[derive(Clone, Debug)]
pub struct LogRecord {
    pub level: Level,
    pub target: String,
    pub message: String,
    pub pairs: Vec<(String, String)>,
}

impl LogRecord {
    /// Returns the value logged under the key.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.pairs
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, value)| value.as_str())
    }

    /// Returns whether the message or a value contains the text.
    pub fn mentions(&self, text: &str) -> bool {
        self.message.contains(text) || self.pairs.iter().any(|(_, value)| value.contains(text))
    }
}

/// Returns every record since the first call in this process.
///
/// The first call installs the logger, so a test must call this before the records that it expects.
/// All tests of a process share the records, so a test must look for names that no other test uses.
pub fn log_records() -> Vec<LogRecord> {
    capture().records.lock().clone()
}

/// Returns the records that mention the text, as [`log_records`] does.
pub fn log_records_about(text: &str) -> Vec<LogRecord> {
    let mut records = log_records();
    records.retain(|record| record.mentions(text));
    records
}

/// Runs `act` once, in the thread that logs the next record that mentions the text. The record is
/// stored first, and the thread continues after `act` returns.
pub fn at_next_record_about(text: &'static str, act: impl FnOnce() + Send + 'static) {
    capture().hooks.lock().push((text, Box::new(act)));
}

/// The text of a record, and what to run when a record mentions it.
type Hook = (&'static str, Box<dyn FnOnce() + Send>);

struct Capture {
    records: Mutex<Vec<LogRecord>>,
    hooks: Mutex<Vec<Hook>>,
}

fn capture() -> &'static Capture {
    static CAPTURE: OnceLock<&'static Capture> = OnceLock::new();
    CAPTURE.get_or_init(|| {
        let capture: &'static Capture = Box::leak(Box::new(Capture {
            records: Mutex::new(Vec::new()),
            hooks: Mutex::new(Vec::new()),
        }));
        log::set_logger(capture).expect("no other logger is set in this process");
        log::set_max_level(LevelFilter::Trace);
        capture
    })
}

impl Log for Capture {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let mut pairs = Pairs(Vec::new());
        let _ = record.key_values().visit(&mut pairs);
        let record = LogRecord {
            level: record.level(),
            target: record.target().to_owned(),
            message: record.args().to_string(),
            pairs: pairs.0,
        };
        let mut hooks = self.hooks.lock();
        let due: Vec<Hook> = hooks
            .extract_if(.., |(text, _)| record.mentions(text))
            .collect();
        // Without the lock: a hook may log, and may add hooks.
        drop(hooks);
        self.records.lock().push(record);
        due.into_iter().for_each(|(_, act)| act());
    }

    fn flush(&self) {}
}

struct Pairs(Vec<(String, String)>);

impl<'kvs> VisitSource<'kvs> for Pairs {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), Error> {
        self.0.push((key.to_string(), value.to_string()));
        Ok(())
    }
}
