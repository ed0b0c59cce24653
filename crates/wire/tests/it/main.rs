//! The wire's promises: golden bytes, round trips, what a newer version may say, and that no bytes from
//! anywhere do harm.

mod document;
mod frames;
mod fuzz;
mod golden;
mod hostile;
mod log_sample;
mod newer;
mod sample;
