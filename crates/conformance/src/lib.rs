//! Test support for services on groups: a group of buckets in one thread.
//!
//! [`TestCluster`] joins the buckets by a queue of messages, which can lose, double and reorder them, and
//! stands in for the directory. Everything in it follows from the calls made and from one seed.

mod cluster;

pub use cluster::{Reply, TestCluster, bytes};
