//! The number of replicas that must acknowledge a lease, and the time that they have for it.

use std::time::Duration;

use crate::error::Error;

/// How late the reply to `WAIT` may come: the server checks the timeout of `WAIT` only ten times a
/// second.
const LATE: Duration = Duration::from_millis(200);

/// How many replicas must acknowledge the writes of a script, and in what time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replicas {
    pub(crate) wanted: usize,
    pub(crate) within: Duration,
}

impl Replicas {
    /// Returns an error if the time is less than 1 ms, or if the reply could come after the command
    /// timeout.
    pub(crate) fn check(&self, command_timeout: Duration) -> Result<(), Error> {
        let longest = command_timeout.saturating_sub(LATE);
        if self.within < Duration::from_millis(1) || self.within > longest {
            return Err(Error::Config(format!(
                "min_replicas must wait at least 1 ms, and at most {LATE:?} less than the \
                 command_timeout of {command_timeout:?}, not {:?}: Redis may answer {LATE:?} late",
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
    fn a_wait_leaves_time_for_a_late_reply() {
        let replicas = Replicas {
            wanted: 2,
            within: Duration::from_millis(100),
        };
        assert!(replicas.check(Duration::from_secs(1)).is_ok());
        assert!(replicas.check(Duration::from_millis(250)).is_err());
    }
}
