//! The built program: its answers, its exit codes, and what it says when something is wrong.

mod bench;
mod clients;
mod commands;
mod config;
mod documents;
mod e2e;
mod fake;
mod files;
mod minority;
mod status;
mod wrong;

use std::process::{Command, Output, Stdio};

/// The outcome of a run of the program.
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Runs the program with no variables but these.
fn staves_with(env: &[(&str, &str)], args: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_staves"));
    command
        .args(args)
        .env_clear()
        .envs(env.iter().copied())
        .stdin(Stdio::null());
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("the program runs");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ran {
        code: status.code(),
        stdout: text(stdout),
        stderr: text(stderr),
    }
}

fn staves(args: &[&str]) -> Ran {
    staves_with(&[], args)
}
