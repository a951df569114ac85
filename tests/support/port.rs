//! Free ports below the ephemeral range, where no outgoing connection of a parallel test can sit.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where the search begins: above the registered ports that a machine is likely to use.
const FIRST: u16 = 10_240;

/// Binds a port that nobody else has. Each call goes on behind the last one's port, each process from a place of its
/// own, so that a port is not asked for again soon after it was given up.
pub(crate) fn bind() -> TcpListener {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let span = u32::from(ephemeral_start() - FIRST);
    let start = process::id().wrapping_mul(97);
    for _ in 0..span {
        let offset = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % span;
        let port = FIRST + u16::try_from(offset).expect("the span is that of ports");
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return listener;
        }
    }
    panic!("every port from {FIRST} on is taken");
}

/// A port that was free just now, for a program that binds it itself.
pub fn free() -> u16 {
    number(&bind())
}

pub(crate) fn number(listener: &TcpListener) -> u16 {
    listener.local_addr().expect("the listener is bound").port()
}

fn ephemeral_start() -> u16 {
    fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .filter(|low| *low > FIRST + 1_000)
        .unwrap_or(32_768)
}
