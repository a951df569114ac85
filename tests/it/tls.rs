//! Promise: `rediss://` encrypts and refuses a server whose certificate it cannot verify.

use std::fs;
use std::time::{Duration, Instant};

use leasehold::{Client, ClientBuilder, Error};
use support::{
    Child, Cluster, ClusterSetup, FakeServer, Sentinels, Server, Setup, TempDir, certificate_path,
    eventually, exercise_every_call, expect_unreachable, free_port, ms, parameter, read_pem,
    tell_parent, tls_server, tls_server_trusting,
};

support::roles![locker];

support::tests![
    all_nodes_of_a_cluster_are_reached_over_tls,
    sentinels_and_their_master_are_reached_over_tls,
    an_untrusted_peer_is_an_error_at_once_that_says_what_to_do,
    a_private_ca_and_a_client_certificate_are_accepted,
    files_are_read_again_for_each_connection,
    an_expired_certificate_is_named_with_its_date,
    a_server_certificate_of_version_1_is_named,
    impossible_settings_are_errors_before_any_connection,
    a_server_with_an_unverifiable_certificate_is_refused,
    a_peer_that_speaks_no_tls_is_named_at_once
];

/// Permanent errors must return much sooner than `lock` gives up on an outage.
const WAIT_LIMIT: Duration = ms(5_000);

/// Locks and waits over TLS; the environment of the process sets the trusted CA.
fn locker() {
    let client = Client::open(parameter("URL")).unwrap();
    match client.mutex("a").try_lock() {
        Ok(guard) => {
            let guard = guard.unwrap();
            let waiter = client.mutex("a");
            let waiting = std::thread::spawn(move || waiter.lock().unwrap().unlock().unwrap());
            guard.unlock().unwrap();
            waiting.join().unwrap();
            tell_parent("locked");
        }
        Err(error @ Error::Refused { .. }) => tell_parent(&format!("refused: {error}")),
        Err(error) => panic!("{error:?}"),
    }
}

/// Starts a server with this certificate that requires client certificates; `None` without TLS.
fn strict_server(shown: &str) -> Option<(Server, u16)> {
    if Server::lacks_tls() {
        return None;
    }
    let port = free_port();
    Some((tls_server(port, shown), port))
}

/// Returns a builder with certificates and without a URL.
fn with_certificates() -> ClientBuilder {
    Client::builder()
        .tls_root(read_pem("ca.pem"))
        .tls_client_cert(read_pem("client.pem"), read_pem("client.key"))
}

fn trusting(port: u16) -> ClientBuilder {
    Client::builder()
        .url(format!("rediss://localhost:{port}"))
        .tls_root(read_pem("ca.pem"))
}

fn with_client_cert(port: u16) -> ClientBuilder {
    trusting(port).tls_client_cert(read_pem("client.pem"), read_pem("client.key"))
}

fn a_private_ca_and_a_client_certificate_are_accepted() {
    let Some((server, port)) = strict_server("server") else {
        return;
    };
    exercise_every_call(|| with_client_cert(port), "a", &[&server]);
    let by_address = format!("rediss://127.0.0.1:{port}?protocol=resp3");
    exercise_every_call(|| with_client_cert(port).url(&by_address), "a", &[&server]);
}

/// The sentinels require a client certificate too, and know only the master's TLS port.
fn sentinels_and_their_master_are_reached_over_tls() {
    if Server::lacks_tls() {
        return;
    }
    let sentinels = Sentinels::start(Setup {
        replicas: 0,
        tls: true,
        ..Setup::steady()
    });
    let url = sentinels.tls_url();
    exercise_every_call(
        || with_client_cert(1).url(&url),
        "a",
        &[sentinels.first_master()],
    );
    assert_refused(
        &trusting(1).url(&url).build().unwrap(),
        ["CertificateRequired", "ClientBuilder::tls_client_cert"],
    );
    assert_refused(
        &Client::builder().url(&url).build().unwrap(),
        ["UnknownIssuer", "ClientBuilder::tls_root"],
    );
}

