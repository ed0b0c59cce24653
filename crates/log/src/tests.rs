//! The log in one thread from one seed: units that crash and lose what they had not synced, sequencers that come and go, clients that retry, and
//! a network that loses, doubles and delays. Each step is checked against the invariants of the log.

mod clients;
mod conditions;
mod faults;
mod hunts;
mod judge;
mod nodes;
mod retention;
mod rng;
mod runs;
mod units;
mod world;
