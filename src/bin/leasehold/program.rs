//! The files of programs: the one that this process runs, and those that `PATH` names.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{self, Path, PathBuf};

use rustix::io::Errno;

/// The shell that runs a script without `#!`.
const SHELL: &str = "/bin/sh";

/// Returns a path of this program.
pub(crate) fn this_program() -> io::Result<PathBuf> {
    // This path stays valid if the file is replaced.
    let linked = Path::new("/proc/self/exe");
    if linked.exists() {
        return Ok(linked.into());
    }
    if let Ok(path) = env::current_exe() {
        return Ok(path);
    }
    // Without `/proc`, Linux does not tell. Most callers of `exec` pass the name.
    let name = env::args_os().next();
    let path = name.and_then(|name| find(&name));
    let path = path.ok_or_else(|| {
        io::Error::other("it is this program, whose file is not found: mount /proc")
    })?;
    path::absolute(path)
}

/// Returns the file that `exec` runs for this name: the name itself if it has a slash, or else the
/// first executable file in the directories of `PATH`.
pub(crate) fn find(name: &OsStr) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        let file = path.metadata();
        file.is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    if name.as_encoded_bytes().contains(&b'/') {
        return Some(name.into()).filter(is_program);
    }
    let path = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let files = env::split_paths(&path).map(|directory| {
        if directory.as_os_str().is_empty() {
            Path::new(".").join(name)
        } else {
            directory.join(name)
        }
    });
    files.into_iter().find(is_program)
}

/// Runs `spawn` for the program. If that is a file of an unknown format, such as a script without
/// `#!`, runs `spawn` for a shell and the file, as `execvp` does.
pub(crate) fn run_as_a_script_too<T>(
    program: &OsStr,
    mut spawn: impl FnMut(&OsStr, Option<PathBuf>) -> io::Result<T>,
) -> io::Result<T> {
    let error = match spawn(program, None) {
        Err(error) if error.raw_os_error() == Some(Errno::NOEXEC.raw_os_error()) => error,
        spawned => return spawned,
    };
    match find(program) {
        Some(script) => spawn(OsStr::new(SHELL), Some(script)),
        None => Err(error),
    }
}