/// The URL names one node. The other nodes, which it announces, require a certificate too.
fn all_nodes_of_a_cluster_are_reached_over_tls() {
    if Server::lacks_tls() {
        return;
    }
    let cluster = Cluster::with(ClusterSetup {
        has_tls: true,
        ..ClusterSetup::steady(3, 0)
    });
    let seed = format!("localhost:{}", cluster.client_port(0));
    let url = format!("rediss+cluster://{seed}");
    let node = format!("rediss://{seed}");
    let by_url = || with_certificates().url(&url);
    let by_node = || with_certificates().cluster([&node]);
    for node in 0..3 {
        let owner = [cluster.node(node)];
        exercise_every_call(by_url, &cluster.name_owned_by("url", node), &owner);
        exercise_every_call(by_node, &cluster.name_owned_by("node", node), &owner);
    }

    // A redirect is followed with the same certificates.
    let client = by_url().build().unwrap();
    let name = cluster.name_owned_by("moves", 1);
    let slot = cluster.slot(&format!("lock:{name}"));
    let guard = client.mutex(&*name).lock().unwrap();
    cluster.begin_migration(slot, 1, 2);
    cluster.move_keys(slot, 1, 2);
    guard.renew().unwrap();
    cluster.end_migration(slot, 1, 2);
    guard.renew().unwrap();
    guard.unlock().unwrap();

    assert_refused(
        &trusting(1).url(&url).build().unwrap(),
        ["CertificateRequired", "ClientBuilder::tls_client_cert"],
    );
    assert_refused(
        &Client::builder().cluster([&node]).build().unwrap(),
        ["UnknownIssuer", "ClientBuilder::tls_root"],
    );
}

#[track_caller]
fn assert_refused(client: &Client, words: [&str; 2]) {
    type Attempt = fn(&Client) -> Option<Error>;
    let attempts: [Attempt; 4] = [
        |client| client.mutex("a").lock().err(),
        |client| client.mutex("a").try_lock().err(),
        |client| client.mutex("a").try_lock_for(WAIT_LIMIT).err(),
        |client| client.ping().err(),
    ];
    for attempt in attempts {
        let began = Instant::now();
        let error = attempt(client).expect("an error");
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert!(!error.may_be_held());
        let text = error.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
        assert!(began.elapsed() < WAIT_LIMIT, "{text}");
    }
}

fn an_untrusted_peer_is_an_error_at_once_that_says_what_to_do() {
    let Some((server, port)) = strict_server("server") else {
        return;
    };
    let trusting_strangers = with_client_cert(port).tls_root(read_pem("stranger-ca.pem"));
    let refused = trusting_strangers.build().unwrap();
    assert_refused(&refused, ["UnknownIssuer", "ClientBuilder::tls_root"]);
    let stranger =
        trusting(port).tls_client_cert(read_pem("stranger.pem"), read_pem("stranger.key"));
    assert_refused(
        &stranger.build().unwrap(),
        ["UnknownCA", "authority that the server trusts"],
    );
    let unknown = trusting(port).build().unwrap();
    assert_refused(
        &unknown,
        ["CertificateRequired", "ClientBuilder::tls_client_cert"],
    );
    assert_eq!(server.get("lock:a"), None);

    let set = |name: &str, value: &str| {
        let mut connection = server.connection();
        let mut command = redis::cmd("CONFIG");
        command
            .arg(&["SET", name, value])
            .exec(&mut connection)
            .unwrap();
    };
    // TLS 1.2 has no alert for a missing client certificate.
    set("tls-protocols", "TLSv1.2");
    assert_refused(
        &unknown,
        ["HandshakeFailure", "ClientBuilder::tls_client_cert"],
    );
    assert!(with_client_cert(port).build().unwrap().ping().is_ok());
    // The client succeeds as soon as the server no longer requires a certificate.
    set("tls-auth-clients", "no");
    drop(unknown.mutex("a").lock().unwrap());

    let elsewhere = strict_server("client");
    let (_server, port) = elsewhere.expect("the binary has TLS");
    assert_refused(
        &with_client_cert(port).build().unwrap(),
        ["\"localhost\"", "the URL must name the server"],
    );
}

/// Copies checked-in files to the names that a client reads.
fn put(folder: &TempDir, files: &[(&str, &str)]) {
    for (file, name) in files {
        fs::copy(certificate_path(file), folder.join(name)).unwrap();
    }
}

