//! A Redis server for an example to run against. Your program needs nothing of this.

use std::env;
use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::{self, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use redis::Commands;

pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// The name and the function of a child process.
pub(crate) type Role = (&'static str, fn() -> Outcome);

/// The environment variable with the id of this run, which its child processes inherit.
pub(crate) const RUN: &str = "LEASEHOLD_EXAMPLE_RUN";

/// An example that hangs fails after this time.
const LONGEST_RUN: Duration = Duration::from_secs(60);

/// Runs `story`. In a child process that `Child::spawn` of `child.rs` started, runs its role.
///
/// If `REDIS_URL` is unset, starts an installed `redis-server` or `valkey-server`, and stops it
/// afterwards. `story` and the roles find the server in `REDIS_URL` and a key prefix in
/// `LOCK_KEY_PREFIX`, which `Client::from_env` reads.
pub(crate) fn run(story: fn() -> Outcome, roles: &[Role]) -> ExitCode {
    thread::spawn(|| {
        thread::sleep(LONGEST_RUN);
        eprintln!("error: the example is still running after {LONGEST_RUN:?}");
        process::abort();
    });
    let outcome = match env::args().nth(1) {
        Some(wanted) => match roles.iter().find(|(name, _)| *name == wanted) {
            Some((_, role)) => role(),
            None => Err("this example takes no arguments".into()),
        },
        None if env::var_os(RUN).is_some() => story(),
        None => run_in_child(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A private Redis, which ends when it is dropped or when this process dies.
struct Server {
    shell: process::Child,
    directory: PathBuf,
}

/// Runs a server until the input of the shell ends. The example closes it when it drops the
/// `Server`, and the system closes it when the example dies. The shell ignores Ctrl-C, so that it
/// still deletes the directory.
const RUN_SERVER: &str = r#"
trap '' INT
directory=$1; shift
"$@" >"$directory/log" 2>&1 &
read -r _
kill $!
wait
rm -r "$directory"
"#;

impl Server {
    fn start(run: &str) -> Outcome<Self> {
        let program = server_program().ok_or(
            "found neither redis-server nor valkey-server: install one, or set REDIS_URL to the \
             URL of a running server",
        )?;
        let directory = env::temp_dir().join(run);
        fs::create_dir(&directory)?;
        let shell = Command::new("sh")
            .args(["-c", RUN_SERVER, "sh"])
            .args([&directory, &program])
            // A unix socket in the directory: no port need be free.
            .args(["--port", "0", "--unixsocket"])
            .arg(directory.join("socket"))
            .args(["--save", "", "--appendonly", "no"])
            .stdin(Stdio::piped())
            .spawn()?;
        let server = Self { shell, directory };
        let deadline = Instant::now() + Duration::from_secs(10);
        while !server.replies() {
            if Instant::now() > deadline {
                let log = fs::read_to_string(server.directory.join("log"))?;
                return Err(format!("{} does not reply:\n{log}", program.display()).into());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    fn url(&self) -> String {
        format!("redis+unix://{}", self.directory.join("socket").display())
    }

    fn replies(&self) -> bool {
        redis::Client::open(self.url()).is_ok_and(|client| client.get_connection().is_ok())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // This closes the input of the shell.
        let _ = self.shell.wait();
    }
}

/// Returns the server's program: that of `REDIS_SERVER_BIN`, else one in the `PATH`.
fn server_program() -> Option<PathBuf> {
    if let Some(named) = env::var_os("REDIS_SERVER_BIN").filter(|named| !named.is_empty()) {
        return Some(named.into());
    }
    let path = env::var_os("PATH")?;
    ["redis-server", "valkey-server"]
        .into_iter()
        .flat_map(|name| env::split_paths(&path).map(move |directory| directory.join(name)))
        .find(|program| program.is_file())
}

/// Runs the story in a child process, because a process cannot safely change its own environment.
fn run_in_child() -> Outcome {
    let run = format!("example-{:08x}", rand::random::<u32>());
    let own_url = env::var("REDIS_URL").ok().filter(|url| !url.is_empty());
    let (url, _server) = match &own_url {
        Some(url) => (url.clone(), None),
        None => {
            let server = Server::start(&run)?;
            (server.url(), Some(server))
        }
    };
    let status = Command::new(env::current_exe()?)
        .env("REDIS_URL", &url)
        .env("LOCK_KEY_PREFIX", format!("{run}:lock:"))
        .env(RUN, &run)
        .status()?;
    let deleted = match own_url {
        Some(url) => delete_keys(&url, &run),
        None => Ok(()),
    };
    if !status.success() {
        return Err(format!("the example failed ({status})").into());
    }
    deleted
}

/// Deletes the example's keys from a Redis that the example did not start.
fn delete_keys(url: &str, run: &str) -> Outcome {
    let mut connection = redis::Client::open(url)?.get_connection()?;
    let keys: Vec<String> = connection
        .scan_match(format!("*{run}:*"))?
        .collect::<redis::RedisResult<_>>()?;
    if !keys.is_empty() {
        let () = connection.unlink(keys)?;
    }
    Ok(())
}
