//! Log macros for a logger that may panic or be slow: no lease depends on a logger.

mod deferred;
mod owned_record;

#[cfg(feature = "metrics")]
pub(crate) use deferred::run_slow;
pub(crate) use deferred::{Job, Later, contain, defer_to};
pub(crate) use owned_record::Logger;

/// Like `log::log!`, but a panic of the logger ends here. Unwinding further could leave a lease
/// that nobody renews, or that has no guard. See also [`defer_to`].
macro_rules! record {
    ($level:expr, $($record:tt)+) => {{
        let level: ::log::Level = $level;
        // The same check as in `log`, before any user code runs.
        if level <= ::log::STATIC_MAX_LEVEL && level <= ::log::max_level() {
            $crate::logging::contain(|| {
                ::log::log!(logger: $crate::logging::Logger, level, $($record)+);
            });
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

// Named differently above because `warn` is also an attribute.
pub(crate) use {
    debug_ as debug, error_ as error, info_ as info, record, trace_ as trace, warn_ as warn,
};
