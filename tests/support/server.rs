//! A real Redis or Valkey server for a test.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use redis::{Client, Connection};

use super::clock::Clock;
use super::permit::{self, Permit};
use super::port;
use super::snapshot::Snapshot;
use super::supervised_process::SupervisedProcess;
use super::tempdir::TempDir;
use super::time::{eventually, ms};
use super::watchdog::{Watchdog, default_limit, watchdog};

/// A private `redis-server` or `valkey-server` on a free port and a unix socket.
///
/// It ends when it is dropped, and at the latest with the test's process.
pub struct Server {
    port: u16,
    options: Vec<String>,
    process: SupervisedProcess,
    directory: TempDir,
    /// `None` for a server with the clock of the machine.
    clock: Option<Clock>,
    watchdog: Option<Watchdog>,
    /// `None` for a member of a group, which has one permit for all members, and for a server that
    /// several tests share.
    permit: Option<Permit>,
}

impl Server {
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with command-line options: `&["--maxmemory", "3mb"]`.
    pub fn with(options: &[&str]) -> Self {
        let permit = Permit::take(permit::SERVER);
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let mut server = Self::with_fresh(|| options.clone());
        server.permit = Some(permit);
        server
    }

    /// Starts a server whose wall clock the test can [step](Self::step_clock). Needs Linux and a C
    /// compiler.
    pub fn with_clock() -> Self {
        let permit = Permit::take(permit::SERVER);
        let mut server = Self::with_fast_clock(0);
        server.permit = Some(permit);
        server
    }

    /// Starts servers whose wall clocks are too fast by `rate` millionths. Needs Linux and a C
    /// compiler.
    pub fn several_with_fast_clocks<const N: usize>(rate: i64) -> [Self; N] {
        let permit = Permit::take(permit::SERVER * N);
        let mut servers = std::array::from_fn(|_| Self::with_fast_clock(rate));
        servers[0].permit = Some(permit);
        servers
    }

    fn with_fast_clock(rate: i64) -> Self {
        let clock = Some(Clock::too_fast_by(rate));
        Self::start_in(TempDir::create(), clock, Vec::new)
    }

    /// Moves the server's wall clock by this many seconds; back if negative.
    pub fn step_clock(&mut self, seconds: i64) {
        let clock = self.clock.as_mut();
        clock.expect("a server `with_clock`").step(seconds);
    }

    /// Starts a server; `options` is called for every attempt, because it may draw further ports.
    pub(super) fn with_fresh(options: impl Fn() -> Vec<String>) -> Self {
        Self::start_in(TempDir::create(), None, options)
    }

    fn start_in(
        directory: TempDir,
        clock: Option<Clock>,
        options: impl Fn() -> Vec<String>,
    ) -> Self {
        // Another process may take the port before the server binds it.
        for _ in 0..20 {
            let (port, options) = (port::free(), options());
            if let Some(process) = launch(port, &options, &directory, clock.as_ref()) {
                let watchdog = Some(watchdog(default_limit()));
                return Self {
                    port,
                    options,
                    process,
                    directory,
                    clock,
                    watchdog,
                    permit: None,
                };
            }
        }
        panic!(
            "no server started; log of the last attempt:\n{}",
            read_log(&directory)
        );
    }

    /// Returns whether the binary supports TLS; the one from PyPI does not.
    pub fn has_tls() -> bool {
        // Without a certificate the server exits at once. Its message tells a missing certificate
        // from an unknown option.
        let output = Command::new(binary())
            .args(["--port", "0", "--tls-port", &port::free().to_string()])
            .output()
            .expect("the server's binary runs");
        let output = [output.stdout, output.stderr].concat();
        let output = String::from_utf8_lossy(&output);
        !output.contains("Bad directive") && !output.contains("Failed finding TLS support")
    }

