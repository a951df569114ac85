//! Promise: a section runs only under its lock, its result is never lost, and its lock is released.

use std::panic::{AssertUnwindSafe, catch_unwind};

use leasehold::{Client, Error, Lost, Taken, WithError};
use support::fair::QUEUE;
use support::permits::{PERMITS, PERMITS_QUEUE};
use support::{Server, ms};

support::tests![
    with_holds_the_lock_until_the_section_ends,
    with_releases_on_panic,
    every_kind_runs_a_section_and_releases,
    every_kind_keeps_the_value_of_a_section_that_lost_its_lock,
    every_kind_reports_a_key_that_another_program_replaced_as_a_loss,
    every_kind_releases_despite_a_broken_queue,
    every_kind_skips_the_section_if_it_does_not_get_the_lock,
    a_lock_that_is_not_acquired_is_told_from_a_section_that_failed
];

/// The result of a section in these tests.
type Value = Result<u8, &'static str>;
type Section<'a> = &'a dyn Fn() -> Value;
type With = dyn Fn(Section<'_>) -> Result<Value, WithError<Value>>;
type TryWith = dyn Fn(Section<'_>) -> Result<Result<Value, Taken>, WithError<Value>>;

/// The calls of one kind of lock.
struct Calls {
    kind: &'static str,
    with: Box<With>,
    try_with: Box<TryWith>,
}

macro_rules! calls {
    ($lock:expr, $with:ident, $try_with:ident) => {{
        let (lock, same) = ($lock, $lock);
        Calls {
            kind: stringify!($lock $with),
            with: Box::new(move |section| lock.$with(|_| section())),
            try_with: Box::new(move |section| same.$try_with(|_| section())),
        }
    }};
}

fn every_kind(client: &Client) -> Vec<Calls> {
    vec![
        calls!(client.mutex("a"), with, try_with),
        calls!(client.fair_mutex("a"), with, try_with),
        calls!(client.mutex_all(["a", "b"]), with, try_with),
        calls!(client.semaphore("a", 1), with, try_with),
        calls!(client.rw_lock("a"), read_with, try_read_with),
        calls!(client.rw_lock("a"), write_with, try_write_with),
    ]
}

fn with_holds_the_lock_until_the_section_ends() {
    let server = Server::start();
    let (one, two) = (server.client(), server.client());
    let mutex = one.mutex("a");
    let refused = mutex.with(|guard| {
        assert!(guard.is_held());
        two.mutex("a").try_lock().unwrap().is_err()
    });
    assert!(refused.unwrap());
    assert!(two.mutex("a").try_lock().unwrap().is_ok());
}

fn with_releases_on_panic() {
    let server = Server::start();
    let (one, two) = (server.client(), server.client());
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        one.mutex("a").with(|_| panic!("of the section"))
    }));
    assert!(matches!(panicked, Err(why) if why.downcast_ref() == Some(&"of the section")));
    assert!(two.mutex("a").try_lock().unwrap().is_ok());
}

fn every_kind_runs_a_section_and_releases() {
    let server = Server::start();
    let (one, two) = (server.client(), server.client());
    for calls in every_kind(&one) {
        let kind = calls.kind;
        // Every kind of holder, readers included, excludes the plain lock or takes the permit.
        let assert_released = || {
            assert!(two.mutex("a").try_lock().unwrap().is_ok(), "{kind}");
            let permit = two.semaphore("a", 1).try_acquire().unwrap();
            assert!(permit.is_ok(), "{kind}");
        };
        for value in [Ok(7), Err("no paper")] {
            assert_eq!((calls.with)(&|| value).unwrap(), value, "{kind}");
            assert_released();
            let outcome = (calls.try_with)(&|| value);
            assert_eq!(outcome.unwrap(), Ok(value), "{kind}");
            assert_released();
        }
    }
}

fn every_kind_keeps_the_value_of_a_section_that_lost_its_lock() {
    let server = Server::start();
    let lose = || server.run("FLUSHALL", &[]);
    for calls in every_kind(&server.client()) {
        let kind = calls.kind;
        for value in [Ok(7), Err("no paper")] {
            let section = || {
                lose();
                value
            };
            assert_lost((calls.with)(&section), Lost::Deleted, value, kind);
            assert_lost((calls.try_with)(&section), Lost::Deleted, value, kind);
        }
    }
}

#[track_caller]
fn assert_lost<T>(outcome: Result<T, WithError<Value>>, why: Lost, value: Value, kind: &str) {
    let error = outcome.err().expect("the lock was lost");
    assert_eq!(Error::from(error.clone()).lost(), Some(why), "{kind}");
    assert_eq!(error.into_value().unwrap(), value, "{kind}");
}

/// The keys that hold a lock or permits.
const HOLDING: [&str; 3] = ["lock:a", "lock:b", PERMITS];

fn every_kind_reports_a_key_that_another_program_replaced_as_a_loss() {
    let server = Server::start();
    let replace = || {
        let held = server.keys();
        for key in HOLDING {
            if held.iter().any(|held| held == key.as_bytes()) {
                server.run("DEL", &[key]);
                server.run("RPUSH", &[key, "of another program"]);
            }
        }
    };
    for calls in every_kind(&server.client()) {
        let kind = calls.kind;
        for value in [Ok(7), Err("no paper")] {
            let section = || {
                replace();
                value
            };
            assert_lost((calls.with)(&section), Lost::Taken, value, kind);
            server.run("FLUSHALL", &[]);
            assert_lost((calls.try_with)(&section), Lost::Taken, value, kind);
            server.run("FLUSHALL", &[]);
        }
    }
}

fn every_kind_releases_despite_a_broken_queue() {
    let server = Server::start();
    for calls in every_kind(&server.client()) {
        let kind = calls.kind;
        let result = (calls.with)(&|| {
            for queue in [QUEUE, "leasehold:queue:{lock:b}", PERMITS_QUEUE] {
                server.run("SET", &[queue, "x"]);
            }
            Ok(7)
        });
        assert_eq!(result.unwrap(), Ok(7), "{kind}");
        for key in HOLDING {
            assert!(!server.keys().contains(&key.into()), "{kind}: {key}");
        }
        server.run("FLUSHALL", &[]);
    }
}

fn every_kind_skips_the_section_if_it_does_not_get_the_lock() {
    let server = Server::start();
    let (one, two) = (server.client(), server.client());
    let _mutex = one.mutex("a").lock().unwrap();
    let _permit = one.semaphore("a", 1).acquire().unwrap();
    for calls in every_kind(&two) {
        let kind = calls.kind;
        let section = &|| unreachable!("the lock is held");
        assert!((calls.try_with)(section).unwrap().is_err(), "{kind}");
    }
}

fn a_lock_that_is_not_acquired_is_told_from_a_section_that_failed() {
    let server = Server::start();
    let client = server.client();
    assert!(client.shutdown(ms(5_000)).is_clean());
    for calls in every_kind(&client) {
        let kind = calls.kind;
        let section = &|| unreachable!("the client is shut down");
        for error in [
            (calls.with)(section).unwrap_err(),
            (calls.try_with)(section).unwrap_err(),
        ] {
            assert!(
                matches!(error, WithError::NotAcquired(Error::Closed)),
                "{kind}: {error:?}"
            );
            assert!(error.into_value().is_err());
        }
    }
}
