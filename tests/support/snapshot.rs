//! What was in a server at some moment, to start it from later.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

const FILE: &str = "dump.rdb";

pub struct Snapshot(Vec<u8>);

impl Snapshot {
    /// Reads what the server in the directory has just saved.
    pub fn take(directory: &Path) -> Self {
        Self(fs::read(directory.join(FILE)).expect("the server has saved"))
    }

    /// Writes it where a server that starts in the directory loads it from.
    pub fn put(&self, directory: &Path) {
        fs::write(directory.join(FILE), &self.0).expect("the server's directory is there");
    }

    pub fn remove(directory: &Path) {
        match fs::remove_file(directory.join(FILE)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                panic!("the snapshot stays: {error}")
            }
            _ => {}
        }
    }
}
