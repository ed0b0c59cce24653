//! The node, as its clients and its fellows meet it: real doors on loopback, several nodes in one process.

mod redis_tools;
