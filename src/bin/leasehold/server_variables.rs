//! The environment variables that name a server.

/// The variables. The library logs that it uses the default server if none of them is set.
pub(crate) const SERVER_VARIABLES: [&str; 3] = ["REDIS_URL", "REDIS_URLS", "REDIS_HOST"];
