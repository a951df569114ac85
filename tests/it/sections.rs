//! Promise: a section runs only under its lock, its result is never lost, and its lock is released.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use leasehold::{Client, Error, Lost, WithError};
use support::fair::QUEUE;
use support::permits::{PERMITS, PERMITS_QUEUE};
use support::{Server, assert_gives_up, ms};

support::tests![
    with_holds_the_lock_until_the_section_ends,
    with_releases_on_panic,
    every_kind_runs_a_section_and_releases,
    every_kind_keeps_the_result_of_a_section_that_lost_its_lock,
    every_kind_reports_a_key_that_another_program_replaced_as_a_loss,
    every_kind_releases_despite_a_broken_queue,
    every_kind_skips_the_section_if_it_does_not_get_the_lock,
    a_lock_that_is_not_acquired_is_told_from_a_section_that_failed
];

/// The calls of one kind of lock.
struct Calls {
    kind: &'static str,
    with: Box<With>,
    with_result: Box<WithResult>,
    try_with: Box<TryWith>,
    try_with_result: Box<TryWithResult>,
    try_with_for: Box<TryWithFor>,
    try_with_result_for: Box<TryWithResultFor>,
    try_with_until: Box<TryWithUntil>,
    try_with_result_until: Box<TryWithResultUntil>,
}

