//! The simulator's own tests: batches of seeds, planted bugs, and scripts for what chance meets rarely.

mod mutants;
mod scripts;
mod seeds;
