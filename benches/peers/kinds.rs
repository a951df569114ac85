//! The other crates, each once as its documentation shows it, and once with the settings that suit
//! this contention best.

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

/// Opens a candidate by its kind. Each process has one contending thread, on which an async crate
/// gets a runtime.
pub(crate) fn open(kind: &str, url: &str) -> Lockers {
    if let Some(lockers) = shared::open(kind, url) {
        return lockers;
    }
    let url = url.to_owned();
    match kind {
        "rslock" => Box::new(move || rslock(&url, None)),
        // Each pause is random and shorter than this; likewise for redlock, in ms.
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

fn rslock(url: &str, pause_limit: Option<Duration>) -> Locker {
    let runtime = runtime();
    let mut manager = LockManager::new(vec![url]);
    if let Some(pause_limit) = pause_limit {
        manager.set_retry(u32::MAX, pause_limit);
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

fn redlock(url: &str, pause_limit_ms: Option<u32>) -> Locker {
    let mut lock = RedLock::new(vec![url]);
    if let Some(pause_limit_ms) = pause_limit_ms {
        lock.set_retry(u32::MAX, pause_limit_ms);
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

/// The `acquire` of this crate tries once, whatever the timeout. A refusal counts as a failure with
/// the default settings, and is retried here with the tuned ones.
fn distributed_lock(url: &str, is_tuned: bool) -> Locker {
    let runtime = runtime();
    let provider = distributed_lock_provider(&runtime, url, is_tuned);
    Box::new(move |section| {
        // A lock object has one holder id, so each acquisition gets a new object.
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
                        // A user's program would pause, too: the bench itself retries at once.
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
