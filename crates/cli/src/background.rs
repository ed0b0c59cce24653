//! Processes that a command leaves behind: this program once more, with the same arguments and `--foreground --in-background`.
//!
//! It tells how it went by lines on its stdout, and an error as an object on its stderr, as `-o json` does.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::Context;
use staves_cli_common::codes::{Code, Own};
use staves_cli_common::failure;

/// Longest line that is heard, in bytes.
const LINE_BYTES: u64 = 64 << 10;
/// Most of an error that is heard.
const FAILURE_BYTES: u64 = 64 << 10;

/// A process that was started, as the command that started it hears it.
pub struct Background {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Background {
    /// Starts it, in a group of processes of its own.
    ///
    /// # Errors
    /// The system starts no process.
    pub fn start() -> anyhow::Result<Background> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
        args.extend(["--foreground".into(), "--in-background".into()]);
        let mut command = Command::new(program);
        command.args(args).process_group(0).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let spawned = command.spawn();
        let mut child = spawned.context("cannot start a process in the background")?;
        let stdout = child.stdout.take().context("it has no stdout")?;
        Ok(Background {
            child,
            stdout: BufReader::new(stdout),
        })
    }

    /// Its next line; empty once it has ended.
    ///
    /// # Errors
    /// The pipe fails.
    pub fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        let heard = self.stdout.by_ref().take(LINE_BYTES).read_line(&mut line);
        heard.context("cannot hear the process in the background")?;
        Ok(line.trim().to_owned())
    }

    /// The error that it has ended with.
    pub fn failure(mut self) -> anyhow::Error {
        let mut why = String::new();
        if let Some(stderr) = self.child.stderr.take() {
            stderr.take(FAILURE_BYTES).read_to_string(&mut why).ok();
        }
        match self.child.wait() {
            Ok(_) => failure_of(&why),
            Err(error) => error.into(),
        }
    }
}

fn failure_of(why: &str) -> anyhow::Error {
    let last = why.lines().last().unwrap_or_default();
    let error = serde_json::from_str::<serde_json::Value>(last).unwrap_or_default();
    let text = match error["error"]["message"].as_str() {
        Some(text) => text.to_owned(),
        None if last.is_empty() => "the process in the background ended without a word".to_owned(),
        None => last.to_owned(),
    };
    let code = Code::all().find(|code| error["error"]["code"] == code.word());
    failure::with_code(code.unwrap_or(Code::Own(Own::Failed)), text)
}

/// Closes what this process was given beyond input, output and errors: a lock of the shell that called us, held as
/// long as anybody has it open, would be held as long as this process is there. Only before it has opened anything.
pub fn let_go_of_inherited() {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    let number = |entry: std::io::Result<std::fs::DirEntry>| -> Option<i32> {
        entry.ok()?.file_name().to_str()?.parse().ok()
    };
    let all: Vec<i32> = open.filter_map(number).collect();
    for descriptor in all.into_iter().filter(|d| *d > 2) {
        // That of the listing itself is closed already.
        let _ = nix::unistd::close(descriptor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a mount in the background that the cluster refused was told as one that failed, and one that took too long as
    /// one that reached nobody.
    #[test]
    fn what_a_process_in_the_background_says_keeps_its_code() {
        for code in Code::all().filter(|code| code.exit_code().is_some()) {
            let why = format!("a word before\n{}\n", failure::object(code, "why"));
            let error = failure_of(&why);
            assert_eq!(failure::code(&error), code);
            assert_eq!(error.to_string(), "why");
        }
        for (why, text) in [("", "without a word"), ("panicked", "panicked")] {
            let error = failure_of(why);
            assert_eq!(failure::code(&error), Code::Own(Own::Failed));
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
