//! Promise: the crypto provider of the process is the program's choice. The client installs none,
//! and uses the one that is installed.

#![expect(
    clippy::disallowed_methods,
    reason = "these tests install providers, as programs do"
)]

use std::io::Read as _;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold::{Client, ClientBuilder};
use rustls::crypto::{CryptoProvider, GetRandomFailed, SecureRandom, ring};
use support::{Server, free_port, ms, read_pem, tls_server, tls_server_trusting};

support::own_process![no_provider_is_installed, the_installed_provider_is_used];

fn with_certificates() -> ClientBuilder {
    Client::builder()
        .tls_root(read_pem("ca.pem"))
        .tls_client_cert(read_pem("client.pem"), read_pem("client.key"))
}

/// Makes clients, valid and invalid, and connections that succeed and fail.
fn no_provider_is_installed() {
    let is_none = || assert!(CryptoProvider::get_default().is_none());
    for url in ["rediss://h", "valkeys://h", "rediss://h:x", "rediss://h/#x"] {
        let _ = Client::open(url);
        is_none();
    }
    for url in [
        "rediss+sentinel://h/m",
        "rediss+cluster://h",
        "rediss+quorum://a,b,c",
    ] {
        with_certificates().url(url).build().unwrap();
        is_none();
    }
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = silent.local_addr().unwrap().port();
    let client = with_certificates().url(format!("rediss://localhost:{port}"));
    let client = client.connect_timeout(ms(50)).build().unwrap();
    client.mutex("a").try_lock().unwrap_err();
    is_none();
    if !Server::has_tls() {
        println!("skipped in part: this server's binary has no TLS");
        return;
    }
    let port = free_port();
    let _server = tls_server(port, "server");
    let client = with_certificates().url(format!("rediss://localhost:{port}"));
    drop(client.build().unwrap().mutex("a").lock().unwrap());
    is_none();
    // The end of the client certificate is read by a verifier of its own.
    let port = free_port();
    let _server = tls_server_trusting(port, "server", "old-ca.pem");
    let client = with_certificates()
        .tls_client_cert(read_pem("expired.pem"), read_pem("expired.key"))
        .url(format!("rediss://localhost:{port}"));
    let error = client.build().unwrap().mutex("a").try_lock().unwrap_err();
    assert!(error.to_string().contains("expired on 2025"), "{error}");
    is_none();
    // The program can install a provider afterwards: this fails if there is one.
    ring::default_provider().install_default().unwrap();
}

/// How often the counting provider was asked for random bytes.
static ASKED: AtomicUsize = AtomicUsize::new(0);

#[derive(Debug)]
struct CountingRandom;

impl SecureRandom for CountingRandom {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), GetRandomFailed> {
        ASKED.fetch_add(1, Ordering::SeqCst);
        ring::default_provider().secure_random.fill(bytes)
    }
}

/// The provider is installed after the client was made, and before it connects.
fn the_installed_provider_is_used() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let client = with_certificates().url(format!("rediss://localhost:{port}"));
    let client = client.build().unwrap();
    let provider = CryptoProvider {
        secure_random: &CountingRandom,
        ..ring::default_provider()
    };
    provider.install_default().unwrap();
    let waiting = std::thread::spawn(move || client.mutex("a").try_lock().map(drop));
    let (mut stream, _) = listener.accept().unwrap();
    // The first message of the handshake.
    stream.read_exact(&mut [0]).unwrap();
    assert!(ASKED.load(Ordering::SeqCst) > 0);
    let installed: &Arc<CryptoProvider> = CryptoProvider::get_default().unwrap();
    assert!(format!("{:?}", installed.secure_random).contains("CountingRandom"));
    drop((stream, listener));
    waiting.join().unwrap().unwrap_err();
}
