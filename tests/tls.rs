//! Promise: `rediss://` encrypts, and takes no server whose certificate it cannot check.
#![cfg(feature = "tls")]

mod support;

use std::path::Path;

use leasehold::{Client, Error, Unlocked};
use support::{Child, Server, given, say};

fn certificate(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/certificates");
    folder
        .join(file)
        .to_str()
        .expect("a path in UTF-8")
        .to_owned()
}

/// Locks and waits over TLS; what it trusts is set in the environment that it is started with.
fn locker() {
    let client = Client::open(&given("URL")).unwrap();
    match client.mutex("a").try_lock() {
        Ok(guard) => {
            let guard = guard.unwrap();
            let waiter = client.mutex("a");
            let waiting = std::thread::spawn(move || waiter.lock().unwrap().unlock().unwrap());
            assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
            assert_eq!(waiting.join().unwrap(), Unlocked::Released);
            say("locked");
        }
        Err(error @ Error::Unreachable { .. }) => say(&format!("refused: {error}")),
        Err(error) => panic!("{error:?}"),
    }
}

#[test]
fn child() {
    support::role(&[("locker", locker)]);
}

#[test]
fn only_a_server_that_can_be_checked() {
    if !Server::has_tls() {
        println!("this server's binary has no TLS: nothing to check against");
        return;
    }
    let port = support::free_port().to_string();
    let (key, chain, authority) = (
        certificate("server.key"),
        certificate("server.pem"),
        certificate("ca.pem"),
    );
    let _server = Server::with(&[
        "--tls-port",
        &port,
        "--tls-key-file",
        &key,
        "--tls-cert-file",
        &chain,
        "--tls-ca-cert-file",
        &authority,
        "--tls-auth-clients",
        "no",
    ]);
    let url = format!("rediss://localhost:{port}");
    let trusting = Child::spawn("locker", &[("URL", &url), ("SSL_CERT_FILE", &authority)]);
    assert_eq!(trusting.line(), "locked");
    trusting.wait().succeeded();
    // Trusts only that certificate authority that the server's certificate does not come from.
    let wary = Child::spawn("locker", &[("URL", &url), ("SSL_CERT_FILE", &chain)]);
    let line = wary.line();
    assert!(
        line.starts_with("refused") && line.to_lowercase().contains("certificate"),
        "{line}"
    );
    wary.wait().succeeded();
}
