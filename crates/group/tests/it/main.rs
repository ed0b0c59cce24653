//! The group's members against each other, and against peers that lie.

mod coded;
mod fills;
mod leases;
mod lies;
mod marks;
mod node_logs;
mod pace;
mod rest;
mod scrub;
mod test_group;
