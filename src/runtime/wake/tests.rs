//! The pipe of a wake-up.

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

#[cfg(threads)]
mod model;

#[test]
fn the_pipe_can_be_read_from_a_wake_up_until_it_is_drained() {
    let wake = Wake::new().unwrap();
    let is_readable = || {
        let mut fds = [PollFd::new(&wake.pipe.reader, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
    };
    assert!(!is_readable());
    wake.drain();
    for _ in 0..2 {
        wake.wake();
        wake.wake();
        assert!(is_readable());
        wake.drain();
        assert!(!is_readable());
    }
}