fn files_are_read_again_for_each_connection() {
    let Some((server, port)) = strict_server("server") else {
        return;
    };
    let folder = TempDir::create();
    let client_cert = [("client.pem", "cert"), ("client.key", "key")];
    put(&folder, &[("ca.pem", "ca")]);
    put(&folder, &client_cert);
    let client = Client::builder()
        .url(format!("rediss://localhost:{port}"))
        .tls_root_file(folder.join("ca"))
        .tls_client_cert_files(folder.join("cert"), folder.join("key"))
        .command_timeout(ms(500))
        .build()
        .unwrap();
    let guard = client.mutex("held").lock().unwrap();
    let close = || server.run("CLIENT", &["KILL", "TYPE", "normal"]);
    let refusal = || {
        close();
        let text = client.mutex("a").try_lock().unwrap_err().to_string();
        // The idle connection is closed, which may cost one attempt.
        if text.contains("closed") || text.contains("end of file") {
            client.mutex("a").try_lock().unwrap_err().to_string()
        } else {
            text
        }
    };
    // The key is replaced a moment later than the certificate.
    put(&folder, &[("stranger.pem", "cert")]);
    close();
    let waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.mutex("b").lock().map(drop));
        let text = expect_unreachable(client.mutex("a").try_lock_for(ms(300)));
        assert!(text.contains("the key does not belong to"), "{text}");
        assert!(text.contains("/cert)"), "{text}");
        put(&folder, &client_cert);
        waiting.join().unwrap()
    });
    waiting.unwrap();

    put(
        &folder,
        &[("stranger.pem", "cert"), ("stranger.key", "key")],
    );
    assert!(refusal().contains("UnknownCA"));
    put(&folder, &client_cert);
    put(&folder, &[("stranger-ca.pem", "ca")]);
    assert!(refusal().contains("UnknownIssuer"));
    fs::remove_file(folder.join("ca")).unwrap();
    assert!(refusal().contains("cannot read"));
    put(&folder, &[("ca.pem", "ca")]);
    assert!(guard.is_held());
    // A connection that was begun before may have failed.
    eventually(ms(10_000), || guard.renew().is_ok());
    guard.unlock().unwrap();
}

fn an_expired_certificate_is_named_with_its_date() {
    const DATE: &str = "expired on 2025-03-10 14:25:36 UTC";
    if Server::lacks_tls() {
        return;
    }
    let port = free_port();
    let _server = tls_server_trusting(port, "server", "old-ca.pem");
    let [cert, key] = ["expired.pem", "expired.key"].map(certificate_path);
    let by_path = trusting(port).tls_client_cert_files(&cert, &key).build();
    let place = format!("the client certificate ({cert}) {DATE}");
    assert_refused(&by_path.unwrap(), [&place, "replace it"]);
    let by_text = trusting(port).tls_client_cert(read_pem("expired.pem"), read_pem("expired.key"));
    let place = format!("the client certificate {DATE}");
    assert_refused(&by_text.build().unwrap(), [&place, "CertificateExpired"]);

    let port = free_port();
    let _server = tls_server(port, "expired");
    let client = with_client_cert(port).tls_root(read_pem("old-ca.pem"));
    let expected = format!("invalid peer certificate: certificate {DATE}");
    assert_refused(
        &client.build().unwrap(),
        [&expected, "the server needs a new certificate"],
    );
}

fn a_server_certificate_of_version_1_is_named() {
    if Server::lacks_tls() {
        return;
    }
    let port = free_port();
    let _server = tls_server(port, "version-1");
    let client = with_client_cert(port).tls_root(read_pem("named-ca.pem"));
    assert_refused(
        &client.build().unwrap(),
        ["X.509 version 1", "the server needs one of version 3"],
    );
}

