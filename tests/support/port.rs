//! Free ports for test servers, below the ephemeral range: the system takes the ports of outgoing
//! connections from that range, so no connection of a parallel test occupies one of these.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// The lowest port tried. Most services of a machine listen on lower ones.
const FIRST: u16 = 10_240;

/// Binds a free port.
///
/// No port is bound again soon after it was closed: each call continues after the port of the
/// previous call, and each process starts at another port.
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
    panic!("no port from {FIRST} to {} is free", ephemeral_start() - 1);
}

/// Returns a port that was free a moment ago, for a program that binds it itself.
pub fn free() -> u16 {
    number(&bind())
}

pub(crate) fn number(listener: &TcpListener) -> u16 {
    listener.local_addr().expect("the listener is bound").port()
}

/// Returns the first port of the ephemeral range.
///
/// Falls back to the default of Linux if the range is unknown, or if it begins at most 1000 ports
/// above [`FIRST`].
fn ephemeral_start() -> u16 {
    fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .filter(|low| *low > FIRST + 1_000)
        .unwrap_or(32_768)
}
