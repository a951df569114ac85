//! A shop's catalogue: some processes read it through a cache while another updates it. The updater
//! stores its fencing token with the data, as their version. A reader stores a page with that
//! version as the stamp. The cache rejects a page whose stamp is lower than its own, so a page from
//! before an update does not replace a newer one.
//! The reader's own token is no version: if Redis loses data, a reader can find the token of an
//! earlier updater again. The documentation of `RwLock` lists the other cases in which a page can
//! be old. A real cache therefore also limits the age of its pages.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use leasehold::{Client, RwLock, RwLockReadGuard};
use redis::Commands;

use support::child::Child;
use support::data::{connect, key};
use support::run::{Outcome, run};

mod support {
    pub(crate) mod child;
    pub(crate) mod data;
    pub(crate) mod run;
}

const READERS: u32 = 4;
const READS: u32 = 25;
const UPDATES: u32 = 10;

/// Replaces the cached page unless the cached stamp is higher. To keep the example short, the cache
/// and the database are in the same Redis as the locks.
const FILL: &str = "
local stamp = tonumber(redis.call('HGET', KEYS[1], 'stamp') or 0)
if tonumber(ARGV[1]) < stamp then return 0 end
redis.call('HSET', KEYS[1], 'stamp', ARGV[1], 'page', ARGV[2])
return 1
";

/// Calls `one_day`, with a private Redis unless `REDIS_URL` is set. Your own program would not
/// need this.
fn main() -> ExitCode {
    run(one_day, &[("reader", reader), ("updater", updater)])
}

fn catalogue() -> Outcome<RwLock> {
    Ok(Client::from_env()?.rw_lock("catalogue"))
}

/// Runs in each reading process: reads pages through the cache and fills it.
fn reader() -> Outcome {
    let (catalogue, mut redis) = (catalogue()?, connect()?);
    for _ in 0..READS {
        let guard = catalogue.read()?;
        let version: u64 = redis.get(key("version"))?;
        let (stamp, cached): (Option<u64>, Option<String>) =
            redis.hmget(key("cache"), &["stamp", "page"])?;
        // This example always reads the database, to check the cached page. A shop would read it
        // only if the stamp differs from the version.
        let page = page(&mut redis, &guard)?;
        if stamp == Some(version) {
            assert_eq!(cached, Some(page), "a page with this stamp is current");
        } else {
            let _: bool = redis::Script::new(FILL)
                .key(key("cache"))
                .arg(version)
                .arg(page)
                .invoke(&mut redis)?;
        }
        guard.unlock()?;
    }
    Ok(())
}

/// Returns the page as it is in the database: two prices, which must belong together.
fn page(redis: &mut redis::Connection, guard: &RwLockReadGuard) -> Outcome<String> {
    let net: u32 = redis.get(key("net"))?;
    thread::sleep(Duration::from_millis(1));
    let gross: u32 = redis.get(key("gross"))?;
    // If this process was paused for longer than its lease, the prices may have been updated.
    guard.ensure_held()?;
    assert_eq!(
        gross,
        net * 2,
        "no update is under way while somebody reads"
    );
    Ok(format!("{net} net, {gross} gross"))
}

/// Runs in the updating process: changes both prices under the lock.
fn updater() -> Outcome {
    let (catalogue, mut redis) = (catalogue()?, connect()?);
    for _ in 0..UPDATES {
        let guard = catalogue.write()?;
        let net: u32 = redis.get(key("net"))?;
        let net = net + 1;
        // Before the first write: a loss that is noticed here leaves both prices as they are.
        guard.ensure_held()?;
        let () = redis.set(key("version"), guard.fencing_token().value())?;
        let () = redis.set(key("net"), net)?;
        thread::sleep(Duration::from_millis(1));
        let () = redis.set(key("gross"), net * 2)?;
        // Continues as a reader: nobody can update until this process has read the new page.
        let guard = guard.downgrade();
        assert!(page(&mut redis, &guard)?.starts_with(&net.to_string()));
        guard.unlock()?;
    }
    Ok(())
}

fn one_day() -> Outcome {
    let mut redis = connect()?;
    let () = redis.mset(&[(key("net"), 100), (key("gross"), 200), (key("version"), 0)])?;
    let mut children = Vec::new();
    for _ in 0..READERS {
        children.push(Child::spawn("reader")?);
    }
    children.push(Child::spawn("updater")?);
    for mut child in children {
        assert!(child.process.wait()?.success());
    }
    println!("{READERS} processes read {READS} times each, during {UPDATES} updates: no old page.");

    // Stores the current page. Then simulates a reader that read its page before an update, with a
    // lower token, and was paused: it tries to store that page now.
    let lock = catalogue()?;
    let reading = lock.read()?;
    let fresh: u64 = redis.get(key("version"))?;
    let fill = |redis: &mut redis::Connection, stamp: u64, page: &str| {
        let script = redis::Script::new(FILL);
        let mut call = script.key(key("cache"));
        call.arg(stamp).arg(page).invoke::<bool>(redis)
    };
    let page = page(&mut redis, &reading)?;
    assert!(fill(&mut redis, fresh, &page)?);
    assert!(!fill(&mut redis, fresh - 1, "the prices of yesterday")?);
    let cached: String = redis.hget(key("cache"), "page")?;
    assert_eq!(cached, page);
    println!("The cache has \"{cached}\", and rejected the page of an earlier version.");
    Ok(())
}
