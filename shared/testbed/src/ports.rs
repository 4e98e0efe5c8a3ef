//! Free TCP ports on loopback.
//!
//! Ports come from below the range the kernel uses for outgoing connections. Inside that range a client that keeps
//! dialling a killed server now and then gets the server's own port as its source, connects to itself, and the server
//! can never bind again.

use std::collections::HashSet;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Mutex;

/// Below this live well-known services.
const LOWEST: u16 = 15_000;
const TRIES: usize = 200;

/// Ports this process gave out, so that two servers started at the same time never get the same one.
static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// A port nobody listens on now; another process may still be quicker, so starters retry with a new one.
pub(crate) fn free() -> std::io::Result<u16> {
    let mut given = GIVEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let given = given.get_or_insert_with(HashSet::new);
    let end = outgoing_range_start();
    for _ in 0..TRIES {
        let port = match end {
            Some(end) => rand::random_range(LOWEST..end),
            None => TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port(),
        };
        if !given.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            given.insert(port);
            return Ok(port);
        }
    }
    Err(std::io::Error::new(std::io::ErrorKind::AddrNotAvailable, "no free port on loopback"))
}

/// Whether a server's log says that somebody else has its port.
pub(crate) fn was_taken(log_tail: &str) -> bool {
    let log = log_tail.to_ascii_lowercase();
    log.contains("address already in use") || log.contains("addrinuse")
}

/// First port of the kernel's range for outgoing connections, if there is room below it.
fn outgoing_range_start() -> Option<u16> {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let start = range.split_whitespace().next()?.parse().ok()?;
    (start > LOWEST + 5_000).then_some(start)
}
