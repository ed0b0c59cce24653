//! The parts that the commands of the `staves` program share.
//!
//! **Layout.** `options`: the options of every command. `cluster`: a session with a cluster, through the
//! client library. `output`: answers as tables or JSON. `running`: runtimes and signals. `codes`, `failure`: errors and
//! exit codes. `nodes`: nodes of this machine, as processes. `served`: the last report of a mount.

#![warn(clippy::print_stdout, clippy::print_stderr)] // they panic if nobody reads

pub mod cluster;
pub mod codes;
pub mod failure;
pub mod nodes;
pub mod options;
pub mod output;
pub mod running;
pub mod served;
