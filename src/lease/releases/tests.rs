//! Tests of pending releases: what one command carries, and when.

use super::*;
use crate::error::{Cause, Error};
use crate::lease::release::ReleaseReport;
use crate::protocol::answer::Undone;
use crate::protocol::keys::Keys;
use crate::protocol::mutex::MutexKeys;
use crate::redis::Majority;
use crossbeam_channel::{Receiver, unbounded};

const TTL: Duration = Duration::from_secs(600);

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn at(n: u64) -> Instant {
    Instant::START.after(ms(n))
}

fn keys(name: &str) -> Arc<dyn Primitive> {
    MutexKeys::of(Keys::new(name.into(), "lock:", "lock_release:"))
}

fn release(name: &str, now: Instant) -> Release {
    Release::undo(keys(name), HolderId::fresh("o"), now.after(TTL))
}

fn undone(removed: &[usize], other: Option<&HolderId>) -> Result<Answer, Fault> {
    Ok(Answer::Undone(Undone {
        removed: removed.to_vec(),
        other: other.map(|id| id.as_str().into()),
    }))
}

fn no_reply() -> Result<Answer, Fault> {
    Err(Fault::Unknown(Cause::text("no reply")))
}

/// Returns a release, and the channel on which its outcome is reported.
fn reported(name: &str) -> (Release, Receiver<KeyState>) {
    let (sender, found) = unbounded();
    let release = Release {
        report: Some(Arc::new(ReleaseReport::new(Majority::of(1), sender))),
        ..Release::new(keys(name), HolderId::fresh("o"), at(9_000))
    };
    (release, found)
}

/// Returns the batches sent from `from` to `to`, each with its time, if no try finds a key.
fn sent(releases: &mut Releases, from: Instant, to: Instant) -> Vec<(Instant, ReleaseBatch)> {
    let mut all = Vec::new();
    let mut now = from;
    while now <= to {
        releases.take_expired(now);
        for batch in releases.take_due(now) {
            assert!(releases.settle(&batch, undone(&[], None)).is_empty());
            all.push((now, batch));
        }
        let Some(next) = releases.next() else { break };
        assert!(next > now);
        now = next;
    }
    all
}

#[test]
fn releases_of_one_lock_share_a_command() {
    let mut releases = Releases::default();
    for name in ["a", "b", "a"] {
        releases.push(release(name, at(0)), at(0));
    }
    let batches = releases.take_due(at(0));
    let mut sizes: Vec<_> = batches.iter().map(|batch| batch.releases.len()).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [1, 2], "one command for each lock");
    assert!(releases.take_due(at(0)).is_empty());
    for batch in &batches {
        assert!(releases.settle(batch, no_reply()).is_empty());
    }
    assert_eq!(releases.next(), Some(at(50)));
    let batches = releases.take_due(at(51));
    assert_eq!(batches.len(), 2);
    releases.hasten();
    assert!(
        releases.take_due(at(52)).is_empty(),
        "a lock has one command in flight"
    );
    for batch in &batches {
        releases.settle(batch, no_reply());
    }
    let batches = releases.take_due(at(52));
    assert_eq!(batches.len(), 2, "each release has a last try");
    for batch in &batches {
        releases.settle(batch, no_reply());
    }
    assert!(releases.take_due(at(5_000)).is_empty());
}

#[test]
fn a_shutdown_sends_releases_before_they_are_due() {
    let mut releases = Releases::default();
    for _ in 0..=MOST_IDS {
        releases.push(release("a", at(0)), at(0));
    }
    let batch = releases.take_due(at(0)).remove(0);
    releases.settle(&batch, no_reply());
    releases.hasten();
    let mut sent = 0;
    while let Some(batch) = releases.take_due(at(1)).pop() {
        sent += batch.releases.len();
        releases.settle(&batch, undone(&[], None));
    }
    assert_eq!(sent, MOST_IDS + 1);
}

#[test]
fn release_ends_when_it_deleted_the_key_but_not_if_the_key_was_gone() {
    let mut releases = Releases::default();
    for _ in 0..3 {
        releases.push(release("a", at(0)), at(0));
    }
    let batch = releases.take_due(at(0)).remove(0);
    let over = releases.settle(&batch, undone(&[1], None));
    let over: Vec<_> = over.into_iter().map(|release| release.id).collect();
    assert_eq!(over, [batch.releases[1].1.clone()]);
    assert_eq!(releases.pending.len(), 2);
    assert_eq!(
        releases.take_expired(at(0).after(TTL)).len(),
        2,
        "the others end when their ttl has expired"
    );
    assert!(releases.is_empty() && releases.next().is_none());
}

#[test]
fn any_reply_ends_the_release_of_an_acquired_lease_and_is_reported() {
    let mut releases = Releases::default();
    for (answer, state) in [
        (undone(&[0], None), KeyState::Ours),
        (undone(&[], None), KeyState::Gone),
        (undone(&[], Some(&HolderId::fresh("o"))), KeyState::Foreign),
    ] {
        let (release, found) = reported("a");
        releases.push(release, at(0));
        let batch = releases.take_due(at(0)).remove(0);
        assert_eq!(releases.settle(&batch, answer).len(), 1);
        assert_eq!(found.try_recv(), Ok(state));
    }
    assert!(releases.is_empty());
}

