//! Sentinels that say what the test wants: a real one with a configuration of its own, and a fake.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::fake_server::{FakeServer, Request, default_reply};
use super::sentinels::{MASTER, ask};
use super::server::{answers, binary};
use super::supervised_process::SupervisedProcess;
use super::tempdir::TempDir;
use super::time::{eventually, let_pass, ms};

/// A real sentinel that knows no other sentinel, and names the master that the test chooses.
pub struct OwnSentinel {
    port: u16,
    _process: SupervisedProcess,
    _directory: TempDir,
}

impl OwnSentinel {
    /// Starts a sentinel on a port that is free, with the configuration of this epoch. It never
    /// fails over.
    #[track_caller]
    pub fn start(port: u16, master: u16, epoch: u64) -> Self {
        let directory = TempDir::create();
        let file = directory.join("sentinel.conf");
        let lines = format!(
            "port {port}\nbind 127.0.0.1\nunixsocket socket\n\
             sentinel myid {port:040}\n\
             sentinel monitor {MASTER} 127.0.0.1 {master} 2\n\
             sentinel config-epoch {MASTER} {epoch}\n\
             sentinel down-after-milliseconds {MASTER} 60000\n\
             sentinel current-epoch {epoch}\n"
        );
        fs::write(&file, lines).expect("the configuration can be written");
        let log = File::create(directory.join("log")).expect("the log can be written");
        let arguments = [file.as_os_str(), "--sentinel".as_ref()];
        let process =
            SupervisedProcess::start(&binary(), arguments, Some(directory.path()), |command| {
                command.current_dir(directory.path()).stdout(log);
            })
            .expect("/bin/sh can be started");
        let socket = format!("redis+unix://{}", directory.join("socket").display());
        eventually(ms(20_000), || answers(&socket));
        Self {
            port,
            _process: process,
            _directory: directory,
        }
    }

    /// Returns the number of connections that are subscribed here.
    pub fn subscriptions(&self) -> usize {
        let list: String = ask(self.port, None, &["CLIENT", "LIST"]).unwrap_or_default();
        list.lines().filter(|line| line.contains(" sub=1 ")).count()
    }
}

/// What a [`FakeSentinel`] says.
#[derive(Clone, Debug)]
pub struct Says {
    /// The host of the master that it names.
    pub host: &'static str,
    /// The port of the master that it names.
    pub master: u16,
    /// The epoch of its configuration. `None` refuses to say, as if the user had no permission.
    pub epoch: Option<u64>,
    /// How late it answers questions about the master. `None` is never.
    pub after: Option<Duration>,
    /// The port and the epoch that it says after its next reply about the master, as if a failover
    /// ended between two commands of one question.
    pub then: Option<(u16, u64)>,
    /// Whether it refuses `PING`.
    pub refuses_ping: bool,
}

/// A sentinel that answers what the test says, late, or never.
pub struct FakeSentinel {
    server: FakeServer,
    says: Arc<Mutex<Says>>,
    /// The connections that have subscribed.
    subscribers: Arc<Mutex<Vec<TcpStream>>>,
}

impl FakeSentinel {
    /// Starts a sentinel that names the master on this port.
    pub fn naming(master: u16, epoch: Option<u64>) -> Self {
        let says = Arc::new(Mutex::new(Says {
            host: "127.0.0.1",
            master,
            epoch,
            after: Some(Duration::ZERO),
            then: None,
            refuses_ping: false,
        }));
        let subscribers: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let shared = (Arc::clone(&says), Arc::clone(&subscribers));
        let server = FakeServer::with_writer(move |request, client| {
            let mut current = shared.0.lock();
            let says = current.clone();
            if request.name() == "SENTINEL"
                && let Some((master, epoch)) = current.then.take()
            {
                (current.master, current.epoch) = (master, Some(epoch));
            }
            drop(current);
            let text = match request.name().as_str() {
                "SENTINEL" => says.reply(request).map(String::into_bytes),
                "PING" if says.refuses_ping => Some(b"-NOPERM no permissions\r\n".to_vec()),
                _ => default_reply(request),
            };
            client.write_all(&text.unwrap_or_default())?;
            if request.name() == "SUBSCRIBE" {
                shared.1.lock().push(client.try_clone()?);
            }
            Ok(())
        });
        Self {
            server,
            says,
            subscribers,
        }
    }

    /// Changes what it says from now on.
    pub fn set(&self, change: impl FnOnce(&mut Says)) {
        change(&mut self.says.lock());
    }

    /// Announces a failover to the master that it names now.
    pub fn announce(&self) {
        let text = format!("{MASTER} 127.0.0.1 1 127.0.0.1 {}", self.says.lock().master);
        let words = ["message", "+switch-master", &text].map(bulk);
        let message = format!("*3\r\n{}", words.concat());
        for subscriber in self.subscribers.lock().iter_mut() {
            // Fails if the client has closed the connection.
            let _ = subscriber.write_all(message.as_bytes());
        }
    }

    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// Returns how many times it was asked for the master.
    pub fn times_asked(&self) -> usize {
        let asked = self.server.requests("SENTINEL");
        asked.iter().filter(|request| is(request, "MYID")).count()
    }

    /// Returns the connections that have subscribed and are open.
    pub fn subscriptions(&self) -> Vec<usize> {
        let subscribed = self.server.requests("SUBSCRIBE").into_iter();
        let subscribed = subscribed.map(|request| request.connection);
        subscribed.filter(|n| !self.server.is_closed(*n)).collect()
    }
}

impl Says {
    fn reply(&self, request: &Request) -> Option<String> {
        let after = self.after?;
        if is(request, "GET-MASTER-ADDR-BY-NAME") {
            let_pass(after);
            let port = self.master.to_string();
            return Some(format!("*2\r\n{}{}", bulk(self.host), bulk(&port)));
        }
        match self.epoch {
            Some(epoch) if is(request, "MASTER") => {
                let epoch = epoch.to_string();
                Some(format!("*2\r\n{}{}", bulk("config-epoch"), bulk(&epoch)))
            }
            _ => Some("-NOPERM no permissions\r\n".to_owned()),
        }
    }
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn is(request: &Request, subcommand: &str) -> bool {
    let word = request.words.get(1);
    word.is_some_and(|word| word.eq_ignore_ascii_case(subcommand.as_bytes()))
}

/// Returns the URL with the sentinels at these ports.
pub fn sentinel_url(ports: impl IntoIterator<Item = u16>) -> String {
    let hosts = ports.into_iter().map(|port| format!("127.0.0.1:{port}"));
    let hosts: Vec<String> = hosts.collect();
    format!("redis+sentinel://{}/{MASTER}", hosts.join(","))
}
