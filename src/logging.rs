//! Log macros that contain a panic of the user's logger: no lease depends on a logger.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Like `log::log!`, but a panic of the logger ends here. Unwinding further could leave a lease
/// that nobody renews, or that has no guard.
macro_rules! record {
    ($level:expr, $($record:tt)+) => {{
        let level: ::log::Level = $level;
        // The same check as in `log`, before any user code runs.
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

// Named differently above because `warn` is also an attribute.
pub(crate) use {
    debug_ as debug, error_ as error, info_ as info, record, trace_ as trace, warn_ as warn,
};

/// Runs `act`, which may call a user's code: a logger, a metrics recorder, or the drop of a
/// closure. If that code panics, only the rest of `act` is lost. The panic hook has already printed
/// its message.
pub(crate) fn contain(act: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(act));
}
