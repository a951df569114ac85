//! Promise: TLS is decided for the sentinels, and for their master, each by itself. An error about
//! one side says what to set for it.

use std::time::Duration;

use leasehold::{Client, ClientBuilder, Error};
use support::{Sentinels, Server, Setup, exercise_every_call, ms, read_pem};

support::tests![
    sentinels_and_their_master_may_differ,
    the_error_says_which_side_to_change,
    servers_of_one_side_may_not_differ
];

/// A sentinel or master that gets TLS and does not speak it sends nothing: the client learns that
/// at the end of this time. It is long enough for one that answers, even on a busy machine.
const CONNECT_TIMEOUT: Duration = ms(1_000);

/// Long enough for a second attempt.
const COMMAND_TIMEOUT: Duration = ms(2_500);

fn with_certificates() -> ClientBuilder {
    Client::builder()
        .tls_root(read_pem("ca.pem"))
        .tls_client_cert(read_pem("client.pem"), read_pem("client.key"))
}

/// Starts sentinels whose servers have a TLS port and a plain one each.
fn group() -> Option<Sentinels> {
    if Server::lacks_tls() {
        return None;
    }
    Some(Sentinels::start(Setup {
        replicas: 0,
        tls: true,
        ..Setup::steady()
    }))
}

/// Returns the URL of the plain ports of the sentinels, which name the TLS port of the master.
fn url_of_plain_sentinels(sentinels: &Sentinels) -> String {
    sentinels.url().replace("redis+", "rediss+") + "?sentinel_tls=no"
}

fn sentinels_and_their_master_may_differ() {
    let Some(sentinels) = group() else {
        return;
    };
    let master = sentinels.first_master();
    let url = url_of_plain_sentinels(&sentinels);
    exercise_every_call(|| with_certificates().url(&url), "a", &[master]);
    let (bare, _) = url.split_once('?').unwrap();
    let (_, hosts) = bare.split_once("://").unwrap();
    let (hosts, name) = hosts.split_once('/').unwrap();
    let plain = hosts.split(',').map(|host| format!("redis://{host}"));
    for builder in [
        with_certificates().url(bare).sentinel_tls(false),
        with_certificates()
            .url(format!("{bare}?sentinel_tls=yes"))
            .sentinel_tls(false),
        with_certificates().sentinel(plain, format!("rediss://{name}")),
        with_certificates()
            .sentinel(hosts.split(','), format!("rediss://{name}"))
            .sentinel_tls(false),
    ] {
        builder
            .build()
            .unwrap()
            .mutex("b")
            .lock()
            .unwrap()
            .unlock()
            .unwrap();
    }

    let (url, map) = sentinels.url_of_plain_master();
    let of_plain_master = || with_certificates().url(&url).address_map(map.clone());
    exercise_every_call(of_plain_master, "c", &[master]);
    let bare = url.replace("?sentinel_tls=yes", "");
    let client = of_plain_master()
        .url(bare)
        .sentinel_tls(true)
        .build()
        .unwrap();
    client.mutex("d").lock().unwrap().unlock().unwrap();
}

#[track_caller]
fn text_of(builder: ClientBuilder) -> String {
    let builder = builder.connect_timeout(CONNECT_TIMEOUT);
    let client = builder.command_timeout(COMMAND_TIMEOUT).build().unwrap();
    client
        .mutex("a")
        .try_lock()
        .expect_err("one side differs")
        .to_string()
}

/// Follows each error from one URL to the next. All lead to the one that works.
fn the_error_says_which_side_to_change() {
    let Some(sentinels) = group() else {
        return;
    };
    let works = url_of_plain_sentinels(&sentinels);
    let bare = works.replace("?sentinel_tls=no", "");
    let plain = bare.replace("rediss", "redis");
    let says = |url: &str, words: &str| {
        let text = text_of(with_certificates().url(url));
        assert!(text.contains(words), "{url}: {text}");
        assert!(
            !text.contains("use redis://") && !text.contains("use rediss://"),
            "{text}"
        );
    };
    says(&bare, "set sentinel_tls=no");
    says(&format!("{plain}?sentinel_tls=yes"), "set sentinel_tls=no");
    let text = text_of(Client::builder().url(&plain));
    assert!(
        text.contains("use rediss+sentinel://, with sentinel_tls=no"),
        "{text}"
    );
    let Err(Error::Config(text)) = with_certificates().url(&plain).build() else {
        panic!("nothing is encrypted");
    };
    assert!(
        text.contains("sentinel_tls=yes") && text.contains("sentinel_tls=no"),
        "{text}"
    );

    let (works, map) = sentinels.url_of_plain_master();
    let bare = works.replace("?sentinel_tls=yes", "");
    let text = text_of(Client::builder().url(&bare));
    assert!(text.contains("set sentinel_tls=yes"), "{text}");
    let encrypted = bare.replace("redis+", "rediss+");
    let text = text_of(with_certificates().url(&encrypted).address_map(map));
    assert!(
        text.contains("use redis+sentinel://, with sentinel_tls=yes"),
        "{text}"
    );
}

fn servers_of_one_side_may_not_differ() {
    let wrong = |builder: ClientBuilder, word: &str| match builder.build() {
        Err(Error::Config(text)) => assert!(text.contains(word), "{text}"),
        other => panic!("{other:?}"),
    };
    let mixed = ["rediss://one:1", "redis://two:2"];
    wrong(with_certificates().sentinel(mixed, "rediss://m"), "two:2");
    wrong(with_certificates().sentinel(mixed, "redis://m"), "two:2");
    wrong(with_certificates().quorum(mixed), "two:2");
    wrong(with_certificates().quorum(mixed), "set up TLS there");
    wrong(
        with_certificates().cluster(mixed),
        "same user, password and TLS",
    );
    wrong(
        Client::builder().url("rediss://h").sentinel_tls(false),
        "needs sentinels",
    );
    wrong(
        Client::builder().url("redis+sentinel://h/m?sentinel_tls=on"),
        "yes or no",
    );
    wrong(
        with_certificates().url("redis+sentinel://h/m"),
        "sentinel_tls=yes",
    );
}