    /// Returns whether the server's binary has no TLS. If so, prints that a test is skipped.
    pub fn lacks_tls() -> bool {
        let lacks_tls = !Self::has_tls();
        if lacks_tls {
            println!("skipped: this server's binary has no TLS");
        }
        lacks_tls
    }

    /// Returns the major version. Valkey continues the numbering of Redis 7.
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

    /// Starts a replica of this server and waits until it is linked.
    pub fn replica(&self) -> Self {
        let replica = Self::with(&["--replicaof", "127.0.0.1", &self.port.to_string()]);
        eventually(ms(10_000), || {
            replica.info("replication", "master_link_status").as_deref() == Some("up")
        });
        replica
    }

    /// Removes the time limit and the permit, for benches and for servers that several tests share.
    pub fn long_lived(mut self) -> Self {
        self.watchdog = None;
        self.permit = None;
        self
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the value of an option on the server's command line.
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

    /// Opens a connection that is independent of the client under test. Its timeouts are 5 s.
    pub fn connection(&self) -> Connection {
        connect(&self.url(), ms(5_000)).expect("the server accepts a connection")
    }

    /// Runs a command on a separate connection.
    #[track_caller]
    pub fn run(&self, command: &str, arguments: &[&str]) {
        redis::cmd(command)
            .arg(arguments)
            .exec(&mut self.connection())
            .unwrap_or_else(|error| panic!("{command} {arguments:?}: {error}"));
    }

    /// Returns one field of `INFO`.
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

    /// Stops the process with a signal: connections stay open, the kernel accepts new ones, and the
    /// server replies to nothing.
    pub fn pause(&self) {
        self.process.pause();
    }

    pub fn resume(&self) {
        self.process.resume();
    }

    /// Kills the process, as a power cut would, and waits for its end.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Restarts the server on the same port, without data.
    pub fn restart(&mut self) {
        self.kill();
        Snapshot::remove(self.directory.path());
        self.relaunch();
    }

    /// Restarts the server on the same port with what it has written to its append-only file.
    pub fn restart_with_data(&mut self) {
        self.kill();
        self.relaunch();
    }

    /// Saves and returns the current data.
    pub fn snapshot(&self) -> Snapshot {
        let () = redis::cmd("SAVE")
            .query(&mut self.connection())
            .expect("SAVE succeeds");
        Snapshot::take(self.directory.path())
    }

    /// Restarts the server on the same port with the data of the snapshot.
    pub fn restart_from(&mut self, snapshot: &Snapshot) {
        self.kill();
        snapshot.put(self.directory.path());
        self.relaunch();
    }

    /// Returns the server's log.
    pub fn log(&self) -> String {
        read_log(&self.directory)
    }

    pub fn process_id(&self) -> u32 {
        self.process.id()
    }

    fn relaunch(&mut self) {
        self.process = launch(
            self.port,
            &self.options,
            &self.directory,
            self.clock.as_ref(),
        )
        .unwrap_or_else(|| panic!("the server does not start again:\n{}", self.log()));
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

/// Starts a server; `None` if it could not start, most likely because its port was taken.
fn launch(
    port: u16,
    options: &[String],
    directory: &TempDir,
    clock: Option<&Clock>,
) -> Option<SupervisedProcess> {
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
    let mut process =
        SupervisedProcess::start(&binary(), arguments, Some(directory.path()), |command| {
            let errors = log.try_clone().expect("the log's descriptor can be cloned");
            command
                .current_dir(directory.path())
                .stdout(log)
                .stderr(errors);
            if let Some(clock) = clock {
                command.envs(clock.variables());
            }
        })
        .expect("/bin/sh can be started");

    // Through the socket in its private directory: on the port, another server might reply.
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
            "the server does not reply:\n{}",
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

/// Returns the binary from `REDIS_SERVER_BIN`, `PATH` or the directory that `.ci/server` fills.
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
        .expect(
            "no redis-server or valkey-server found: `make servers` installs one (examples also \
             read REDIS_URL)",
        )
}
