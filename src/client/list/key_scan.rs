//! The scan over the keys of one server, page by page.

use std::time::Duration;

use crate::cause::Rounded;
use crate::clock::Instant;
use crate::error::Cause;
use crate::name::shown;
use crate::redis::{Fault, Server};

/// How many keys a server examines for a page of a scan: it serves no other client meanwhile.
const KEYS_PER_PAGE: usize = 1_000;

/// How long the server may take for all pages. It sends a million keys in a few seconds.
const LONGEST_SCAN: Duration = Duration::from_secs(600);

/// The progress of a scan over the keys of one server.
pub(super) struct KeyScan {
    cursor: Vec<u8>,
    /// How many keys the server examines for the next page.
    count: usize,
    /// How long the server took for the latest page, and for all of them.
    latest: Duration,
    took: Duration,
}

impl KeyScan {
    pub(super) fn new() -> Self {
        Self {
            cursor: b"0".to_vec(),
            count: KEYS_PER_PAGE,
            latest: Duration::ZERO,
            took: Duration::ZERO,
        }
    }

    /// Returns the keys of the next page. Asks for fewer keys if a page is too large.
    ///
    /// Fails if the scan does not end: a cursor comes twice in a row, or the pages take too long.
    pub(super) fn page(
        &mut self,
        server: &Server,
        kind: &[u8],
        pattern: &[u8],
        until: Instant,
    ) -> Result<Vec<Vec<u8>>, Fault> {
        let asked = Instant::now();
        let (next, page) = loop {
            match server.scan(&self.cursor, kind, pattern, self.count, until) {
                Err(Fault::Unknown(cause)) if cause.is_too_large() && self.count > 1 => {
                    self.count = self.count.div_ceil(10);
                }
                answer => break answer?,
            }
        };
        self.count = (self.count * 2).min(KEYS_PER_PAGE);
        self.latest = asked.until(Instant::now());
        self.took += self.latest;
        let is_stuck = next == self.cursor || self.took >= LONGEST_SCAN;
        if is_stuck && next != b"0" {
            return Err(Fault::Unknown(Cause::text(format!(
                "SCAN does not end at {}: it is at cursor {} after {} of replies",
                server.label(),
                shown(&next),
                Rounded(self.took)
            ))));
        }
        self.cursor = next;
        Ok(page)
    }

    /// Returns how long the server took for the latest page.
    pub(super) fn latest(&self) -> Duration {
        self.latest
    }

    /// Returns how much of the table of keys is scanned.
    ///
    /// The cursor is a number whose bits are in reverse order: see
    /// <https://github.com/redis/redis/blob/7.0.15/src/dict.c#L846>. A node of a cluster adds the
    /// slot, so this is about a server that has all slots.
    pub(super) fn progress(&self) -> f64 {
        let cursor = str::from_utf8(&self.cursor).unwrap_or_default();
        match cursor.parse::<u64>() {
            Ok(cursor) if !self.is_over() => cursor.reverse_bits() as f64 / 2_f64.powi(64),
            _ => 1.0,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.cursor == b"0"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read_from_the_cursor() {
        // The cursors of a scan over a table of eight places, in their order.
        let cursors = ["4", "2", "6", "1", "5", "3", "7", "0"];
        let progress = cursors.map(|cursor| {
            let mut scan = KeyScan::new();
            scan.cursor = cursor.into();
            scan.progress()
        });
        assert_eq!(
            progress,
            [1, 2, 3, 4, 5, 6, 7, 8].map(|n| f64::from(n) / 8.0)
        );
    }
}
