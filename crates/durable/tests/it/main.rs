//! Groups on faulty disks: every test of this crate in one program.

mod bugs;
mod client;
mod cluster;
mod coded;
mod directory;
mod files;
mod healing;
mod nodes;
mod placed;
mod process;
mod storms;
mod writeback;