fn impossible_settings_are_errors_before_any_connection() {
    let wrong = |builder: ClientBuilder, word: &str| {
        match builder.build() {
            Err(Error::Config(text)) => assert!(text.contains(word), "{text}"),
            other => panic!("{other:?}"),
        };
    };
    wrong(trusting(1).tls_root("no PEM"), "tls_root");
    wrong(
        trusting(1).tls_client_cert(read_pem("client.pem"), read_pem("server.key")),
        "the key does not belong to the certificate",
    );
    // Without this error the connection would not be encrypted.
    for plain in [
        "redis://h",
        "redis+unix:///run/redis.sock",
        "redis+sentinel://h/m",
        "redis+cluster://h",
    ] {
        for advice in ["rediss://", "if the servers have no TLS, remove them"] {
            wrong(with_client_cert(1).url(plain), advice);
        }
    }
    let shown = format!("{:?}", with_client_cert(1));
    assert!(shown.contains("client_cert: true"), "{shown}");
    let key = String::from_utf8(read_pem("client.key")).unwrap();
    assert!(key.lines().all(|line| !shown.contains(line)), "{shown}");
}

fn a_server_with_an_unverifiable_certificate_is_refused() {
    if Server::lacks_tls() {
        return;
    }
    let port = support::free_port().to_string();
    let (key, chain, authority) = (
        certificate_path("server.key"),
        certificate_path("server.pem"),
        certificate_path("ca.pem"),
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
    let trusting = Child::spawn(
        "tls::locker",
        &[("URL", &url), ("SSL_CERT_FILE", &authority)],
    );
    assert_eq!(trusting.next_line(), "locked");
    trusting.wait().succeeded();
    // Another certificate in the file is damaged.
    let folder = TempDir::create();
    let with_damaged = folder.join("authorities.pem");
    let damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let authorities = fs::read_to_string(&authority).unwrap() + damaged;
    fs::write(&with_damaged, authorities).unwrap();
    let with_damaged = with_damaged.display().to_string();
    let trusting = Child::spawn(
        "tls::locker",
        &[("URL", &url), ("SSL_CERT_FILE", &with_damaged)],
    );
    assert_eq!(trusting.next_line(), "locked");
    trusting.wait().succeeded();
    // Trusts a CA that did not sign the server's certificate.
    let distrusting = Child::spawn("tls::locker", &[("URL", &url), ("SSL_CERT_FILE", &chain)]);
    let line = distrusting.next_line();
    assert!(
        line.starts_with("refused") && line.to_lowercase().contains("certificate"),
        "{line}"
    );
    distrusting.wait().succeeded();
}

/// The bytes that a peer sends, their form in an error, and the advice in it.
const PEERS: [(&[u8], &str, &str); 3] = [
    (
        b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n",
        r#""SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n""#,
        "",
    ),
    (
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
        r#""HTTP/1.1 400 Bad Request\r\nConnection: cl""#,
        "",
    ),
    (
        b"-ERR Protocol error: unauthenticated multibulk length\r\n",
        r#""-ERR Protocol error: unauthenticated mul""#,
        "use redis://",
    ),
];

fn a_peer_that_speaks_no_tls_is_named_at_once() {
    for (sent, shown, advice) in PEERS {
        for peer in [
            FakeServer::sending(sent, false),
            FakeServer::answering(sent),
        ] {
            for (scheme, path) in [
                ("rediss", ""),
                ("rediss+cluster", ""),
                ("rediss+sentinel", "/m"),
                ("rediss+quorum", ""),
            ] {
                let url = format!("{scheme}://localhost:{}{path}", peer.port());
                let client = trusting(1)
                    .url(&url)
                    .unreachable_for(Duration::from_secs(600));
                let client = client.build().unwrap();
                let began = Instant::now();
                for error in [
                    client.mutex("a").lock().err(),
                    client.mutex("a").try_lock().err(),
                ] {
                    let text = error.expect("an error").to_string();
                    assert!(
                        text.contains("this does not look like Redis with TLS"),
                        "{text}"
                    );
                    let advice = match scheme {
                        "rediss+sentinel" if !advice.is_empty() => "set sentinel_tls=no",
                        _ => advice,
                    };
                    assert!(text.contains(shown) && text.contains(advice), "{text}");
                    assert_eq!(text.lines().count(), 1, "{text}");
                }
                // Without the check, `lock` would try for the 600 s that are set above.
                assert!(began.elapsed() < Duration::from_secs(60), "{url}");
            }
        }
    }
}
