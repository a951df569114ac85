//! A log record that outlives the call that made it.

use log::kv::{Error, Key, ToValue, Value, VisitSource, VisitValue};
use log::{Level, Log, Metadata, Record};

use crate::logging::deferred::{is_deferring, run_slow};

/// The user's logger. On a thread on which leases depend, another thread calls it later.
pub(crate) struct Logger;

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        log::logger().enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if is_deferring() {
            let record = OwnedRecord::of(record);
            run_slow(move || record.log());
        } else {
            log::logger().log(record);
        }
    }

    fn flush(&self) {
        log::logger().flush();
    }
}

struct OwnedRecord {
    level: Level,
    target: String,
    module: Option<&'static str>,
    file: Option<&'static str>,
    line: Option<u32>,
    text: String,
    pairs: Pairs,
}

impl OwnedRecord {
    fn of(record: &Record<'_>) -> Self {
        let mut pairs = Pairs::default();
        // Fails only if the visitor does.
        let _ = record.key_values().visit(&mut pairs);
        Self {
            level: record.level(),
            target: record.target().to_owned(),
            module: record.module_path_static(),
            file: record.file_static(),
            line: record.line(),
            text: record.args().to_string(),
            pairs,
        }
    }

    fn log(&self) {
        log::logger().log(
            &Record::builder()
                .level(self.level)
                .target(&self.target)
                .module_path_static(self.module)
                .file_static(self.file)
                .line(self.line)
                .args(format_args!("{}", self.text))
                .key_values(&self.pairs)
                .build(),
        );
    }
}

#[derive(Default)]
struct Pairs(Vec<(String, OwnedValue)>);

/// A value of the kinds that the crate's records have.
enum OwnedValue {
    None,
    Number(u64),
    Text(String),
}

impl<'kvs> VisitSource<'kvs> for Pairs {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), Error> {
        let mut owned = OwnedValue::None;
        value.visit(&mut owned)?;
        self.0.push((key.to_string(), owned));
        Ok(())
    }
}

impl log::kv::Source for Pairs {
    fn visit<'kvs>(&'kvs self, visitor: &mut dyn VisitSource<'kvs>) -> Result<(), Error> {
        for (key, value) in &self.0 {
            visitor.visit_pair(Key::from_str(key), value.to_value())?;
        }
        Ok(())
    }
}

impl VisitValue<'_> for OwnedValue {
    fn visit_any(&mut self, value: Value<'_>) -> Result<(), Error> {
        *self = Self::Text(value.to_string());
        Ok(())
    }

    fn visit_null(&mut self) -> Result<(), Error> {
        *self = Self::None;
        Ok(())
    }

    fn visit_u64(&mut self, value: u64) -> Result<(), Error> {
        *self = Self::Number(value);
        Ok(())
    }
}

impl ToValue for OwnedValue {
    fn to_value(&self) -> Value<'_> {
        match self {
            Self::None => Value::null(),
            Self::Number(number) => Value::from(*number),
            Self::Text(text) => Value::from(text.as_str()),
        }
    }
}
