//! How many replicas must have a lease before it counts.

use std::time::Duration;

use crate::error::Error;

/// `WAIT` gives up on the server's own clock, which ticks ten times a second; so much later than
/// asked may its answer come.
const LATE: Duration = Duration::from_millis(200);

/// Replicas that must acknowledge what a script wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replicas {
    pub(crate) wanted: usize,
    pub(crate) within: Duration,
}

impl Replicas {
    /// Errors for a wait that cannot be answered in time.
    pub(crate) fn check(&self, command_timeout: Duration) -> Result<(), Error> {
        let longest = command_timeout.saturating_sub(LATE);
        if self.within < Duration::from_millis(1) || self.within > longest {
            return Err(Error::Config(format!(
                "min_replicas must wait between 1 ms and {longest:?}, not {:?}: Redis answers up to \
                 {LATE:?} later than asked, and the command_timeout is {command_timeout:?}",
                self.within
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoke() {
        let replicas = Replicas {
            wanted: 2,
            within: Duration::from_millis(100),
        };
        assert!(replicas.check(Duration::from_secs(1)).is_ok());
        assert!(replicas.check(Duration::from_millis(250)).is_err());
    }
}
