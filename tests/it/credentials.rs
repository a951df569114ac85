//! Promise: passwords that expire, in a callback or a file, are read for each connect.

use std::fs;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, ClientBuilder, Credentials, Error};
use parking_lot::Mutex;
use support::{
    Cluster, ClusterSetup, FakeServer, Request, Sentinels, Server, Setup, TempDir, eventually,
    expect_unreachable, ms,
};

support::tests![
    waiting_call_goes_on_until_sentinels_and_master_accept_the_passwords,
    waiting_call_goes_on_until_a_cluster_accepts_the_password,
    held_lock_and_waiting_call_outlast_a_replaced_password,
    password_replaced_after_it_was_read_is_read_again_at_once,
    password_file_is_read_for_each_connect,
    held_lock_outlasts_replaced_passwords_of_a_quorum,
    callback_that_fails_is_named_and_opens_no_breaker,
    setting_that_contradicts_the_url_is_an_error,
    reply_that_repeats_the_password_is_not_shown,
    user_without_a_password_is_not_the_default_user
];

const WAIT_LIMIT: Duration = ms(10_000);

/// A password that a test replaces, and how often it was asked for.
#[derive(Clone, Default)]
struct Source {
    password: Arc<Mutex<String>>,
    asked: Arc<AtomicUsize>,
}

impl Source {
    fn of(password: &str) -> Self {
        let source = Self::default();
        source.set(password);
        source
    }

    fn set(&self, password: &str) {
        *self.password.lock() = password.to_owned();
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn wait_until_asked_again(&self, times: usize) {
        let before = self.asked();
        eventually(WAIT_LIMIT, || self.asked() >= before + times);
    }

    fn ask(&self) -> Result<Credentials, Box<dyn std::error::Error + Send + Sync>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Ok(Credentials::password(self.password.lock().as_str()))
    }

    fn builder(&self) -> ClientBuilder {
        let source = self.clone();
        let builder = Client::builder().unreachable_for(ms(60_000));
        builder.credentials(move || source.ask())
    }
}

/// Sets the only password of the user `app`.
fn set_password(server: &Server, password: &str) {
    let password = format!(">{password}");
    let user = ["SETUSER", "app", "on", "resetpass", &password];
    server.run("ACL", &[&user[..], &["~*", "&*", "+@all"]].concat());
}

/// Replaces the password of the user `app`, and closes its connections.
fn replace_password(server: &Server, password: &str) {
    set_password(server, password);
    server.run("CLIENT", &["KILL", "USER", "app"]);
}

fn url(server: &Server) -> String {
    format!("redis://app@127.0.0.1:{}", server.port())
}

fn held_lock_and_waiting_call_outlast_a_replaced_password() {
    let server = Server::start();
    set_password(&server, "first-secret");
    let source = Source::of("first-secret");
    let client = source.builder().url(url(&server)).ttl(ms(5_000));
    let client = client.build().unwrap();
    let guard = client.mutex("held").lock().unwrap();
    let other = Client::open(server.url()).unwrap();
    let elsewhere = other.mutex("wanted").lock().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| client.mutex("wanted").lock().unwrap());
        server.wait_until_waiter_sleeps("lock_release:wanted");
        let free = scope.spawn(|| {
            replace_password(&server, "second-secret");
            client.mutex("free").lock().unwrap()
        });
        source.wait_until_asked_again(6);
        assert!(!waiting.is_finished() && !free.is_finished() && guard.is_held());
        let text = expect_unreachable(client.mutex("free").try_lock());
        assert!(
            text.contains("WRONGPASS") && !text.contains("secret"),
            "{text}"
        );

        source.set("second-secret");
        drop(elsewhere);
        drop((waiting.join().unwrap(), free.join().unwrap()));
    });
    guard.renew().unwrap();
    guard.unlock().unwrap();
}

