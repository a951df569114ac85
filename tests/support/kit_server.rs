//! Serves the test kit in the place of `redis-server`, for test programs that start servers from
//! `REDIS_SERVER_BIN`.
//!
//! It takes the options that `support::Server` passes. An option for something that the kit lacks,
//! such as `--maxmemory`, is an error, so a test that needs it fails at its start.

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;

use leasehold::testing::Server;

/// Options that change nothing for a server that keeps its data in memory.
const WITHOUT_EFFECT: [&str; 7] = [
    "--appendonly",
    "--bind",
    "--daemonize",
    "--dir",
    "--logfile",
    "--repl-diskless-sync-delay",
    "--save",
];

fn main() -> ExitCode {
    let mut port = 6379;
    let mut unix_socket = None;
    let mut arguments = env::args().skip(1);
    while let Some(option) = arguments.next() {
        if option == "--version" {
            println!("Redis server v=7.0.15 sha=0:0 malloc=kit bits=64 build=0");
            return ExitCode::SUCCESS;
        }
        let value = arguments.next();
        match (option.as_str(), value) {
            ("--port", Some(value)) if value.parse::<u16>().is_ok() => {
                port = value.parse().unwrap_or(port);
            }
            ("--unixsocket", Some(value)) => unix_socket = Some(PathBuf::from(value)),
            (option, Some(_)) if WITHOUT_EFFECT.contains(&option) => {}
            // The words with which Redis refuses an option, and which tests look for.
            (option, _) => {
                eprintln!("Bad directive or wrong number of arguments: {option} (the test kit)");
                return ExitCode::FAILURE;
            }
        }
    }
    match Server::listen(port, unix_socket.as_deref()) {
        Ok(_server) => loop {
            thread::park();
        },
        Err(error) => {
            eprintln!("the test kit cannot listen on port {port}: {error}");
            ExitCode::FAILURE
        }
    }
}
