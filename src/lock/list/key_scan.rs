//! The scan over the keys of one server, page by page.

use std::time::Duration;

use crate::clock::Instant;
use crate::name::shown;
use crate::redis::{Fault, Server};

/// How many keys a server examines for a page of a scan: it serves no other client meanwhile.
const KEYS_PER_PAGE: usize = 1_000;

/// How long the server may take for all pages. It sends a million keys in a few seconds.
const LONGEST_SCAN: Duration = Duration::from_secs(600);

/// The progress of a scan over the keys of one server.
pub(super) struct KeyScan {
    cursor: Vec<u8>,
    /// An earlier cursor. If it comes again, the scan would not end: see
    /// <https://en.wikipedia.org/wiki/Cycle_detection#Brent's_algorithm>.
    earlier: Vec<u8>,
    pages: u64,
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
            earlier: Vec::new(),
            pages: 0,
            count: KEYS_PER_PAGE,
            latest: Duration::ZERO,
            took: Duration::ZERO,
        }
    }

    /// Returns the keys of the next page. Asks for fewer keys if a page is too large.
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
        self.pages += 1;
        self.cursor = next;
        self.latest = asked.until(Instant::now());
        self.took += self.latest;
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

    /// Returns why the scan does not end, if it does not.
    pub(super) fn check(&mut self) -> Result<(), String> {
        let Self { pages, .. } = self;
        if self.cursor == self.earlier {
            let cursor = shown(&self.cursor);
            return Err(format!(
                "SCAN does not end: after {pages} pages, cursor {cursor} came again"
            ));
        }
        if self.took >= LONGEST_SCAN {
            let longest = LONGEST_SCAN.as_secs() / 60;
            return Err(format!(
                "SCAN did not end in {longest} min of replies and {pages} pages"
            ));
        }
        if pages.is_power_of_two() {
            self.earlier.clone_from(&self.cursor);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_ends_when_a_cursor_comes_again_or_after_its_longest_time() {
        let scan_of = |cursors: &[u64]| {
            let mut scan = KeyScan::new();
            let mut checked = cursors.iter().map(|cursor| {
                scan.pages += 1;
                scan.cursor = cursor.to_string().into_bytes();
                scan.check()
            });
            checked.position(|checked| checked.is_err())
        };
        let long: Vec<u64> = (1..100_000).collect();
        assert_eq!(scan_of(&long), None);
        assert_eq!(scan_of(&[7, 7]), Some(1));
        let before = [1, 2, 3, 4, 5].into_iter();
        let again: Vec<u64> = before.chain([6, 7, 8].repeat(10)).collect();
        assert!(scan_of(&again).is_some_and(|pages| pages < 12));
        let mut scan = KeyScan::new();
        scan.cursor = b"7".to_vec();
        scan.took = Duration::from_secs(599);
        assert_eq!(scan.check(), Ok(()));
        scan.took = Duration::from_secs(600);
        let why = scan.check().unwrap_err();
        assert_eq!(why, "SCAN did not end in 10 min of replies and 0 pages");
    }

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
