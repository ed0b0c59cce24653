//! The code as its users see it: every kernel, every pattern of loss, and another's implementation.

mod kernels;
mod peers;
mod recipes;
