//! Coming.

pub mod config;
pub mod resp;
pub mod status;
