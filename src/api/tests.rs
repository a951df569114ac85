//! Property: a public call asks for the id of its process once.

use std::time::Duration;

use crate::cancel::CancelToken;
use crate::process::times_asked;
use crate::testing::Server;

/// Returns how often this thread asks for the id of its process in `call`.
fn asks<T>(call: impl FnOnce() -> T) -> (u32, T) {
    let before = times_asked();
    let result = call();
    (times_asked() - before, result)
}

#[test]
fn each_call_asks_for_its_process_once() {
    let server = Server::start();
    let client = server.client();
    let mutex = client.mutex("a").cancel_on(&CancelToken::new());
    let (asked, guard) = asks(|| mutex.lock().unwrap());
    assert_eq!(asked, 1, "lock");
    assert_eq!(asks(|| mutex.try_lock().unwrap().is_err()), (1, true));
    assert_eq!(asks(|| guard.is_held()), (1, true));
    assert_eq!(asks(|| guard.renew().is_ok()), (1, true));
    assert_eq!(
        asks(|| guard.set_ttl(Duration::from_secs(9)).is_ok()),
        (1, true)
    );
    assert_eq!(asks(|| guard.unlock().is_ok()), (1, true));
    let guard = client.fair_mutex("a").lock().unwrap();
    assert_eq!(asks(|| drop(guard)).0, 1, "drop");

    assert_eq!(asks(|| client.ping().is_ok()), (1, true));
    assert_eq!(asks(|| client.list("").is_ok()), (1, true));
    assert_eq!(asks(|| mutex.inspect().is_ok()), (1, true));
    assert_eq!(asks(|| mutex.waiting().is_ok()), (1, true));
    let pool = client.semaphore("a", 2);
    assert_eq!(
        asks(|| pool.try_acquire().unwrap().is_ok()),
        (2, true),
        "acquire and drop"
    );
    assert_eq!(asks(|| pool.inspect().is_ok()), (1, true));
}
