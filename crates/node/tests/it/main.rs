//! The node as its clients and its fellows meet it: real doors on loopback, several nodes in one process,
//! each on threads of its own, so that one can be killed as a process is.

mod again;
mod ahead;
mod answers;
mod clocks;
mod configs;
mod counter;
mod doors;
mod failover;
mod files;
mod grpc_figures;
mod grpc_limits;
mod grpc_sessions;
mod grpc_volumes;
mod hostile;
mod least_copies;
mod lives;
mod loads;
mod log_streams;
mod logs;
mod membership;
mod memory;
mod nbd_tls;
mod one_node;
mod quiet;
mod redirects;
mod rust_client;
mod secrets;
mod shared_volumes;
mod soak;
mod sources;
mod turns;
mod volume_limits;
mod volume_maps;
mod volumes;
mod writeback;