#[test]
fn try_without_a_reply_may_have_removed_the_key() {
    let mut releases = Releases::default();
    let (release, found) = reported("a");
    releases.push(release, at(0));
    let batch = releases.take_due(at(0)).remove(0);
    assert!(releases.settle(&batch, no_reply()).is_empty());
    let batch = releases.take_due(at(60)).remove(0);
    assert_eq!(releases.settle(&batch, undone(&[], None)).len(), 1);
    assert_eq!(found.try_recv(), Ok(KeyState::Ours));
}

#[test]
fn try_that_did_not_run_has_removed_nothing() {
    let mut releases = Releases::default();
    let (release, found) = reported("a");
    releases.push(release, at(0));
    for (n, fault) in [
        Fault::NotRun(Cause::text("connection refused")),
        Fault::Rejected(Error::Closed),
    ]
    .into_iter()
    .enumerate()
    {
        let batch = releases.take_due(at(n as u64 * 60)).remove(0);
        assert!(releases.settle(&batch, Err(fault)).is_empty());
    }
    let batch = releases.take_due(at(200)).remove(0);
    assert_eq!(releases.settle(&batch, undone(&[], None)).len(), 1);
    assert_eq!(found.try_recv(), Ok(KeyState::Gone));
}

/// Adds a release every 100 ms for 20 s. Checks the pauses between the tries of each release, which
/// limit how long the key of a late acquire can stay, and the number of commands for the name.
#[test]
fn late_acquire_is_removed_soon_and_a_name_costs_few_commands() {
    let mut releases = Releases::default();
    let mut all = Vec::new();
    for n in 0..200 {
        let (from, to) = (at(n * 100), at(n * 100 + 99));
        releases.push(release("a", from), from);
        all.extend(sent(&mut releases, from, to));
    }
    all.extend(sent(&mut releases, at(20_000), at(615_000)));
    let mut tries: HashMap<u64, Vec<Instant>> = HashMap::new();
    for (now, batch) in &all {
        for (serial, _) in &batch.releases {
            tries.entry(*serial).or_default().push(*now);
        }
    }
    assert_eq!(tries.len(), 200);
    for tries in tries.values() {
        let (first, last) = (tries[0], tries[tries.len() - 1]);
        assert!(
            first.until(last) >= TTL * 8 / 9,
            "until its ttl has expired"
        );
        for two in tries.windows(2) {
            let (gap, age) = (two[0].until(two[1]), tries[0].until(two[1]));
            assert!(gap <= ms(1_000).max(age / 8), "{gap:?} at {age:?}");
        }
    }
    let old = all.iter().filter(|(now, _)| *now >= at(30_000));
    let old: Vec<_> = old.map(|(now, _)| *now).collect();
    let is_rare = |two: &[Instant]| two[0].until(two[1]) >= ms(1_000);
    assert!(old.windows(2).all(is_rare));
    assert!(old.len() < 60, "{} commands in ten minutes", old.len());
}

#[test]
fn thousands_of_releases_of_one_lock_cost_at_most_one_command_a_second() {
    let mut releases = Releases::default();
    for n in 0..5_000 {
        releases.push(release("a", at(n)), at(n));
    }
    let all = sent(&mut releases, at(5_000), at(60_000));
    assert!(
        all.iter()
            .all(|(_, batch)| batch.releases.len() <= MOST_IDS)
    );
    let old = all.iter().filter(|(now, _)| *now > at(15_000)).count();
    assert!(old <= 45, "{old} commands in 45 s");
    let asked: HashSet<u64> = all
        .iter()
        .flat_map(|(_, batch)| batch.releases.iter().map(|(serial, _)| *serial))
        .collect();
    assert_eq!(asked.len(), 5_000, "every release is sent");
}

#[test]
fn release_of_the_current_holder_is_sent_at_once() {
    let mut releases = Releases::default();
    for _ in 0..=MOST_IDS {
        releases.push(release("a", at(0)), at(0));
    }
    let batch = releases.take_due(at(0)).remove(0);
    let sent: HashSet<u64> = batch.releases.iter().map(|(serial, _)| *serial).collect();
    let left = releases.pending.iter().find(|(n, _)| !sent.contains(n));
    let left = left.unwrap().1.release.id.clone();
    releases.settle(&batch, undone(&[], Some(&left)));
    let next = releases.take_due(at(1)).remove(0);
    assert_eq!(next.releases[0].1, left);
}

#[test]
fn reply_that_names_an_id_of_its_own_batch_as_the_holder_shortens_no_pause() {
    let mut releases = Releases::default();
    releases.push(release("a", at(0)), at(0));
    let batch = releases.take_due(at(0)).remove(0);
    let itself = undone(&[], Some(&batch.releases[0].1));
    assert!(releases.settle(&batch, itself).is_empty());
    assert!(
        releases.take_due(at(1)).is_empty(),
        "the release is not due before its pause ends"
    );
}

#[test]
fn server_without_a_reply_is_tried_again_within_a_second() {
    let mut releases = Releases::default();
    releases.push(release("a", at(0)), at(0));
    let mut now = at(0);
    while now < at(60_000) {
        let batch = releases.take_due(now).remove(0);
        releases.settle(&batch, no_reply());
        let next = releases.next().unwrap();
        assert!(now.until(next) <= ms(1_000));
        now = next;
    }
}
