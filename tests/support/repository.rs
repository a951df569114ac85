//! Files of the repository.

use std::path::{Path, PathBuf};

/// Returns the full path of a file or folder, given its path from the root of the repository.
pub fn in_repository(path: &str) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = package.ancestors().nth(2);
    // This package is `tests/support`.
    root.expect("the package is in the repository").join(path)
}