type Outcome<T> = Result<T, WithError<u8>>;
type Fallible<T> = Result<T, WithError<u8, &'static str>>;
type Section<'a> = &'a dyn Fn() -> u8;
type With = dyn Fn(Section<'_>) -> Outcome<u8>;
type WithResult = dyn Fn(&dyn Fn() -> Result<u8, &'static str>) -> Fallible<u8>;
type TryWith = dyn Fn(Section<'_>) -> Outcome<Option<u8>>;
type TryWithResult = dyn Fn(Section<'_>) -> Fallible<Option<u8>>;
type TryWithFor = dyn Fn(Duration, Section<'_>) -> Outcome<Option<u8>>;
type TryWithResultFor = dyn Fn(Duration, Section<'_>) -> Fallible<Option<u8>>;
type TryWithUntil = dyn Fn(Instant, Section<'_>) -> Outcome<Option<u8>>;
type TryWithResultUntil = dyn Fn(Instant, Section<'_>) -> Fallible<Option<u8>>;

macro_rules! calls {
    (
        $client:expr, $make:expr, $with:ident, $with_result:ident, $try_with:ident,
        $try_with_result:ident, $try_with_for:ident, $try_with_result_for:ident,
        $try_with_until:ident, $try_with_result_until:ident $(,)?
    ) => {{
        let make = {
            let client = $client.clone();
            move || $make(&client)
        };
        let made = [(); 8].map(|()| make());
        let [a, b, c, d, e, f, g, h] = made;
        Calls {
            kind: stringify!($with $make),
            with: Box::new(move |section| a.$with(|_| section())),
            with_result: Box::new(move |section| b.$with_result(|_| section())),
            try_with: Box::new(move |section| c.$try_with(|_| section())),
            try_with_result: Box::new(move |section| d.$try_with_result(|_| Ok(section()))),
            try_with_for: Box::new(move |limit, section| e.$try_with_for(limit, |_| section())),
            try_with_result_for: Box::new(move |limit, section| {
                f.$try_with_result_for(limit, |_| Ok(section()))
            }),
            try_with_until: Box::new(move |at, section| g.$try_with_until(at, |_| section())),
            try_with_result_until: Box::new(move |at, section| {
                h.$try_with_result_until(at, |_| Ok(section()))
            }),
        }
    }};
}

fn every_kind(client: &Client) -> Vec<Calls> {
    macro_rules! of {
        ($make:expr) => {
            calls!(
                client,
                $make,
                with,
                with_result,
                try_with,
                try_with_result,
                try_with_for,
                try_with_result_for,
                try_with_until,
                try_with_result_until,
            )
        };
    }
    vec![
        of!(|client: &Client| client.mutex("a")),
        of!(|client: &Client| client.fair_mutex("a")),
        of!(|client: &Client| client.mutex_all(["a", "b"])),
        of!(|client: &Client| client.semaphore("a", 1)),
        calls!(
            client,
            |client: &Client| client.rw_lock("a"),
            read_with,
            read_with_result,
            try_read_with,
            try_read_with_result,
            try_read_with_for,
            try_read_with_result_for,
            try_read_with_until,
            try_read_with_result_until,
        ),
        calls!(
            client,
            |client: &Client| client.rw_lock("a"),
            write_with,
            write_with_result,
            try_write_with,
            try_write_with_result,
            try_write_with_for,
            try_write_with_result_for,
            try_write_with_until,
            try_write_with_result_until,
        ),
    ]
}

fn with_holds_the_lock_until_the_section_ends() {
    let server = Server::start();
    let (one, two) = (server.client(), server.client());
    let mutex = one.mutex("a");
    let refused = mutex.with(|guard| {
        assert!(guard.is_held());
        two.mutex("a").try_lock().unwrap().is_none()
    });
    assert!(refused.unwrap());
    assert!(two.mutex("a").try_lock().unwrap().is_some());
}

fn with_releases_on_panic() {
    let server = Server::start();
    let (one, two) = (server.client(), server.client());
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        one.mutex("a").with(|_| panic!("of the section"))
    }));
    assert!(matches!(panicked, Err(why) if why.downcast_ref() == Some(&"of the section")));
    assert!(two.mutex("a").try_lock().unwrap().is_some());
}

fn every_kind_runs_a_section_and_releases() {
    let server = Server::start();
    let (one, two) = (server.client(), server.client());
    for calls in every_kind(&one) {
        let kind = calls.kind;
        // Every kind of holder, readers included, excludes the plain lock or takes the permit.
        let assert_released = || {
            assert!(two.mutex("a").try_lock().unwrap().is_some(), "{kind}");
            let permit = two.semaphore("a", 1).try_acquire().unwrap();
            assert!(permit.is_some(), "{kind}");
        };
        assert_eq!((calls.with)(&|| 7).unwrap(), 7, "{kind}");
        assert_released();
        assert_eq!((calls.with_result)(&|| Ok(7)).unwrap(), 7, "{kind}");
        assert_released();
        let failed = (calls.with_result)(&|| Err("no paper"));
        assert!(
            matches!(failed, Err(WithError::Section("no paper"))),
            "{kind}: {failed:?}"
        );
        assert_released();
        assert_eq!((calls.try_with)(&|| 7).unwrap(), Some(7), "{kind}");
        assert_released();
        let outcome = (calls.try_with_result)(&|| 7);
        assert_eq!(outcome.unwrap(), Some(7), "{kind}");
        assert_released();
        let outcome = (calls.try_with_for)(ms(0), &|| 7);
        assert_eq!(outcome.unwrap(), Some(7), "{kind}");
        assert_released();
        let outcome = (calls.try_with_result_for)(ms(0), &|| 7);
        assert_eq!(outcome.unwrap(), Some(7), "{kind}");
        assert_released();
        let past = Instant::now();
        let outcome = (calls.try_with_until)(past, &|| 7);
        assert_eq!(outcome.unwrap(), Some(7), "{kind}");
        assert_released();
        let outcome = (calls.try_with_result_until)(past, &|| 7);
        assert_eq!(outcome.unwrap(), Some(7), "{kind}");
        assert_released();
    }
}

fn every_kind_keeps_the_result_of_a_section_that_lost_its_lock() {
    let server = Server::start();
    let lose = || server.run("FLUSHALL", &[]);
    for calls in every_kind(&server.client()) {
        let kind = calls.kind;
        let error = (calls.with)(&|| {
            lose();
            7
        });
        let error = error.expect_err("the lock was lost");
        assert_eq!(error.lost(), Some(Lost::Deleted), "{kind}");
        assert!(!error.to_string().is_empty());
        assert_eq!(error.into_value(), Some(7), "{kind}");

        let error = (calls.with_result)(&|| {
            lose();
            Err("no paper")
        });
        let error = error.expect_err("the lock was lost");
        assert_eq!(error.lost(), Some(Lost::Deleted), "{kind}");
        assert_eq!(error.into_result(), Some(Err("no paper")), "{kind}");
    }
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
        let error = (calls.with)(&|| {
            replace();
            7
        });
        let error = error.expect_err("the lock was lost");
        assert_eq!(error.lost(), Some(Lost::Taken), "{kind}");
        assert_eq!(error.into_value(), Some(7), "{kind}");
        server.run("FLUSHALL", &[]);

        let error = (calls.with_result)(&|| {
            replace();
            Err("no paper")
        });
        let error = error.expect_err("the lock was lost");
        assert_eq!(error.lost(), Some(Lost::Taken), "{kind}");
        assert_eq!(error.into_result(), Some(Err("no paper")), "{kind}");
        server.run("FLUSHALL", &[]);
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
            7
        });
        assert_eq!(result.unwrap(), 7, "{kind}");
        for key in HOLDING {
            assert!(!server.keys().contains(&key.into()), "{kind}: {key}");
        }
        server.run("FLUSHALL", &[]);
    }
}

fn every_kind_skips_the_section_if_it_does_not_get_the_lock() {
    let server = Server::start();
    let (one, two) = (server.client(), server.client());
    let mutex = one.mutex("a").lock().unwrap();
    let permit = one.semaphore("a", 1).acquire().unwrap();
    for calls in every_kind(&two) {
        let kind = calls.kind;
        let section = &|| unreachable!("the lock is held");
        assert_eq!((calls.try_with)(section).unwrap(), None, "{kind}");
        assert_eq!((calls.try_with_result)(section).unwrap(), None, "{kind}");
        assert_gives_up(|limit| Ok((calls.try_with_for)(limit, section)?));
        assert_gives_up(|limit| match (calls.try_with_result_for)(limit, section) {
            Err(WithError::NotAcquired(error)) => Err(error),
            outcome => Ok(outcome.unwrap()),
        });
        assert_gives_up(|limit| Ok((calls.try_with_until)(Instant::now() + limit, section)?));
        assert_gives_up(|limit| {
            match (calls.try_with_result_until)(Instant::now() + limit, section) {
                Err(WithError::NotAcquired(error)) => Err(error),
                outcome => Ok(outcome.unwrap()),
            }
        });
    }
    drop((mutex, permit));
    for calls in every_kind(&two) {
        let kind = calls.kind;
        let late = (calls.try_with_for)(ms(60_000), &|| 7);
        assert_eq!(late.unwrap(), Some(7), "{kind}");
        let late = (calls.try_with_until)(Instant::now() + ms(60_000), &|| 7);
        assert_eq!(late.unwrap(), Some(7), "{kind}");
    }
}

fn a_lock_that_is_not_acquired_is_told_from_a_section_that_failed() {
    let server = Server::start();
    let client = server.client();
    assert!(client.shutdown(ms(5_000)).is_clean());
    for calls in every_kind(&client) {
        let kind = calls.kind;
        let refused = (calls.with_result)(&|| unreachable!("the client is shut down"));
        let error = refused.expect_err("the client is shut down");
        assert!(
            matches!(error, WithError::NotAcquired(Error::Closed)),
            "{kind}: {error:?}"
        );
        assert_eq!(error.into_result(), None);
    }
}
