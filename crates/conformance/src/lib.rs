//! Test support for services on groups: a group of buckets in one thread, and the suite that every service
//! passes in it.
//!
//! [`TestCluster`] joins the buckets by a queue of messages, which can lose, double and reorder them, and
//! stands in for the directory. [`conforms`] runs a [`Workload`] over it and judges what the clients saw
//! against a plain model; the simulator and the tests on real nodes run the same workloads: [`cache`], [`memory`] and
//! [`counter`], the smallest service that there is. Everything in it follows from the calls made and from one seed.

pub mod cache;
mod cluster;
pub mod counter;
pub mod memory;
mod suite;
mod workload;

pub use cluster::{Reply, TestCluster};
pub use suite::{Begun, Clients, Ended, conforms};
pub use workload::{Draw, Workload, bytes};
