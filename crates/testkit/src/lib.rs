//! Helpers that the tests of several crates share: waits that have a deadline and a message, tools of the machine and skips where they are
//! absent, servers as processes, the load of a workload on real nodes (feature `load`), and a cluster of them in one process
//! (feature `cluster`). For tests and programs that test only.

pub mod certificates;
#[cfg(feature = "cluster")]
pub mod cluster;
#[cfg(feature = "load")]
pub mod load;
pub mod nbd;
mod ports;
pub mod resp;
pub mod servers;
pub mod tools;
mod wait;

pub use ports::{free_port, free_ports};
pub use wait::{DEADLINE, SetAtEnd, block_on, wait_until, wait_until_async};
