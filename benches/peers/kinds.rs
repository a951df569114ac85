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
use common::fleet::{Locker, Lockers, alternating};
use common::floor::pair::BareQuorum;
use leasehold::Client;

/// Opens a candidate by its kind. Several URLs, separated by commas, are a quorum. Each contending
/// thread of an async crate gets a runtime.
pub(crate) fn open(kind: &str, url: &str) -> Lockers {
    if let Some(kind) = kind.strip_prefix("alternating/") {
        return alternating(open(kind, url));
    }
    if let Some(lockers) = shared::open(kind, url) {
        return lockers;
    }
    let urls: Vec<String> = url.split(',').map(str::to_owned).collect();
    match kind {
        "rslock" => Box::new(move || rslock(&urls, None)),
        // Each pause is random and shorter than this; likewise for redlock, in ms.
        "rslock-tuned" => Box::new(move || rslock(&urls, Some(2 * TUNED))),
        "redlock" => Box::new(move || redlock(&urls, None)),
        "redlock-tuned" => Box::new(move || redlock(&urls, Some(2))),
        "redis-lock" => Box::new(move || redis_lock(&urls, LockAcrossOptions::default)),
        "redis-lock-tuned" => Box::new(move || {
            redis_lock(&urls, || LockAcrossOptions {
                ttl: TTL,
                retry: TUNED,
                duration: Duration::from_secs(60),
            })
        }),
        "distributed-lock" => Box::new(move || distributed_lock(&urls, false)),
        "distributed-lock-tuned" => Box::new(move || distributed_lock(&urls, true)),
        "mutex" if urls.len() > 1 => {
            let mutex = Client::quorum(urls).unwrap().mutex(NAME);
            Box::new(move || ours(mutex.clone()))
        }
        "poller" if urls.len() > 1 => Box::new(move || bare_quorum(&urls)),
        _ => candidates::open(kind, url),
    }
}

fn ours(mutex: leasehold::Mutex) -> Locker {
    Box::new(move |section| {
        let guard = mutex.lock().map_err(|error| error.to_string())?;
        section.run(guard.fencing_token().value());
        candidates::released(guard.unlock())
    })
}

fn bare_quorum(urls: &[String]) -> Locker {
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let mut bare = BareQuorum::new(&urls, NAME);
    Box::new(move |section| {
        bare.pair(|| section.run(0));
        Ok(())
    })
}

fn rslock(urls: &[String], pause_limit: Option<Duration>) -> Locker {
    let runtime = runtime();
    let mut manager = LockManager::new(urls.to_vec());
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

fn redlock(urls: &[String], pause_limit_ms: Option<u32>) -> Locker {
    let mut lock = RedLock::new(urls.to_vec());
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

fn redis_lock(urls: &[String], options: fn() -> LockAcrossOptions) -> Locker {
    let runtime = runtime();
    let connect = |url: &String| {
        let client = redis_of_redis_lock::Client::open(&**url).unwrap();
        let connection = runtime.block_on(client.get_multiplexed_async_connection());
        Arc::new(Mutex::new(connection.unwrap()))
    };
    let connections: Vec<_> = urls.iter().map(connect).collect();
    Box::new(move |section| {
        let section = section.clone();
        runtime.block_on(async {
            let run = async move { section.run(0) };
            let locked = redis_lock::lock_across(&connections, NAME, run, options());
            locked.await.map_err(|error| error.to_string())
        })
    })
}

/// The `acquire` of this crate tries once, whatever the timeout. A refusal counts as a failure with
/// the default settings, and is retried here with the tuned ones.
fn distributed_lock(urls: &[String], is_tuned: bool) -> Locker {
    let runtime = runtime();
    let provider = distributed_lock_provider(&runtime, urls, is_tuned);
    Box::new(move |section| {
        // A lock object has one holder id, so each acquisition gets a new object.
        let lock = provider.create_lock(NAME);
        runtime.block_on(async {
            let handle = loop {
                let attempt = if is_tuned {
lock.try_acquire().await
} else {
lock.acquire(Some(TTL)).await.map(Some)
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
