//! Connections over loopback: what they promise, and what they bear.

mod admission;
mod common;
mod connection;
mod hostile;
mod peers;
mod redis;
mod secret;
mod stalled;
mod turns;
