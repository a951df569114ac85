//! A Sentinel group: a master, its replicas and three sentinels.

use std::fs::{self, File};
use std::time::Duration;

use super::certificates::{tls_options, tls_server};
use super::permit::{self, Permit};
use super::port;
use super::replicas::Replicas;
use super::server::{Server, answers, binary, connect};
use super::supervised_process::SupervisedProcess;
use super::tempdir::TempDir;
use super::time::{eventually, ms};

pub(crate) const MASTER: &str = "mymaster";

/// The number of sentinels; two of them must agree.
const SENTINELS: usize = 3;

/// Longer than any test takes.
const STEADY: Duration = ms(60_000);

/// The configuration of a group.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub replicas: usize,
    /// The password of the data servers.
    pub password: Option<&'static str>,
    /// The password of the sentinels.
    pub sentinel_password: Option<&'static str>,
    /// If true, every server also has a TLS port with mutual authentication, and the sentinels know
    /// only the TLS ports. Requires `replicas` to be 0.
    pub tls: bool,
    /// The sentinels replace a master that has not replied for this long.
    pub down_after: Duration,
}

impl Setup {
    /// Returns a setup that never fails over, even on a very slow machine.
    pub const fn steady() -> Self {
        Self {
            replicas: 1,
            password: None,
            sentinel_password: None,
            tls: false,
            down_after: STEADY,
        }
    }

    /// Returns a setup that replaces a master that has been silent for one second.
    pub const fn fast_failover() -> Self {
        Self {
            replicas: 2,
            down_after: ms(1_000),
            ..Self::steady()
        }
    }
}

pub struct Sentinels {
    /// The data servers, first the one that was the master at the start.
    data: Replicas,
    sentinels: Vec<Sentinel>,
    setup: Setup,
    permit: Option<Permit>,
}

struct Sentinel {
    port: u16,
    tls_port: u16,
    process: SupervisedProcess,
    _directory: TempDir,
}

impl Sentinels {
    /// Starts a group and waits until each sentinel knows the master, its replicas and the other
    /// sentinels.
    pub fn start(setup: Setup) -> Self {
        let permit = Some(Permit::take(permit::SENTINELS));
        let tls_port = port::free();
        let data = if !setup.tls {
            Replicas::start(setup.replicas)
        } else {
            Replicas::master_only(tls_server(tls_port, "server"))
        };
        for server in data.servers() {
            // `requirepass` comes last: after it, the server refuses commands without a password.
            for what in ["masterauth", "requirepass"] {
                if let Some(password) = setup.password {
                    ask::<String>(server.port(), None, &["CONFIG", "SET", what, password])
                        .expect("the server accepts a password");
                }
            }
        }
        let master = if !setup.tls {
            data.master().port()
        } else {
            tls_port
        };
        let sentinels = (0..SENTINELS)
            .map(|_| Sentinel::start(master, &setup))
            .collect();
        let this = Self {
            data,
            sentinels,
            setup,
            permit,
        };
        // By default sentinels publish every 2 s and query replicas every 10 s. Shorter periods
        // make the start faster.
        this.set_periods(["100", "200"]);
        let all = || (0..SENTINELS).all(|n| this.is_ready(n));
        eventually(ms(30_000), all);
        // A sentinel turns a former master into a replica once it has published four times.
        this.set_periods(if setup.down_after < STEADY {
            ["500", "1000"]
        } else {
            ["2000", "10000"]
        });
        this
    }

    /// Removes the time limit and the permit, as [`Server::long_lived`] does.
    pub fn long_lived(mut self) -> Self {
        self.data = self.data.long_lived();
        self.permit = None;
        self
    }

    /// Returns the URL with all sentinels and the required passwords.
    pub fn url(&self) -> String {
        self.url_of(MASTER, "")
    }

