//! The directory on several nodes in one process, with a network that can be cut.

mod failover;
mod join;
mod leases;
mod pre_vote;
mod relays;
mod restart;
mod restored;
mod test_cluster;
