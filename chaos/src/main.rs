//! The chaos runs from a shell: `cargo run --release -p staves-chaos -- quick`.

mod args;
mod batch;
mod delay;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match batch::execute(&args::Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("staves-chaos: {error:#}");
            ExitCode::from(2)
        }
    }
}
