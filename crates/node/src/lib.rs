//! Coming.

mod admin;
mod clock;
pub mod config;
mod door;
mod forward;
mod host;
mod leave;
mod links;
mod metrics;
mod native;
mod node;
pub mod resp;
mod start;
pub mod status;
mod witness;

pub use node::{Addresses, Node, run, serve};
pub use start::StartError;
