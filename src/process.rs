//! The process that made a client: a fork copies the client, but not its threads.

use crate::error::Error;

/// A system call: a call of the public interface asks once, before it takes any lock.
fn own_id() -> u32 {
    #[cfg(test)]
    ASKED.with(|asked| asked.set(asked.get() + 1));
    std::process::id()
}

#[cfg(test)]
thread_local! {
    static ASKED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Returns how often this thread has asked for the id of its process.
#[cfg(all(test, feature = "testing"))]
pub(crate) fn times_asked() -> u32 {
    ASKED.get()
}

/// The id of the process that made something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn current() -> Self {
        Self(own_id())
    }

    /// Returns whether this is another process: a child that has a copy of what was made.
    ///
    /// The child must use nothing of it. Threads of the parent may have held any lock at the fork,
    /// and no thread of the child releases it.
    pub(crate) fn is_forked(self) -> bool {
        own_id() != self.0
    }

    /// Returns whether `other` was made in the same process.
    pub(crate) const fn is_that_of(self, other: Self) -> bool {
        self.0 == other.0
    }

    /// Returns [`Error::Forked`] in a child.
    pub(crate) fn check(self) -> Result<(), Error> {
        if self.is_forked() {
            Err(Error::Forked)
        } else {
            Ok(())
        }
    }
}
