//! The codec as clients meet it: Redis's own tools on a real socket, and the inputs of the fuzzing target.

// The node's tests use the rest of it.
#[allow(dead_code)]
#[path = "../../../node/tests/it/client.rs"]
mod client;
mod fuzz;
mod redis_tools;
