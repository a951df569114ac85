//! Promise: the server of `leasehold::testing` does what its page says.
#![cfg(feature = "testing")]

use std::time::Duration;

use leasehold::testing::Server;
use leasehold::{Client, Error, Lost, Unlocked};

const NAME: &str = "account:123";
const KEY: &str = "lock:account:123";

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Long enough for a machine that is overloaded.
const LONG: Duration = Duration::from_secs(60);

/// A client whose calls give up soon.
fn impatient(server: &Server) -> Client {
    let builder = Client::builder().url(server.url());
    builder.command_timeout(ms(200)).breaker(0).build().unwrap()
}

fn is_taken(server: &Server) -> bool {
    server.keys().iter().any(|key| key == KEY)
}

#[test]
fn a_lock_is_taken_and_released() {
    let server = Server::start();
    let client = server.client();
    let guard = client.mutex(NAME).lock().unwrap();
    assert!(is_taken(&server));
    assert!(server.client().mutex(NAME).try_lock().unwrap().is_none());
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
    assert_eq!(server.keys(), ["leasehold:fence:{lock:account:123}"]);
}

#[test]
fn the_loss_of_a_lock_is_told() {
    let server = Server::start();
    let client = server.client();
    let guard = client.mutex(NAME).lock().unwrap();
    server.lose(NAME);
    assert!(!is_taken(&server));
    assert_eq!(guard.lost().recv_timeout(LONG), Ok(Lost::Deleted));
}

#[test]
fn a_paused_server_answers_nothing() {
    let server = Server::start();
    let client = impatient(&server);
    client.ping().unwrap();
    let pause = server.pause();
    let (commands, keys) = (server.commands(), server.keys());
    let error = client.mutex(NAME).try_lock().unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert_eq!((server.commands(), server.keys()), (commands, keys));
    drop(pause);
    assert!(client.mutex(NAME).try_lock_for(LONG).unwrap().is_some());
}

#[test]
fn a_cut_server_refuses_connections_and_keeps_its_data() {
    let server = Server::start();
    let client = impatient(&server);
    let guard = client.mutex(NAME).lock().unwrap();
    let cut = server.cut();
    let error = server.client().ping().unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
    drop(cut);
    assert!(is_taken(&server));
    client.ping().unwrap();
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
}
