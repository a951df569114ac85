//! A real server of its own for every test.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use redis::{Client, Connection};

use super::leash::Leashed;
use super::permit::{self, Permit};
use super::port;
use super::snapshot::Snapshot;
use super::tempdir::TempDir;
use super::time::{eventually, ms};
use super::watchdog::{Watchdog, usual_limit, watchdog};

/// A `redis-server` or `valkey-server` on a port and a unix socket of its own. It ends with its owner, and with the
/// test's process at the latest.
pub struct Server {
    port: u16,
    options: Vec<String>,
    process: Leashed,
    directory: TempDir,
    watchdog: Option<Watchdog>,
    /// `None` for one of a group, which has a permit for all of them, and for one that several tests share.
    permit: Option<Permit>,
}

impl Server {
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts it with further options, as on its command line: `&["--maxmemory", "3mb"]`.
    pub fn with(options: &[&str]) -> Self {
        let permit = Permit::take(permit::SERVER);
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let mut server = Self::with_fresh(|| options.clone());
        server.permit = Some(permit);
        server
    }

    /// The same, with options that are drawn anew for every attempt, as further ports are.
    pub(super) fn with_fresh(options: impl Fn() -> Vec<String>) -> Self {
        let directory = TempDir::create();
        // Another process may take the port between our look and the server's.
        for _ in 0..20 {
            let (port, options) = (port::free(), options());
            if let Some(process) = launch(port, &options, &directory) {
                let watchdog = Some(watchdog(usual_limit()));
                return Self {
                    port,
                    options,
                    process,
                    directory,
                    watchdog,
                    permit: None,
                };
            }
        }
        panic!(
            "no server would start; the last one said:\n{}",
            read_log(&directory)
        );
    }

    /// Whether the binary speaks TLS; the one from PyPI does not.
    pub fn has_tls() -> bool {
        // Without a certificate it ends at once; whether over that or over the option, it says.
        let output = Command::new(binary())
            .args(["--port", "0", "--tls-port", &port::free().to_string()])
            .output()
            .expect("the server's binary runs");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        !said.contains("Bad directive") && !said.contains("Failed finding TLS support")
    }

    /// Its major version: of Redis, or of Valkey, which counts on from Redis 7.
    pub fn version() -> u32 {
        let output = Command::new(binary())
            .arg("--version")
            .output()
            .expect("the server's binary runs");
        let line = String::from_utf8_lossy(&output.stdout);
        line.split(" v=")
            .nth(1)
            .and_then(|rest| rest.split('.').next()?.parse().ok())
            .unwrap_or_else(|| panic!("no version in {line:?}"))
    }

    /// A replica of this server, linked to it and in step.
    pub fn replica(&self) -> Self {
        let replica = Self::with(&["--replicaof", "127.0.0.1", &self.port.to_string()]);
        eventually(ms(10_000), || {
            replica.info("replication", "master_link_status").as_deref() == Some("up")
        });
        replica
    }

