//! The replies to the scripts of semaphores and read-write locks, and of a mutex before a reader.

use support::scripts;

use super::{IDS, Raw, Replies, TTL};

pub(super) fn semaphore(raw: &mut Raw, replies: &mut Replies) {
    let [mine, other] = [format!("2 {}", IDS[0]), format!("2 {}", IDS[1])];
    let (mine, other) = (&*mine, &*other);
    let keys = &["permits", "fence:p", "queue:p", "places:p"];
    let mut note = |what, reply| replies.note(what, reply);
    let inspect = scripts::PERMITS_INSPECT;
    let looked_at = &["permits", "fence:p"];
    note(
        "permits_inspect, none",
        raw.script(inspect, looked_at, &["9"]),
    );
    let enter = scripts::PERMITS.enter;
    note(
        "queue_enter of permits, free",
        raw.script(enter, keys, &[mine, TTL, "2/3", "0"]),
    );
    note(
        "queue_enter of permits, too many",
        raw.script(enter, keys, &[other, TTL, "2/3", "a i"]),
    );
    note("permits_inspect", raw.script(inspect, looked_at, &["9"]));
    let renew = scripts::PERMITS_RENEW;
    for (what, id) in [
        ("permits_renew, held", mine),
        ("permits_renew, another's", other),
    ] {
        note(what, raw.script(renew, &["permits"], &[id, TTL, "0"]));
    }
    note(
        "permits_renew_many, held and another's",
        raw.script(
            scripts::PERMITS_RENEW_MANY,
            &["permits", "permits"],
            &[TTL, mine, other],
        ),
    );
    let refresh = scripts::PERMITS.refresh;
    note(
        "queue_refresh of permits, waits",
        raw.script(refresh, keys, &["i", other]),
    );
    let release = scripts::PERMITS.release;
    for what in ["queue_release of permits", "queue_release of permits, none"] {
        note(what, raw.script(release, keys, &[mine, "c"]));
    }
    note(
        "queue_refresh of permits, granted",
        raw.script(refresh, keys, &["i", other]),
    );
    let undo = scripts::PERMITS.undo;
    note(
        "queue_undo of permits",
        raw.script(undo, keys, &["c", mine, other]),
    );
}

pub(super) fn rw_lock(raw: &mut Raw, replies: &mut Replies) {
    let [first, second, third] = IDS;
    let keys = &["lock:r", "fence:r", "queue:r", "places:r", "readers:r"];
    let looked_at = &["lock:r", "fence:r", "readers:r"];
    let mut note = |what, reply| replies.note(what, reply);
    let inspect = scripts::INSPECT_SHARED;
    note("inspect_shared, free", raw.script(inspect, looked_at, &[]));
    let enter = scripts::LOCKS.enter;
    let downgrade = scripts::DOWNGRADE;
    note(
        "downgrade, free",
        raw.script(downgrade, keys, &[first, TTL]),
    );
    note(
        "queue_enter by a writer, free",
        raw.script(enter, keys, &[first, TTL, "1", "0"]),
    );
    note(
        "inspect_shared, a writer",
        raw.script(inspect, looked_at, &[]),
    );
    note(
        "queue_enter by a reader, a writer has it",
        raw.script(enter, keys, &[second, TTL, "r", "a i"]),
    );
    note(
        "downgrade, another's",
        raw.script(downgrade, keys, &[third, TTL]),
    );
    note("downgrade", raw.script(downgrade, keys, &[first, TTL]));
    note(
        "inspect_shared, readers",
        raw.script(inspect, looked_at, &[]),
    );
    note(
        "queue_enter by a reader, free",
        raw.script(enter, keys, &[third, TTL, "r", "0"]),
    );
    end_of_readers(raw, replies, keys);
}

/// Renews and releases the leases of readers whose holder ids are `IDS`.
fn end_of_readers(raw: &mut Raw, replies: &mut Replies, keys: &[&str]) {
    let [first, second, third] = IDS;
    let mut note = |what, reply| replies.note(what, reply);
    let renew = scripts::RENEW_SHARED;
    for (what, id) in [
        ("renew_shared, held", first),
        ("renew_shared, another's", "nobody"),
    ] {
        let renewed = &["lock:r", "readers:r"];
        note(what, raw.script(renew, renewed, &[id, TTL, "0"]));
    }
    let each = &["lock:r", "readers:r", "lock:r", "readers:r"];
    note(
        "renew_shared_many, held and another's",
        raw.script(scripts::RENEW_SHARED_MANY, each, &[TTL, first, "nobody"]),
    );
    let refresh = scripts::LOCKS.refresh;
    note(
        "queue_refresh by a reader, granted",
        raw.script(refresh, keys, &["i", second]),
    );
    let release = scripts::LOCKS.release;
    note(
        "queue_release by a reader",
        raw.script(release, keys, &[first, "c"]),
    );
    let undo = scripts::LOCKS.undo;
    note(
        "queue_undo of readers",
        raw.script(undo, keys, &["c", second, third]),
    );
}

/// The releases of a mutex while others wait: a plain one, and one before a reader.
pub(super) fn cohort(raw: &mut Raw, replies: &mut Replies) {
    let [mine, other, _] = IDS;
    let keys = &["lock:c", "fence:c", "queue:c", "places:c", "readers:c"];
    let mut note = |what, reply| replies.note(what, reply);
    let release = scripts::COHORT_RELEASE;
    let enter = scripts::LOCKS.enter;
    let acquire = scripts::ACQUIRE;
    raw.script(acquire, &keys[..2], &[mine, TTL]);
    note(
        "queue_enter by a mutex, held",
        raw.script(enter, keys, &[other, TTL, "+33", "a i"]),
    );
    note(
        "cohort_release, another's",
        raw.script(release, keys, &[IDS[2], "c"]),
    );
    // Now the holder seems to have been granted the lock long ago, so a release may be a plain one.
    raw.send(&["SET", "fence:c", "1700000000000000"]);
    note(
        "cohort_release, a plain release",
        raw.script(release, keys, &[mine, "c", "1"]),
    );
    raw.script(acquire, &keys[..2], &[mine, TTL]);
    note(
        "cohort_release, passed on",
        raw.script(release, keys, &[mine, "c"]),
    );
    raw.script(enter, keys, &[mine, TTL, "r", "a i"]);
    note(
        "cohort_release, granted to a reader",
        raw.script(release, keys, &[other, "c"]),
    );
    note(
        "cohort_release, free",
        raw.script(release, keys, &[other, "c"]),
    );
}
