//! The memory that a store shares with other processes.

mod fuzz;
