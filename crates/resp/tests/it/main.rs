//! The codec as clients meet it: Redis's own tools on a real socket, and the inputs of the fuzzing target.

mod fuzz;
mod redis_tools;
