//! The wall clock of a process that a test starts: it runs at another rate, or the test can step it
//! while the process runs.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::tempdir::TempDir;

/// A library that is preloaded into the process (`clock.c`), and the file that steers it.
pub struct Clock {
    library: String,
    shift: String,
    micros: i64,
    rate: String,
    _directory: TempDir,
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock {
    /// Compiles the library with the compiler that Rust links with: `CC`, or `cc`.
    pub fn new() -> Self {
        Self::too_fast_by(0)
    }

    /// Returns a clock that is too fast by `rate` millionths.
    pub(super) fn too_fast_by(rate: i64) -> Self {
        let directory = TempDir::create();
        let file = |name| {
            directory
                .join(name)
                .to_str()
                .expect("it is text")
                .to_owned()
        };
        let clock = Self {
            library: file("clock.so"),
            shift: file("clock"),
            micros: 0,
            rate: rate.to_string(),
            _directory: directory,
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

    /// Returns the environment of the process.
    pub fn variables(&self) -> Vec<(&str, &str)> {
        vec![
            ("LD_PRELOAD", &self.library),
            ("LEASEHOLD_CLOCK_SHIFT", &self.shift),
            ("LEASEHOLD_CLOCK_RATE", &self.rate),
        ]
    }

    /// Moves the clock by this many seconds; back if negative.
    pub fn step(&mut self, seconds: i64) {
        self.micros += seconds * 1_000_000;
        self.write();
    }

    /// Overwrites the file in place: the process maps it.
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
