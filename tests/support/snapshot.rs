//! A copy of a server's data, from which the server can be restarted.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

const FILE: &str = "dump.rdb";

/// The append-only file of Redis 6.2, and the directory of that of later versions.
const APPENDED: [&str; 2] = ["appendonly.aof", "appendonlydir"];

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

    /// Removes whatever a server in this directory would load at its start.
    pub fn remove(directory: &Path) {
        let [file, files] = APPENDED.map(|appended| directory.join(appended));
        let removed = [
            fs::remove_file(directory.join(FILE)),
            fs::remove_file(file),
            fs::remove_dir_all(files),
        ];
        for error in removed.into_iter().filter_map(Result::err) {
            let is_absent = error.kind() == ErrorKind::NotFound;
            assert!(is_absent, "cannot remove the server's data: {error}");
        }
    }
}
