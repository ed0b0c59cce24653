//! The wire's promises: golden bytes, round trips, and that no bytes from anywhere do harm.

mod frames;
mod golden;
mod hostile;
mod sample;
