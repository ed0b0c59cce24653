//! Coming.
fn main() {}
