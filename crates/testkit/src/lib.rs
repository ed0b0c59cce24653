//! Helpers that the tests of several crates share: waits that have a deadline and a message, tools of the machine and skips where they are
//! absent, servers as processes, the load of a workload on real nodes (feature `load`), and a cluster of them in one process
//! (feature `cluster`). For tests and programs that test only.

#[cfg(feature = "cluster")]
pub mod cluster;
#[cfg(feature = "load")]
pub mod load;
pub mod resp;
pub mod servers;
pub mod tools;
mod wait;

use std::net::TcpListener;

pub use wait::{DEADLINE, block_on, wait_until, wait_until_async};

/// A port of the loopback device that nothing listened on a moment ago.
pub fn free_port() -> u16 {
    free_ports(1)[0]
}

/// Several such ports, all different.
pub fn free_ports(count: usize) -> Vec<u16> {
    let bind = |_| TcpListener::bind("127.0.0.1:0").expect("a free port");
    let held: Vec<TcpListener> = (0..count).map(bind).collect();
    let port = |socket: &TcpListener| socket.local_addr().expect("an address").port();
    held.iter().map(port).collect()
}
