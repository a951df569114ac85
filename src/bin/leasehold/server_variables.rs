//! The environment variables that name a server.

/// The variables. If neither `--url` nor one of these is set, the library uses its default host,
/// and the message that Redis is unreachable says so.
pub(crate) const SERVER_VARIABLES: [&str; 3] = ["REDIS_URL", "REDIS_URLS", "REDIS_HOST"];