fn password_replaced_after_it_was_read_is_read_again_at_once() {
    let server = Server::start();
    set_password(&server, "second");
    let asked = AtomicUsize::new(0);
    let passwords = move || match asked.fetch_add(1, Ordering::SeqCst) {
        0 => Ok(Credentials::new("app", "first")),
        _ => Ok(Credentials::new("app", "second")),
    };
    let client = Client::builder().quorum([server.url()]);
    let client = client.credentials(passwords).build().unwrap();
    // A quorum reports the first failure of a connect.
    assert!(client.mutex("a").try_lock().unwrap().is_ok());
}

fn password_file_is_read_for_each_connect() {
    let server = Server::start();
    set_password(&server, "first");
    let directory = TempDir::create();
    let file = directory.join("password");
    fs::write(&file, "first\n").unwrap();
    let client = Client::builder().url(url(&server)).password_file(&file);
    let client = client.build().unwrap();
    let guard = client.mutex("a").lock().unwrap();
    fs::write(&file, "second\r\n").unwrap();
    replace_password(&server, "second");
    guard.renew().or_else(|_| guard.renew()).unwrap();
    guard.unlock().unwrap();

    fs::remove_file(&file).unwrap();
    server.run("CLIENT", &["KILL", "USER", "app"]);
    let text = expect_unreachable(client.mutex("a").try_lock_for(ms(300)));
    assert!(
        text.contains("password file") && text.contains("No such file"),
        "{text}"
    );
}

fn waiting_call_goes_on_until_sentinels_and_master_accept_the_passwords() {
    let sentinels = Sentinels::start(Setup {
        password: Some("data-secret"),
        sentinel_password: Some("watch-secret"),
        ..Setup::steady()
    });
    let (data, watch) = (Source::of("old"), Source::of("old"));
    let of_sentinels = watch.clone();
    let url = sentinels.url();
    let (_, hosts) = url.split_once('@').expect("the URL has a password");
    let hosts = hosts.split('/').next().unwrap();
    let builder = data.builder().sentinel(hosts.split(','), "mymaster");
    let builder = builder.sentinel_credentials(move || of_sentinels.ask());
    let client = builder.build().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| client.mutex("a").lock().unwrap().unlock().unwrap());
        watch.wait_until_asked_again(12);
        assert!(data.asked() == 0 && !waiting.is_finished());
        watch.set("watch-secret");
        data.wait_until_asked_again(4);
        assert!(!waiting.is_finished());
        data.set("data-secret");
        waiting.join().unwrap();
    });
}

fn waiting_call_goes_on_until_a_cluster_accepts_the_password() {
    let cluster = Cluster::with(ClusterSetup {
        password: Some("new-secret"),
        ..ClusterSetup::steady(3, 0)
    });
    let source = Source::of("old-secret");
    let client = source.builder().url(cluster.url_as("")).build().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| client.mutex("a").lock().unwrap().unlock().unwrap());
        source.wait_until_asked_again(8);
        assert!(!waiting.is_finished());
        source.set("new-secret");
        waiting.join().unwrap();
    });
    for n in 0..10 {
        let guard = client.mutex(format!("n{n}")).lock().unwrap();
        guard.unlock().unwrap();
    }
}

fn held_lock_outlasts_replaced_passwords_of_a_quorum() {
    let servers = [(); 3].map(|()| Server::start());
    for server in &servers {
        set_password(server, "first");
    }
    let source = Source::of("first");
    let client = source.builder().quorum(servers.each_ref().map(url));
    let client = client.ttl(ms(5_000)).build().unwrap();
    let guard = client.mutex("a").lock().unwrap();
    for server in &servers {
        replace_password(server, "second");
    }
    thread::scope(|scope| {
        let waiting = scope.spawn(|| client.mutex("b").lock().unwrap().unlock().unwrap());
        source.wait_until_asked_again(12);
        assert!(!waiting.is_finished() && guard.is_held());
        source.set("second");
        waiting.join().unwrap();
    });
    guard.renew().unwrap();
    guard.unlock().unwrap();
}

