//! The other crates, each as its documentation shows it, and with the settings that suit this
//! contention best.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use distributed_lock_core::traits::{DistributedLock, LockHandle, LockProvider};
use redis_lock::LockAcrossOptions;
use redlock::RedLock;
use rslock::LockManager;
use tokio::sync::Mutex;

use crate::contention::{NAME, TTL, TUNED};
use crate::provider::{distributed_lock_provider, runtime};
use crate::shared;
use common::candidates;
use common::fleet::{Locker, Lockers};

/// Each process has one contending thread; an async crate gets a runtime on it.
pub(crate) fn open(kind: &str, url: &str) -> Lockers {
    if let Some(lockers) = shared::open(kind, url) {
        return lockers;
    }
    let url = url.to_owned();
    match kind {
        "rslock" => Box::new(move || rslock(&url, None)),
        // The pause is random between 0 and this.
        "rslock-tuned" => Box::new(move || rslock(&url, Some(2 * TUNED))),
        "redlock" => Box::new(move || redlock(&url, None)),
        "redlock-tuned" => Box::new(move || redlock(&url, Some(2))),
        "redis-lock" => Box::new(move || redis_lock(&url, LockAcrossOptions::default)),
        "redis-lock-tuned" => Box::new(move || {
            redis_lock(&url, || LockAcrossOptions {
                ttl: TTL,
                retry: TUNED,
                duration: Duration::from_secs(60),
            })
        }),
        "distributed-lock" => Box::new(move || distributed_lock(&url, false)),
        "distributed-lock-tuned" => Box::new(move || distributed_lock(&url, true)),
        _ => candidates::open(kind, &url),
    }
}

fn rslock(url: &str, longest_pause: Option<Duration>) -> Locker {
    let runtime = runtime();
    let mut manager = LockManager::new(vec![url]);
    if let Some(longest_pause) = longest_pause {
        manager.set_retry(u32::MAX, longest_pause);
    }
    Box::new(move |section| {
        runtime.block_on(async {
            let guard = manager.acquire(NAME, TTL).await;
            let guard = guard.map_err(|error| error.to_string())?;
            section.run(0);
            guard.release().await;
            Ok(())
        })
    })
}

fn redlock(url: &str, longest_pause_ms: Option<u32>) -> Locker {
    let mut lock = RedLock::new(vec![url]);
    if let Some(longest_pause_ms) = longest_pause_ms {
        lock.set_retry(u32::MAX, longest_pause_ms);
    }
    let ttl = TTL.as_millis() as usize;
    Box::new(move |section| {
        let guard = lock.acquire(NAME.as_bytes(), ttl);
        let guard = guard.map_err(|error| error.to_string())?;
        section.run(0);
        drop(guard);
        Ok(())
    })
}

fn redis_lock(url: &str, options: fn() -> LockAcrossOptions) -> Locker {
    let runtime = runtime();
    let client = redis_of_redis_lock::Client::open(url).unwrap();
    let connection = runtime.block_on(client.get_multiplexed_async_connection());
    let connection = Arc::new(Mutex::new(connection.unwrap()));
    Box::new(move |section| {
        let section = section.clone();
        runtime.block_on(async {
            let connections = [Arc::clone(&connection)];
            let run = async move { section.run(0) };
            let locked = redis_lock::lock_across(&connections, NAME, run, options());
            locked.await.map_err(|error| error.to_string())
        })
    })
}

/// Its `acquire` tries once, whatever the timeout. The default settings count a refusal as a
/// failure; the tuned ones retry.
fn distributed_lock(url: &str, is_tuned: bool) -> Locker {
    let runtime = runtime();
    let provider = distributed_lock_provider(&runtime, url, is_tuned);
    Box::new(move |section| {
        // The holder id belongs to the lock object: each acquisition gets a new one.
        let lock = provider.create_lock(NAME);
        runtime.block_on(async {
            let handle = loop {
                let attempt = match is_tuned {
                    true => lock.try_acquire().await,
                    false => lock.acquire(Some(TTL)).await.map(Some),
                };
                match attempt {
                    Ok(Some(handle)) => break handle,
                    Ok(None) => thread::sleep(TUNED),
                    Err(error) => {
                        // The caller pauses rather than retrying at once.
                        thread::sleep(TUNED);
                        return Err(error.to_string());
                    }
                }
            };
            section.run(0);
            handle.release().await.map_err(|error| error.to_string())
        })
    })
}
