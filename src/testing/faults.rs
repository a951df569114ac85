//! The faults of a server that a test has begun.

/// The faults that are in force.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// How many guards pause the server.
    pub(super) pauses: usize,
    /// How many guards cut it off.
    pub(super) cuts: usize,
    /// The error replies to scripts, with their numbers. The most recent one applies.
    refusals: Vec<(u64, String)>,
    next: u64,
    /// How many of the next scripts run without a reply.
    pub(super) replies_to_drop: u64,
}

impl Faults {
    /// Returns true while commands of clients do not arrive.
    pub(super) fn is_unreachable(&self) -> bool {
        self.pauses > 0 || self.cuts > 0
    }

    /// Returns the error with which scripts are refused, if they are.
    pub(super) fn refusal(&self) -> Option<&str> {
        self.refusals.last().map(|(_, error)| error.as_str())
    }

    /// Adds an error for scripts, and returns its number.
    pub(super) fn refuse(&mut self, error: String) -> u64 {
        self.next += 1;
        self.refusals.push((self.next, error));
        self.next
    }

    pub(super) fn end_refusal(&mut self, number: u64) {
        self.refusals.retain(|(other, _)| *other != number);
    }

    /// Returns true if the reply of a script that has just run is lost.
    pub(super) fn loses_reply(&mut self) -> bool {
        let is_lost = self.replies_to_drop > 0;
        self.replies_to_drop = self.replies_to_drop.saturating_sub(1);
        is_lost
    }
}
