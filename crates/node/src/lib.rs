//! The daemon: what makes a node of the machines, protocols and doors of the other crates.
//!
//! **Promises.** Any node takes any key: it answers for its own buckets and passes the rest on once. A
//! write that was answered is on every copy; one that was interrupted by a takeover is asked again under
//! its number until its deadline, so that it takes effect once or is said to be uncertain. The commands
//! of a RESP connection take effect in the order in which it sent them, for each bucket, and are
//! answered in that order. Everything that waits has a deadline; connections, commands under way, answers
//! not yet written, calls and queues are bounded. A node that cannot start says why in one line.
//!
//! **Path of the data.** A RESP connection's task (`door`) reads, parses (`staves-resp`), and asks the bucket
//! right there, under its [short lock](#one-thread-at-a-time): a read under a lease, or a write without
//! copies, is answered with no task switch. A write with copies leaves its answer with the bucket;
//! `host::cell` sends the deltas through `staves-net`'s links, takes the acks in on the links' tasks, and
//! puts the answer into the connection's queue of completions. What this node does not answer for goes through
//! `forward` (the client's router over the node's links). The native door (`native`) does the same for
//! batches of other nodes and clients, and carries the directory's messages, the group protocol, and
//! what tools ask. `host` follows the map and the clock; `host::leases` and `host::calls` speak to the
//! directory's leader.
//!
//! # One thread at a time
//!
//! A bucket's machine must never be stepped by two threads at once. A cell has a
//! mutex, held for one operation or event and never across a wait. It was measured against an owner
//! thread with batched hand-over and won (`crates/cache/examples`).
//!
//! **Invariants.** Whoever is told of a refusal under a bucket's lock is told before anybody can submit
//! to that bucket again, so that no later command overtakes an earlier one (`door::completions`). A write's
//! number is given back only when no retry will carry it any more (`host::lane`). The map is followed by
//! one task; a bucket hears of its group's entries in their order.
//!
//! **Not here.** Rules: who may hold what is `staves-model`'s, agreement `staves-group`'s, the bytes
//! `staves-cache`'s. Flags and signals are the program's (`crates/cli`), but for [`serve`].
//!
//! **Layout.** Read `node` (start to end of a node), `running`, `host`, `door`; then `native`, `forward`, `leave`.
//! `start`: doors and options. `accepting`: their loop. `tls`: certificates, and connections within TLS. `entry`: until it has joined. `links`: the directory's connections. `witness`: reports of failures.
//! `gate`: costly requests, one at a time. `log`: sequencers of logs. `http`, `log_gateway`: logs for programs. `admin`, `metrics`, [`status`], [`group_state`]: what is told. [`config`]: pure, by itself.
//! [`volumes`]: figures of block devices. [`cpu`], [`resident`]: what the kernel counts.

mod accepting;
mod admin;
mod client_doors;
mod client_sockets;
mod clock;
pub mod config;
pub mod cpu;
mod disk;
mod disks;
mod door;
mod drivers;
mod entry;
mod forward;
mod gate;
pub mod group_state;
mod grpc;
mod hangup;
mod heap;
mod host;
mod http;
mod leave;
mod links;
mod liveness;
mod log;
mod log_gateway;
pub mod metrics;
mod native;
mod nbd;
mod node;
mod pieces;
pub mod resident;
mod running;
mod serve;
mod start;
pub mod status;
mod tls;
pub mod volumes;
mod witness;

pub use host::services::{HostedService, SERVICES, ServiceOptions};
pub use node::{Node, run};
pub use serve::serve;
pub use start::{Addresses, StartError, check_files};
pub use tls::{TlsError, TlsFile};