    /// Returns the URL for a master's name and a database, such as `/2`.
    pub fn url_of(&self, master: &str, db: &str) -> String {
        let password = self
            .setup
            .password
            .map(|password| format!(":{}@", encoded(password)));
        let query = self.setup.sentinel_password;
        let query = query.map(|password| format!("?sentinel_pass={}", encoded(password)));
        let hosts: Vec<String> = (0..SENTINELS)
            .map(|n| format!("127.0.0.1:{}", self.sentinels[n].port))
            .collect();
        format!(
            "redis+sentinel://{}{}/{master}{db}{}",
            password.unwrap_or_default(),
            hosts.join(","),
            query.unwrap_or_default()
        )
    }

    /// Returns the URL with the TLS ports of all sentinels.
    pub fn tls_url(&self) -> String {
        let sentinels = self.sentinels.iter();
        let hosts: Vec<String> = sentinels
            .map(|sentinel| format!("localhost:{}", sentinel.tls_port))
            .collect();
        format!("rediss+sentinel://{}/{MASTER}", hosts.join(","))
    }

    /// Returns the URL with the TLS ports of all sentinels, whose master has no TLS for the client,
    /// and the pairs of an address map that lead to the plain port of the master.
    pub fn url_of_plain_master(&self) -> (String, [(String, String); 1]) {
        let url = self.tls_url().replace("rediss", "redis") + "?sentinel_tls=yes";
        let master = self.first_master();
        let announced = master.option("--tls-port").expect("a server with TLS");
        let pair = (
            format!("127.0.0.1:{announced}"),
            format!("localhost:{}", master.port()),
        );
        (url, [pair])
    }

    /// Returns the data servers. The first was the master at the start.
    pub fn data(&self) -> &[Server] {
        self.data.servers()
    }

    /// Returns the server that was the master at the start.
    pub fn first_master(&self) -> &Server {
        self.data.master()
    }

    pub fn kill_first_master(&mut self) {
        self.data.kill_master();
    }

    /// Waits until a replica accepts writes, and returns it.
    #[track_caller]
    pub fn successor(&self) -> &Server {
        let mut successor = None;
        eventually(ms(60_000), || {
            successor = self.data()[1..].iter().find(|server| {
                self.ask_data(server, &["SET", "probe", "1"])
                    .is_ok_and(|answer: String| answer == "OK")
            });
            successor.is_some()
        });
        successor.expect("the loop above ends when there is one")
    }

    /// Sends a command to a data server, which may be about to close the connection.
    pub fn ask_data<T: redis::FromRedisValue>(
        &self,
        server: &Server,
        command: &[&str],
    ) -> redis::RedisResult<T> {
        ask(server.port(), self.setup.password, command)
    }

    /// Starts a manual failover of a healthy master.
    pub fn failover(&self) {
        // A sentinel refuses while its information about the replicas is old.
        eventually(ms(30_000), || {
            self.ask_sentinel::<String>(0, &["SENTINEL", "FAILOVER", MASTER])
                .is_ok()
        });
    }

    pub fn pause_sentinel(&self, n: usize) {
        self.sentinels[n].process.pause();
    }

    pub fn kill_sentinel(&mut self, n: usize) {
        self.sentinels[n].process.kill();
    }

    pub fn count(&self) -> usize {
        SENTINELS
    }

    pub fn ask_sentinel<T: redis::FromRedisValue>(
        &self,
        n: usize,
        command: &[&str],
    ) -> redis::RedisResult<T> {
        ask(
            self.sentinels[n].port,
            self.setup.sentinel_password,
            command,
        )
    }

    /// Sets how often sentinels publish and query `INFO`, in ms. Sentinels older than Redis 7
    /// refuse this and keep their defaults.
    fn set_periods(&self, [publish, info]: [&str; 2]) {
        for n in 0..SENTINELS {
            let words = [
                "SENTINEL",
                "DEBUG",
                "publish-period",
                publish,
                "info-period",
                info,
            ];
            let _: redis::RedisResult<()> = self.ask_sentinel(n, &words);
        }
    }

