//! The scripts of all kinds of locks, against the documents.

use crate::protocol::probe::PROBE;
use crate::protocol::script::ADD_STATS;
use crate::protocol::{cohort, fair, keys, mutex, rw_lock, semaphore};

fn called(source: &str) -> Vec<String> {
    let calls = source.split("call('").skip(1);
    let mut called: Vec<_> = calls
        .filter_map(|rest| Some(rest.split_once('\'')?.0.to_ascii_lowercase()))
        .collect();
    called.sort();
    called.dedup();
    called
}

/// Checks the ACL user that `docs/operations.md` recommends.
#[test]
fn the_documented_user_may_do_what_the_scripts_call() {
    let line = include_str!("../../docs/operations.md")
        .lines()
        .find(|line| line.starts_with("ACL SETUSER leasehold "))
        .unwrap();
    let allowed: Vec<&str> = line
        .split(' ')
        .filter_map(|rule| rule.strip_prefix('+')?.split('|').next())
        .collect();
    let mutex = [
        &mutex::ACQUIRE,
        &mutex::ACQUIRE_AFTER,
        &mutex::PROPOSE,
        &mutex::RELEASE,
        &mutex::RENEW,
        mutex::RENEW_MANY.script,
        &mutex::UNDO,
    ];
    let queues = [&fair::RULES, &semaphore::RULES, &rw_lock::RULES];
    let queues = queues.into_iter().flat_map(|rules| {
        let scripts = &rules.scripts;
        [
            &scripts.enter,
            &scripts.refresh,
            &scripts.release,
            &scripts.undo,
        ]
    });
    let permits = [
        &semaphore::RENEW,
        semaphore::RENEW_MANY.script,
        &semaphore::INSPECT,
    ];
    let shared = [
        &rw_lock::DOWNGRADE,
        &rw_lock::RENEW,
        rw_lock::RENEW_MANY.script,
    ];
    let cohort = [&cohort::RELEASE, &cohort::REFRESH];
    let reads = [&keys::INSPECT, &keys::FENCE, &rw_lock::INSPECT];
    let locks = mutex.into_iter().chain(queues);
    let locks = locks.chain(shared).chain(cohort);
    let scripts = locks.chain(permits).chain(reads);
    for script in scripts.chain([&ADD_STATS, &PROBE]) {
        let called = called(script.source);
        // `docs/operations.md` permits HINCRBY in another rule, for the shared statistics only.
        let is_extra = |command: &str| script.name == ADD_STATS.name && command == "hincrby";
        assert!(
            called
                .iter()
                .all(|command| allowed.contains(&command.as_str()) || is_extra(command)),
            "{}: {called:?}",
            script.name
        );
    }
}
