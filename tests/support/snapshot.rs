//! A copy of a server's data, from which the server can be restarted.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

const FILE: &str = "dump.rdb";

pub struct Snapshot(Vec<u8>);

impl Snapshot {
    /// Reads the file that the server in this directory has just saved.
    pub fn take(directory: &Path) -> Self {
        Self(fs::read(directory.join(FILE)).expect("the server has saved its data"))
    }

    /// Writes the data to the file that a server in this directory loads at its start.
    pub fn put(&self, directory: &Path) {
        fs::write(directory.join(FILE), &self.0).expect("the server's directory exists");
    }

    pub fn remove(directory: &Path) {
        match fs::remove_file(directory.join(FILE)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                panic!("cannot remove the snapshot: {error}")
            }
            _ => {}
        }
    }
}
