//! Free ports below the ephemeral range, which outgoing connections of parallel tests never use.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// The first port tried: above the registered ports that a machine is likely to use.
const FIRST: u16 = 10_240;

/// Binds a free port.
///
/// Each call continues after the previous call's port, and each process starts at a different
/// port, so that a port is not reused soon after it was closed.
pub(crate) fn bind() -> TcpListener {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let span = u32::from(ephemeral_start() - FIRST);
    let start = process::id().wrapping_mul(97);
    for _ in 0..span {
        let offset = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % span;
        let port = FIRST + u16::try_from(offset).expect("every offset in the span is a valid port");
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return listener;
        }
    }
    panic!("every port from {FIRST} on is taken");
}

/// Returns a port that was free a moment ago, for a program that binds it itself.
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
