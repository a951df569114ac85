//! The runtime of the async crates, and the provider of `distributed-lock-redis`.

use distributed_lock_redis::RedisLockProvider;
use tokio::runtime::{Builder, Runtime};

use crate::contention::TTL;

pub(crate) fn runtime() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be built")
}

pub(crate) fn distributed_lock_provider(
    runtime: &Runtime,
    urls: &[impl AsRef<str>],
    is_tuned: bool,
) -> RedisLockProvider {
    let mut builder = RedisLockProvider::builder().urls(urls);
    if is_tuned {
        let builder_with_ttl = builder.expiry(TTL).min_validity(TTL * 9 / 10);
        builder = builder_with_ttl.extension_cadence(TTL / 3);
    }
    runtime.block_on(builder.build()).unwrap()
}