    fn is_ready(&self, n: usize) -> bool {
        let list = |what: &str| {
            let list = self.ask_sentinel(n, &["SENTINEL", what, MASTER]);
            list.unwrap_or_default()
        };
        let sentinels: Vec<Vec<String>> = list("SENTINELS");
        let replicas: Vec<Vec<String>> = list("REPLICAS");
        let is = |fields: &Vec<String>, field: &str, wanted: &str| {
            fields
                .chunks(2)
                .any(|pair| pair[0] == field && pair[1] == wanted)
        };
        sentinels.len() == SENTINELS - 1
            && sentinels
                .iter()
                .all(|sentinel| is(sentinel, "flags", "sentinel"))
            && replicas.len() == self.setup.replicas
            && replicas.iter().all(|replica| {
                is(replica, "flags", "slave") && is(replica, "master-link-status", "ok")
            })
    }
}

impl Sentinel {
    fn start(master: u16, setup: &Setup) -> Self {
        let directory = TempDir::create();
        let file = directory.join("sentinel.conf");
        // Another process may take the port before the sentinel binds it.
        for _ in 0..20 {
            let (port, tls_port) = (port::free(), port::free());
            let mut lines = configuration(port, master, setup);
            if setup.tls {
                lines += "tls-replication yes\n";
                for [name, value] in tls_options(tls_port, "server", "ca.pem") {
                    lines += &format!("{name} {value}\n");
                }
            }
            fs::write(&file, lines).expect("the configuration can be written");
            let log = File::create(directory.join("log")).expect("the log can be written");
            let arguments = [file.as_os_str(), "--sentinel".as_ref()];
            let mut process =
                SupervisedProcess::start(&binary(), arguments, Some(directory.path()), |command| {
                    command.current_dir(directory.path()).stdout(log);
                })
                .expect("/bin/sh can be started");
            let socket = format!("redis+unix://{}", directory.join("socket").display());
            let mut has_ended = false;
            eventually(ms(20_000), || {
                let ended = process.process().try_wait();
                has_ended = ended.expect("the sentinel is our child").is_some();
                let password = setup.sentinel_password;
                let query = password.map_or_else(String::new, |password| {
                    format!("?pass={}", encoded(password))
                });
                has_ended || answers(&format!("{socket}{query}"))
            });
            if !has_ended {
                return Self {
                    port,
                    tls_port,
                    process,
                    _directory: directory,
                };
            }
        }
        panic!("no sentinel would start")
    }
}

fn configuration(port: u16, master: u16, setup: &Setup) -> String {
    let mut lines = vec![
        format!("port {port}"),
        "bind 127.0.0.1".to_owned(),
        "unixsocket socket".to_owned(),
        format!("sentinel monitor {MASTER} 127.0.0.1 {master} 2"),
        format!(
            "sentinel down-after-milliseconds {MASTER} {}",
            setup.down_after.as_millis()
        ),
        format!("sentinel failover-timeout {MASTER} 6000"),
        format!("sentinel parallel-syncs {MASTER} 1"),
    ];
    if let Some(password) = setup.password {
        lines.push(format!("sentinel auth-pass {MASTER} {password}"));
    }
    if let Some(password) = setup.sentinel_password {
        lines.push(format!("requirepass {password}"));
    }
    lines.join("\n") + "\n"
}

pub(super) fn ask<T: redis::FromRedisValue>(
    port: u16,
    password: Option<&str>,
    command: &[&str],
) -> redis::RedisResult<T> {
    let password = password.map_or_else(String::new, |password| format!(":{}@", encoded(password)));
    let url = format!("redis://{password}127.0.0.1:{port}");
    let mut connection = connect(&url, ms(2_000))?;
    redis::cmd(command[0])
        .arg(&command[1..])
        .query(&mut connection)
}

/// Percent-encodes the `@` in a password, for a URL.
pub(super) fn encoded(password: &str) -> String {
    password.replace('@', "%40")
}
