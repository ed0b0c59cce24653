//! What others see of a store: the memory that it shares.

mod fuzz;
