//! The wall clock of a test's server, which the test can step while the server runs.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::tempdir::TempDir;

/// A library that is preloaded into the server (`clock.c`), and the file that steers it.
pub(super) struct Clock {
    library: PathBuf,
    shift: PathBuf,
    micros: i64,
}

impl Clock {
    /// Compiles the library with the compiler that Rust links with: `CC`, or `cc`.
    pub(super) fn new(directory: &TempDir) -> Self {
        let clock = Self {
            library: directory.join("clock.so"),
            shift: directory.join("clock"),
            micros: 0,
        };
        clock.write();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clock.c");
        let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
        let status = Command::new(compiler)
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&clock.library)
            .arg(source)
            .status()
            .expect("the C compiler can be started");
        assert!(status.success(), "clock.c does not compile");
        clock
    }

    /// Sets the environment of the server.
    pub(super) fn preload(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library);
        command.env("LEASEHOLD_CLOCK_SHIFT", &self.shift);
    }

    /// Moves the clock by this many seconds; back if negative.
    pub(super) fn step(&mut self, seconds: i64) {
        self.micros += seconds * 1_000_000;
        self.write();
    }

    /// Overwrites the file in place: the server maps it.
    fn write(&self) {
        let mut open = fs::OpenOptions::new();
        let file = open
            .create(true)
            .write(true)
            .truncate(false)
            .open(&self.shift);
        let mut file = file.expect("the file can be opened");
        std::io::Write::write_all(&mut file, &self.micros.to_ne_bytes())
            .expect("the file can be written");
    }
}
