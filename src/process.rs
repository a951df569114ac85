//! The process that made a client: a fork copies the client, but not its threads.

use crate::error::Error;

/// The id of the process that made something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn current() -> Self {
        Self(std::process::id())
    }

    /// Returns whether this is another process: a child that has a copy of what was made.
    ///
    /// The child must use nothing of it. Threads of the parent may have held any lock at the fork,
    /// and no thread of the child releases it.
    pub(crate) fn is_forked(self) -> bool {
        std::process::id() != self.0
    }

    /// Returns [`Error::Forked`] in a child.
    pub(crate) fn check(self) -> Result<(), Error> {
        match self.is_forked() {
            true => Err(Error::Forked),
            false => Ok(()),
        }
    }
}
