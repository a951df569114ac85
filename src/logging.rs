//! Log records whose logger may panic: it is the user's code, and no lease depends on it.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// As `log::log!`, but a panic of the logger ends with the record. It would leave a lease that nobody renews any more, or
/// that nobody holds.
macro_rules! record {
    ($level:expr, $($record:tt)+) => {{
        let level: ::log::Level = $level;
        // As `log` does, before any code of the user's runs.
        if level <= ::log::STATIC_MAX_LEVEL && level <= ::log::max_level() {
            $crate::logging::contain(|| ::log::log!(level, $($record)+));
        }
    }};
}

macro_rules! trace_ {
    ($($record:tt)+) => { $crate::logging::record!(::log::Level::Trace, $($record)+) };
}

macro_rules! debug_ {
    ($($record:tt)+) => { $crate::logging::record!(::log::Level::Debug, $($record)+) };
}

macro_rules! info_ {
    ($($record:tt)+) => { $crate::logging::record!(::log::Level::Info, $($record)+) };
}

macro_rules! warn_ {
    ($($record:tt)+) => { $crate::logging::record!(::log::Level::Warn, $($record)+) };
}

macro_rules! error_ {
    ($($record:tt)+) => { $crate::logging::record!(::log::Level::Error, $($record)+) };
}

// Under other names above, since `warn` is an attribute too.
pub(crate) use {
    debug_ as debug, error_ as error, info_ as info, record, trace_ as trace, warn_ as warn,
};

/// Runs what calls the logger. The message of a panic is out when this returns: there is nothing more to say, and
/// nobody to say it to.
pub(crate) fn contain(act: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(act));
}
