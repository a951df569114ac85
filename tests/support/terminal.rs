//! A pseudo-terminal, and a session of processes that has it as its controlling terminal.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use crossbeam_channel::{Receiver, RecvTimeoutError, unbounded};
use rustix::process::{ioctl_tiocsctty, setsid};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT};
use signal_hook::flag;

use super::child::{ROLE, parameter};
use super::time::ms;

/// The role of the process that becomes the first of the session.
pub(crate) const SESSION: &str = "session";

const TERMINAL: &str = "LEASEHOLD_TERMINAL";
const COMMAND: &str = "LEASEHOLD_COMMAND";

/// Separates the words of [`COMMAND`].
const SEPARATOR: char = '\u{1f}';

/// A terminal, seen from the side of the user: what processes print is read, and keys are typed.
///
/// When it is dropped, or this process dies, the kernel sends HUP to the session.
pub struct Terminal {
    user_side: File,
    session: Child,
    printed: Receiver<Vec<u8>>,
    shown: String,
    /// How much of `shown` the test has waited for.
    seen: usize,
}

impl Terminal {
    /// Starts a session whose first process runs `command`, with these variables.
    pub fn start(command: &[&str], variables: &[(&str, &str)]) -> Self {
        let user_side = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a free terminal");
        grantpt(&user_side).expect("the terminal is ours");
        unlockpt(&user_side).expect("the terminal is ours");
        let path = ptsname(&user_side, Vec::new()).expect("the terminal has a name");
        let size = Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let user_side = File::from(user_side);
        let session = Command::new(env::current_exe().expect("the test runs from a file"))
            .env(ROLE, SESSION)
            .env(TERMINAL, std::ffi::OsStr::from_bytes(path.as_bytes()))
            .env(COMMAND, command.join(&SEPARATOR.to_string()))
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("the test's own program can be started");
        tcsetwinsize(&user_side, size).expect("a terminal has a size");
        let (tell, printed) = unbounded();
        let mut output = user_side.try_clone().expect("a file descriptor");
        thread::spawn(move || {
            let mut buffer = [0; 1024];
            // Fails when no process has the terminal open.
            while let Ok(read @ 1..) = output.read(&mut buffer) {
                if tell.send(buffer[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            user_side,
            session,
            printed,
            shown: String::new(),
            seen: 0,
        }
    }

    /// Types these keys.
    pub fn type_keys(&mut self, keys: &str) {
        let typed = self.user_side.write_all(keys.as_bytes());
        typed.expect("the terminal is open");
    }

    /// Waits until the terminal has shown this text after the last one that was waited for; fails
    /// the test after 60 s. Returns what it has shown before the text.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) -> String {
        let deadline = Instant::now() + ms(60_000);
        loop {
            let unseen = &self.shown[self.seen..];
            if let Some(at) = unseen.find(text) {
                let before = unseen[..at].to_owned();
                self.seen += at + text.len();
                return before;
            }
            match self.printed.recv_deadline(deadline) {
                Ok(bytes) => self.shown += &String::from_utf8_lossy(&bytes),
                Err(_) => panic!("the terminal does not show {text:?}: {:?}", self.shown),
            }
        }
    }

    /// Returns the process id of the session's first process.
    pub fn id(&self) -> u32 {
        self.session.id()
    }

    /// Waits until the session's first process has ended, and no other has the terminal open;
    /// returns its exit status and all that the terminal has shown.
    pub fn wait(mut self) -> (ExitStatus, String) {
        let status = self.session.wait().expect("the session can be waited for");
        loop {
            match self.printed.recv_timeout(ms(60_000)) {
                Ok(bytes) => self.shown += &String::from_utf8_lossy(&bytes),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    panic!("a process still has the terminal open: {:?}", self.shown)
                }
            }
        }
        (status, self.shown.clone())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The kernel then sends HUP to the processes in the terminal's foreground.
        let _ = self.session.kill();
        let _ = self.session.wait();
    }
}

/// Makes the terminal the controlling one of a new session, and becomes the command.
pub(crate) fn session() {
    setsid().expect("this process leads no group");
    let path = parameter(TERMINAL);
    let open = OpenOptions::new()
        .read(true)
        .write(true)
        .open(Path::new(&path));
    let terminal = open.expect("the test has the other side open");
    // On Linux, opening it suffices.
    ioctl_tiocsctty(&terminal).expect("no other session has the terminal");
    // Otherwise a key such as Ctrl-C discards what the processes print at that moment.
    let mut settings = tcgetattr(&terminal).expect("a terminal has settings");
    settings.local_modes |= LocalModes::NOFLSH;
    tcsetattr(&terminal, OptionalActions::Now, &settings).expect("valid settings");
    let copy = || terminal.try_clone().expect("a file descriptor");
    let words = parameter(COMMAND);
    let mut words = words.split(SEPARATOR);
    let mut command = Command::new(words.next().expect("a command"));
    command
        .args(words)
        .stdin(copy())
        .stdout(copy())
        .stderr(copy());
    for name in [ROLE, TERMINAL, COMMAND] {
        command.env_remove(name);
    }
    // If a shell runs the tests in the background, they ignore these signals, and the command would
    // inherit that. A signal with a handler has its default action again after `exec`.
    for signal in [SIGHUP, SIGINT, SIGQUIT] {
        flag::register(signal, Arc::default()).expect("the signal can be caught");
    }
    panic!("cannot run the command: {}", command.exec());
}
