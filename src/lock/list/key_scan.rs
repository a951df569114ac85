//! The scan over the keys of one server, page by page.

use std::time::Duration;

use crate::clock::Instant;
use crate::name::shown;
use crate::redis::{Fault, Server};

/// How many keys a server examines for a page of a scan: it serves no other client meanwhile.
const KEYS_PER_PAGE: usize = 1_000;

/// How long the scan of one server may take. A server sends a million keys in a few seconds.
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
    began: Instant,
}

impl KeyScan {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            cursor: b"0".to_vec(),
            earlier: Vec::new(),
            pages: 0,
            count: KEYS_PER_PAGE,
            began: now,
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
        Ok(page)
    }

    pub(super) fn is_over(&self) -> bool {
        self.cursor == b"0"
    }

    /// Returns why the scan does not end, if it does not.
    pub(super) fn check(&mut self, now: Instant) -> Result<(), String> {
        let Self { pages, .. } = self;
        if self.cursor == self.earlier {
            let cursor = shown(&self.cursor);
            return Err(format!(
                "SCAN does not end: after {pages} pages, cursor {cursor} came again"
            ));
        }
        if self.began.until(now) >= LONGEST_SCAN {
            let longest = LONGEST_SCAN.as_secs() / 60;
            return Err(format!(
                "SCAN did not end in {longest} min and {pages} pages"
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
        let at = |seconds| Instant::START.after(Duration::from_secs(seconds));
        let scan_of = |cursors: &[u64]| {
            let mut scan = KeyScan::new(at(0));
            let mut checked = cursors.iter().map(|cursor| {
                scan.pages += 1;
                scan.cursor = cursor.to_string().into_bytes();
                scan.check(at(1))
            });
            checked.position(|checked| checked.is_err())
        };
        let long: Vec<u64> = (1..100_000).collect();
        assert_eq!(scan_of(&long), None);
        assert_eq!(scan_of(&[7, 7]), Some(1));
        let before = [1, 2, 3, 4, 5].into_iter();
        let again: Vec<u64> = before.chain([6, 7, 8].repeat(10)).collect();
        assert!(scan_of(&again).is_some_and(|pages| pages < 12));
        let mut scan = KeyScan::new(at(0));
        scan.cursor = b"7".to_vec();
        assert_eq!(scan.check(at(599)), Ok(()));
        let why = scan.check(at(600)).unwrap_err();
        assert_eq!(why, "SCAN did not end in 10 min and 0 pages");
    }
}