    /// Lets it run for as long as it likes, and makes no other test wait for its end: a bench takes its time, and tests
    /// share a server.
    pub fn untimed(mut self) -> Self {
        self.watchdog = None;
        self.permit = None;
        self
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// What follows the option on its command line.
    pub fn option(&self, name: &str) -> Option<&str> {
        let at = self.options.iter().position(|option| option == name)?;
        self.options.get(at + 1).map(String::as_str)
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn unix_url(&self) -> String {
        format!("redis+unix://{}", self.directory.join(SOCKET).display())
    }

    /// A connection beside the ones under test. It fails rather than hangs.
    pub fn connection(&self) -> Connection {
        connect(&self.url(), ms(5_000)).expect("the server accepts a connection")
    }

    /// Has it run a command beside the ones under test.
    #[track_caller]
    pub fn run(&self, command: &str, arguments: &[&str]) {
        redis::cmd(command)
            .arg(arguments)
            .exec(&mut self.connection())
            .unwrap_or_else(|error| panic!("{command} {arguments:?}: {error}"));
    }

    /// One field of `INFO`.
    pub fn info(&self, section: &str, field: &str) -> Option<String> {
        let info: String = redis::cmd("INFO")
            .arg(section)
            .query(&mut self.connection())
            .expect("INFO answers");
        info.lines().find_map(|line| {
            line.strip_prefix(field)?
                .strip_prefix(':')
                .map(str::to_owned)
        })
    }

    /// Stops it where it stands: connections stay open, new ones are accepted by the kernel, nothing is answered.
    pub fn pause(&self) {
        self.process.pause();
    }

    pub fn resume(&self) {
        self.process.resume();
    }

    /// Kills it, as a power cut would. It is gone when this returns.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again on the same port, with nothing in it.
    pub fn restart(&mut self) {
        self.kill();
        Snapshot::remove(self.directory.path());
        self.relaunch();
    }

    /// What is in it now.
    pub fn snapshot(&self) -> Snapshot {
        let () = redis::cmd("SAVE")
            .query(&mut self.connection())
            .expect("SAVE succeeds");
        Snapshot::take(self.directory.path())
    }

    /// Starts it again on the same port, with what was in it when the snapshot was taken.
    pub fn restart_from(&mut self, snapshot: &Snapshot) {
        self.kill();
        snapshot.put(self.directory.path());
        self.relaunch();
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        read_log(&self.directory)
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    fn relaunch(&mut self) {
        self.process = launch(self.port, &self.options, &self.directory)
            .unwrap_or_else(|| panic!("the server does not come back:\n{}", self.log()));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!(
                "--- log of the server on port {} ---\n{}---",
                self.port,
                self.log()
            );
        }
    }
}

const SOCKET: &str = "socket";
const LOG: &str = "log";

/// `None` if it could not start, which is most likely for its port being taken.
fn launch(port: u16, options: &[String], directory: &TempDir) -> Option<Leashed> {
    let log = open_log(directory).expect("the log can be written");
    let port = port.to_string();
    let own = [
        "--port",
        &port,
        "--bind",
        "127.0.0.1",
        "--unixsocket",
        SOCKET,
        "--save",
        "",
        "--appendonly",
        "no",
        "--daemonize",
        "no",
        "--repl-diskless-sync-delay",
        "0",
    ];
    let arguments = own.into_iter().chain(options.iter().map(String::as_str));
    let mut process = Leashed::start(&binary(), arguments, Some(directory.path()), |command| {
        let errors = log
            .try_clone()
            .expect("the log's descriptor can be doubled");
        command
            .current_dir(directory.path())
            .stdout(log)
            .stderr(errors);
    })
    .expect("/bin/sh can be started");

    // Asked through the socket in its own directory: on the port, somebody else's server might answer.
    let socket = format!("redis+unix://{}", directory.join(SOCKET).display());
    let deadline = Instant::now() + ms(20_000);
    loop {
        if process
            .process()
            .try_wait()
            .expect("the server is our child")
            .is_some()
        {
            return None;
        }
        if answers(&socket) {
            return Some(process);
        }
        assert!(
            Instant::now() < deadline,
            "the server does not answer:\n{}",
            read_log(directory)
        );
        thread::sleep(ms(2));
    }
}

pub(super) fn answers(url: &str) -> bool {
    connect(url, ms(1_000))
        .and_then(|mut connection| redis::cmd("PING").query::<()>(&mut connection))
        .is_ok()
}

pub(super) fn connect(url: &str, timeout: Duration) -> redis::RedisResult<Connection> {
    let connection = Client::open(url)?.get_connection_with_timeout(timeout)?;
    connection.set_read_timeout(Some(timeout))?;
    connection.set_write_timeout(Some(timeout))?;
    Ok(connection)
}

fn open_log(directory: &TempDir) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(directory.join(LOG))
}

fn read_log(directory: &TempDir) -> String {
    fs::read_to_string(directory.join(LOG)).unwrap_or_default()
}

/// Where `.ci/server` finds it or puts it.
pub(super) fn binary() -> PathBuf {
    if let Some(named) = env::var_os("REDIS_SERVER_BIN").filter(|named| !named.is_empty()) {
        return named.into();
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let installed = ["redis-server", "valkey-server"]
        .into_iter()
        .flat_map(|name| env::split_paths(&path).map(move |directory| directory.join(name)));
    let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.servers/valkey-server");
    installed
        .chain([fetched])
        .find(|binary| binary.is_file())
        .expect("no redis-server or valkey-server here: `make servers` brings one (examples also take REDIS_URL)")
}
