//! The client against nodes that answer by script.

mod cluster;
mod faults;
mod files;
mod routing;
mod volumes;
