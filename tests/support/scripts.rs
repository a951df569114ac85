//! The crate's scripts, as the client sends them. `FakeServer` recognises requests by these texts,
//! so its tests fail if one of them is no longer the client's.

/// Joins files of `src/protocol` to the source of a script.
macro_rules! source {
    ($($name:literal),+) => {
        concat!($(include_str!(concat!("../../src/protocol/", $name, ".lua"))),+)
    };
}

/// The scripts of a queue. The files in brackets are the fast paths of an enter and of a release;
/// the others contain the functions that admit waiters.
macro_rules! queue {
    ([$($enter:literal),*], [$release:literal], $($functions:literal),+) => {
        QueueScripts {
            enter: source!("state", $($enter,)* $($functions,)+ "queue", "queue_enter"),
            refresh: source!("state", $($functions,)+ "queue", "queue_refresh"),
            release: source!("state", $release, $($functions,)+ "queue", "queue_release"),
            undo: source!("state", $($functions,)+ "queue", "queue_undo"),
        }
    };
}

pub struct QueueScripts {
    pub enter: &'static str,
    pub refresh: &'static str,
    pub release: &'static str,
    pub undo: &'static str,
}

/// The queue of a lock.
pub const LOCKS: QueueScripts = queue!(
    ["enter_free", "take_free", "draw_free", "end_free"],
    ["leave_free"],
    "last_token",
    "now",
    "locks"
);
/// The queue of a semaphore.
pub const PERMITS: QueueScripts = queue!(
    ["permits_enter_free", "draw_free", "permits_take_free"],
    ["permits_leave_free"],
    "last_token",
    "now",
    "later_end",
    "admit_permits"
);

pub const ACQUIRE: &str = source!("take_free", "draw_free", "end_free", "acquire");
/// The acquire of a further name of a set.
pub const ACQUIRE_AFTER: &str = source!("after", "take_free", "draw_free", "end_free", "acquire");
pub const PROPOSE: &str = source!("last_token", "propose");
/// The release of a lock that has no queue.
pub const RELEASE: &str = source!("rewrite", "release");
pub const RENEW: &str = source!("rewrite", "renew");
pub const RENEW_MANY: &str = source!("rewrite", "renew_many");
pub const UNDO: &str = source!("rewrite", "undo");
pub const INSPECT: &str = source!("inspect");
pub const FENCE: &str = source!("fence");
pub const ADD_STATS: &str = source!("add_stats");
pub const PROBE: &str = source!("probe");

/// The release of a `Mutex`.
pub const COHORT_RELEASE: &str = source!(
    "state",
    "leave_free",
    "rewrite",
    "last_token",
    "now",
    "locks",
    "queue",
    "plain",
    "cohort_release"
);
/// The refresh of a `Mutex`.
pub const COHORT_REFRESH: &str = source!(
    "state",
    "last_token",
    "now",
    "locks",
    "cohort_refresh",
    "queue",
    "queue_refresh"
);
pub const DOWNGRADE: &str = source!(
    "state",
    "last_token",
    "now",
    "locks",
    "later_end",
    "keep_reader",
    "queue",
    "downgrade"
);
pub const RENEW_SHARED: &str = source!(
    "state",
    "last_token",
    "now",
    "locks",
    "later_end",
    "keep_reader",
    "renew_shared"
);
pub const RENEW_SHARED_MANY: &str = source!(
    "state",
    "each_reader",
    "last_token",
    "now",
    "locks",
    "later_end",
    "keep_reader",
    "renew_shared_many"
);
pub const INSPECT_SHARED: &str = source!("now", "inspect_shared");
pub const PERMITS_RENEW: &str = source!("now", "permits_renew");
pub const PERMITS_RENEW_MANY: &str = source!("now", "permits_renew_many");
pub const PERMITS_INSPECT: &str = source!("now", "permits_inspect");

/// Returns the token that an acquire or enter granted for one name; `None` if its reply refuses.
///
/// # Panics
///
/// If no such script gives this reply.
pub fn granted(reply: &redis::Value) -> Option<u64> {
    match reply {
        redis::Value::BulkString(token) => {
            let token = std::str::from_utf8(token)
                .ok()
                .and_then(|token| token.parse().ok());
            Some(token.unwrap_or_else(|| panic!("no token: {reply:?}")))
        }
        redis::Value::Array(items) if items.first() == Some(&redis::Value::Int(0)) => None,
        _ => panic!("no reply of a script that acquires: {reply:?}"),
    }
}

/// Each script, with its name in the tests.
pub const NAMED: [(&str, &str); 28] = [
    ("acquire", ACQUIRE),
    ("acquire_after", ACQUIRE_AFTER),
    ("propose", PROPOSE),
    ("release", RELEASE),
    ("release", COHORT_RELEASE),
    ("renew", RENEW),
    ("renew_many", RENEW_MANY),
    ("renew_shared", RENEW_SHARED),
    ("renew_shared_many", RENEW_SHARED_MANY),
    ("undo", UNDO),
    ("inspect", INSPECT),
    ("inspect_shared", INSPECT_SHARED),
    ("fence", FENCE),
    ("add_stats", ADD_STATS),
    ("probe", PROBE),
    ("downgrade", DOWNGRADE),
    ("permits_renew", PERMITS_RENEW),
    ("permits_renew_many", PERMITS_RENEW_MANY),
    ("permits_inspect", PERMITS_INSPECT),
    ("queue_enter", LOCKS.enter),
    ("queue_enter", PERMITS.enter),
    ("queue_refresh", LOCKS.refresh),
    ("queue_refresh", COHORT_REFRESH),
    ("queue_refresh", PERMITS.refresh),
    ("queue_release", LOCKS.release),
    ("queue_release", PERMITS.release),
    ("queue_undo", LOCKS.undo),
    ("queue_undo", PERMITS.undo),
];