fn callback_that_fails_is_named_and_opens_no_breaker() {
    let server = Server::start();
    for panics in [false, true] {
        let client = Client::builder()
            .url(server.url())
            .breaker(1)
            .credentials(move || {
                if panics {
                    // Without the panic hook: to print a backtrace may take longer than
                    // the call.
                    std::panic::resume_unwind(Box::new("in the callback"));
                }
                Err("the vault is \x1b sealed".into())
            });
        let client = client.command_timeout(ms(300)).build().unwrap();
        for _ in 0..3 {
            let text = expect_unreachable(client.mutex("a").try_lock());
            let expected = if !panics {
                r"no credentials: the vault is \x1b sealed"
            } else {
                "no credentials: the callback panicked"
            };
            assert!(text.contains(expected), "{text}");
        }
    }
}

fn setting_that_contradicts_the_url_is_an_error() {
    let source = Source::of("a-secret");
    let build = |builder: ClientBuilder| match builder.build() {
        Err(Error::Config(text)) => text,
        other => panic!("{other:?}"),
    };
    let text = build(source.builder().url("redis://:own-secret@h"));
    assert!(text.contains("h:6379 contains a password"), "{text}");
    assert!(!text.contains("secret"), "{text}");
    let plain = Client::builder().url("redis://h");
    let text = build(plain.sentinel_credentials(|| Ok(Credentials::password("x"))));
    assert!(text.contains("redis+sentinel://"), "{text}");
    assert!(!format!("{:?}", source.ask().unwrap()).contains("secret"));
}

/// A server without AUTH repeats the arguments, and so does a peer that sends back what it reads.
fn reply_that_repeats_the_password_is_not_shown() {
    let renamed = Server::with(&["--rename-command", "AUTH", "LOGON"]);
    let echo = FakeServer::with_writer(|request: &Request, client| {
        let mut packed = redis::Cmd::new();
        packed.arg(&request.words);
        client.write_all(&packed.get_packed_command())
    });
    for port in [renamed.port(), echo.port()] {
        for user in ["", "app"] {
            for by_callback in [false, true] {
                let password = if by_callback { "" } else { ":s3cret" };
                let at = match (user, password) {
                    ("", "") => "",
                    _ => "@",
                };
                let url = format!("redis://{user}{password}{at}127.0.0.1:{port}");
                let builder = Client::builder().url(url).unreachable_for(ms(100));
                let builder = if by_callback {
                    builder.credentials(|| Ok(Credentials::password("s3cret")))
                } else {
                    builder
                };
                let client = builder.build().unwrap();
                let error = client.mutex("a").try_lock().unwrap_err();
                for text in [error.to_string(), format!("{error:?}")] {
                    assert!(text.contains("AUTH") && !text.contains("s3c"), "{text}");
                }
            }
        }
    }
}

fn user_without_a_password_is_not_the_default_user() {
    let server = Server::start();
    let rules = ["SETUSER", "app", "on", "nopass", "~*", "&*", "+@all"];
    server.run("ACL", &rules);
    let who = || {
        let clients = server.client_list();
        let ours = clients
            .iter()
            .filter(|client| client["name"].starts_with("leasehold:"));
        ours.map(|client| client["user"].clone())
            .collect::<Vec<_>>()
    };
    for protocol in ["", "?protocol=3"] {
        let client = Client::open(url(&server) + protocol).unwrap();
        let guard = client.mutex("a").lock().unwrap();
        let users = who();
        assert!(
            !users.is_empty() && users.iter().all(|user| user == "app"),
            "{users:?}"
        );
        guard.unlock().unwrap();
    }

    set_password(&server, "s3cret");
    for protocol in ["", "?protocol=3"] {
        let client = Client::open(url(&server) + protocol).unwrap();
        let began = Instant::now();
        let error = client.mutex("a").lock().unwrap_err();
        assert!(began.elapsed() < ms(5_000), "the call has waited");
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("a user without a password"), "{text}");
        assert!(text.contains("WRONGPASS"), "{text}");
    }
}
