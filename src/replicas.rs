//! The number of replicas that must acknowledge a lease before it counts.

use std::time::Duration;

use crate::error::Error;

/// How much later than requested the reply to `WAIT` may come: the server checks its timeout with a
/// timer that runs ten times a second.
const LATE: Duration = Duration::from_millis(200);

/// How many replicas must acknowledge the writes of a script, and in what time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replicas {
    pub(crate) wanted: usize,
    pub(crate) within: Duration,
}

impl Replicas {
    /// Returns an error if the reply could come after the command timeout.
    pub(crate) fn check(&self, command_timeout: Duration) -> Result<(), Error> {
        let longest = command_timeout.saturating_sub(LATE);
        if self.within < Duration::from_millis(1) || self.within > longest {
            return Err(Error::Config(format!(
                "min_replicas must wait between 1 ms and {longest:?}, not {:?}: Redis may answer \
                 {LATE:?} late, and the command_timeout is {command_timeout:?}",
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
