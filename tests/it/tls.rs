//! Promise: `rediss://` encrypts, and takes no server whose certificate it cannot check.
use std::time::{Duration, Instant};

use leasehold::{Client, ClientBuilder, Error, Unlocked};
use support::{
    Child, Cluster, ClusterSetup, Sentinels, Server, Setup, certificate_path, exercise_every_call,
    free_port, ms, parameter, read_pem, tell_parent, tls_server,
};

support::roles![locker];

support::tests![
    a_private_authority_and_a_client_certificate,
    sentinels_and_the_master_that_they_name,
    the_nodes_of_a_cluster,
    who_is_not_trusted_is_an_error_at_once_that_says_what_to_do,
    what_cannot_work_is_said_before_any_connection,
    only_a_server_that_can_be_checked
];

/// What is final comes much sooner than what `lock` waits out.
const PATIENCE: Duration = ms(5_000);

/// Locks and waits over TLS; what it trusts is set in the environment that it is started with.
fn locker() {
    let client = Client::open(&parameter("URL")).unwrap();
    match client.mutex("a").try_lock() {
        Ok(guard) => {
            let guard = guard.unwrap();
            let waiter = client.mutex("a");
            let waiting = std::thread::spawn(move || waiter.lock().unwrap().unlock().unwrap());
            assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
            assert_eq!(waiting.join().unwrap(), Unlocked::Released);
            tell_parent("locked");
        }
        Err(error @ Error::Refused { .. }) => tell_parent(&format!("refused: {error}")),
        Err(error) => panic!("{error:?}"),
    }
}

/// A server that shows this certificate and asks its clients for theirs; `None` where the binary has no TLS.
fn strict_server(shown: &str) -> Option<(Server, u16)> {
    if !Server::has_tls() {
        println!("this server's binary has no TLS: nothing to check against");
        return None;
    }
    let port = free_port();
    Some((tls_server(port, shown), port))
}

/// A builder that still wants to know where Redis is.
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

fn known(port: u16) -> ClientBuilder {
    trusting(port).tls_client_cert(read_pem("client.pem"), read_pem("client.key"))
}

fn a_private_authority_and_a_client_certificate() {
    let Some((server, port)) = strict_server("server") else {
        return;
    };
    exercise_every_call(|| known(port), "a", &[&server]);
    let by_address = format!("rediss://127.0.0.1:{port}?protocol=resp3");
    exercise_every_call(|| known(port).url(&by_address), "a", &[&server]);
}

/// The sentinels too ask for a certificate; of the master only its port for TLS is known to them.
fn sentinels_and_the_master_that_they_name() {
    if !Server::has_tls() {
        return;
    }
    let sentinels = Sentinels::start(Setup {
        replicas: 0,
        tls: true,
        ..Setup::steady()
    });
    let url = sentinels.tls_url();
    exercise_every_call(|| known(1).url(&url), "a", &[sentinels.first_master()]);
    is_refused(
        &trusting(1).url(&url).build().unwrap(),
        ["CertificateRequired", "ClientBuilder::tls_client_cert"],
    );
    is_refused(
        &Client::builder().url(&url).build().unwrap(),
        ["UnknownIssuer", "ClientBuilder::tls_root"],
    );
}

/// One node is named. The others, which are learnt from it, ask for a certificate too.
fn the_nodes_of_a_cluster() {
    if !Server::has_tls() {
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
        let keeper = [cluster.node(node)];
        exercise_every_call(by_url, &cluster.name_owned_by("url", node), &keeper);
        exercise_every_call(by_node, &cluster.name_owned_by("node", node), &keeper);
    }

    // Who is sent on goes there with the same.
    let client = by_url().build().unwrap();
    let name = cluster.name_owned_by("moves", 1);
    let slot = cluster.slot(&format!("lock:{name}"));
    let guard = client.mutex(&*name).lock().unwrap();
    cluster.begin_migration(slot, 1, 2);
    cluster.move_keys(slot, 1, 2);
    guard.renew().unwrap();
    cluster.end_migration(slot, 1, 2);
    guard.renew().unwrap();
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);

    is_refused(
        &trusting(1).url(&url).build().unwrap(),
        ["CertificateRequired", "ClientBuilder::tls_client_cert"],
    );
    is_refused(
        &Client::builder().cluster([&node]).build().unwrap(),
        ["UnknownIssuer", "ClientBuilder::tls_root"],
    );
}

#[track_caller]
fn is_refused(client: &Client, words: [&str; 2]) {
    type Attempt = fn(&Client) -> Option<Error>;
    let attempts: [Attempt; 4] = [
        |client| client.mutex("a").lock().err(),
        |client| client.mutex("a").try_lock().err(),
        |client| client.mutex("a").try_lock_for(PATIENCE).err(),
        |client| client.ping().err(),
    ];
    for attempt in attempts {
        let began = Instant::now();
        let error = attempt(client).expect("an error");
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert!(!error.may_be_held());
        let text = error.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
        assert!(began.elapsed() < PATIENCE, "{text}");
    }
}

fn who_is_not_trusted_is_an_error_at_once_that_says_what_to_do() {
    let Some((server, port)) = strict_server("server") else {
        return;
    };
    let trusting_strangers = known(port).tls_root(read_pem("stranger-ca.pem"));
    let refused = trusting_strangers.build().unwrap();
    is_refused(&refused, ["UnknownIssuer", "ClientBuilder::tls_root"]);
    let stranger =
        trusting(port).tls_client_cert(read_pem("stranger.pem"), read_pem("stranger.key"));
    is_refused(
        &stranger.build().unwrap(),
        ["UnknownCA", "authority that the server trusts"],
    );
    let unknown = trusting(port).build().unwrap();
    is_refused(
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
    // Which knows no alert of its own for that.
    set("tls-protocols", "TLSv1.2");
    is_refused(
        &unknown,
        ["HandshakeFailure", "ClientBuilder::tls_client_cert"],
    );
    assert!(known(port).build().unwrap().ping().is_ok());
    // It stays refused only as long as the setting stays.
    set("tls-auth-clients", "no");
    drop(unknown.mutex("a").lock().unwrap());

    let elsewhere = strict_server("client");
    let (_server, port) = elsewhere.expect("the binary has TLS");
    is_refused(
        &known(port).build().unwrap(),
        ["\"localhost\"", "the URL must name the server"],
    );
}

fn what_cannot_work_is_said_before_any_connection() {
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
    // Otherwise it would go out in the clear.
    for plain in [
        "redis://h",
        "redis+unix:///run/redis.sock",
        "redis+sentinel://h/m",
        "redis+cluster://h",
    ] {
        wrong(known(1).url(plain), "rediss://");
    }
    let shown = format!("{:?}", known(1));
    assert!(shown.contains("client_cert: true"), "{shown}");
    let key = String::from_utf8(read_pem("client.key")).unwrap();
    assert!(key.lines().all(|line| !shown.contains(line)), "{shown}");
}

fn only_a_server_that_can_be_checked() {
    if !Server::has_tls() {
        println!("this server's binary has no TLS: nothing to check against");
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
    // Trusts only that certificate authority that the server's certificate does not come from.
    let wary = Child::spawn("tls::locker", &[("URL", &url), ("SSL_CERT_FILE", &chain)]);
    let line = wary.next_line();
    assert!(
        line.starts_with("refused") && line.to_lowercase().contains("certificate"),
        "{line}"
    );
    wary.wait().succeeded();
}
