//! The simulator's own tests: batches of seeds, planted bugs, scripts for what chance meets rarely, and
//! seeds that failed once.

mod elections;
mod mutants;
mod placement;
mod regressions;
mod scripts;
mod seeds;
