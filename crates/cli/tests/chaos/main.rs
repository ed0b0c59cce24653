//! Real processes, real faults, checked histories: the quick part of the chaos runs.

fn main() {}
