//! Ports for servers that a test starts, so that nothing else takes one between the choice and the start, nor while the server is down.
//!
//! They lie below those that the system gives to outgoing connections, and each process that tests holds a block of them by a lock
//! on a file: two never share one. `staves demo` takes its own from 10,000 on.

use std::fs::{self, File};
use std::net::TcpListener;
use std::sync::Mutex;

/// The first port of the first block, ports of a block, and blocks: 20,000 to 31,999.
const FIRST: u16 = 20_000;
const PORTS: u16 = 200;
const BLOCKS: u16 = 60;

/// A port of the loopback device that nothing listens on, and that no other test is given.
pub fn free_port() -> u16 {
    free_ports(1)[0]
}

/// Several such ports, all different.
pub fn free_ports(count: usize) -> Vec<u16> {
    // Blocks in use, with the lock of each, and the next port of the last one.
    static HELD: Mutex<(Vec<File>, std::ops::Range<u16>)> = Mutex::new((Vec::new(), 0..0));
    let mut held = HELD.lock().expect("no test ended here");
    let mut ports = Vec::with_capacity(count);
    while ports.len() < count {
        let Some(port) = held.1.next() else {
            let (lock, block) = free_block();
            held.0.push(lock);
            held.1 = block;
            continue;
        };
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            ports.push(port);
        }
    }
    ports
}

/// A block that no process holds, and the lock that holds it until this process ends.
fn free_block() -> (File, std::ops::Range<u16>) {
    let folder = std::env::temp_dir().join("staves-test-ports");
    fs::create_dir_all(&folder).expect("a folder for locks");
    let start = (std::process::id() % u32::from(BLOCKS)) as u16;
    for step in 0..BLOCKS {
        let block = (start + step) % BLOCKS;
        let lock = File::create(folder.join(block.to_string())).expect("a file to lock");
        if lock.try_lock().is_ok() {
            let first = FIRST + block * PORTS;
            return (lock, first..first + PORTS);
        }
    }
    panic!("no ports: {BLOCKS} processes that test hold all blocks")
}
