//! Tools that tests need of the machine. Where one is absent the test is skipped, visibly, or fails where the environment requires it.

use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// With the value 1: tests fail where a tool is absent.
const REQUIRE_TOOLS: &str = "STAVES_REQUIRE_TOOLS";
/// With the value 1: tests fail where `/dev/fuse` cannot be opened.
const REQUIRE_FUSE: &str = "STAVES_REQUIRE_FUSE";
/// Names the file to which each skipped test adds a line.
const SKIPPED: &str = "STAVES_SKIPPED";

/// True where this variable of the environment is 1.
fn is_set(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| value == "1")
}

/// True where tests must mount.
pub fn must_mount() -> bool {
    is_set(REQUIRE_FUSE)
}

/// Reports the current test as skipped: on stderr, past the harness's capture, and in the file that `STAVES_SKIPPED` names.
pub fn skip(why: impl Display) {
    let thread = std::thread::current();
    let line = format!("skipped: {}: {why}\n", thread.name().unwrap_or("a test"));
    let mut out = std::io::stderr().lock();
    out.write_all(line.as_bytes()).expect("stderr");
    if let Some(path) = std::env::var_os(SKIPPED) {
        let file = File::options().create(true).append(true).open(path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.expect("the list of skipped tests");
    }
}

/// Skips the current test for want of a tool.
///
/// # Panics
/// With `STAVES_REQUIRE_TOOLS=1`.
pub fn missing(why: impl Display) {
    assert!(!is_set(REQUIRE_TOOLS), "required by {REQUIRE_TOOLS}: {why}");
    skip(why);
}

/// True if a command succeeds here; else the test is to be skipped.
///
/// # Panics
/// If it fails with `STAVES_REQUIRE_TOOLS=1`.
pub fn runs(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    let command = command.args(args).stdin(Stdio::null());
    let ran = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    let there = ran.is_ok_and(|status| status.success());
    if !there {
        missing(format_args!("{program} {args:?} does not run here"));
    }
    there
}

/// The library of Debian's package `faketime`, that gives a process another clock. It is looked for, not asked of the program
/// `faketime`: that names a semaphore by its process id and ends if an earlier process of the same id left one.
pub fn faketime_library() -> Option<PathBuf> {
    let of_machine = std::fs::read_dir("/usr/lib").ok()?.flatten();
    let mut places = of_machine.map(|entry| entry.path().join("faketime/libfaketime.so.1"));
    places.find(|place| place.exists())
}

/// The Python that `STAVES_PYTHON` names, else the machine's.
pub fn python() -> String {
    std::env::var("STAVES_PYTHON").unwrap_or_else(|_| "python3".to_owned())
}

/// True if files can be mounted here; else the test is to be skipped.
///
/// # Panics
/// If they cannot with `STAVES_REQUIRE_FUSE=1`.
pub fn can_mount() -> bool {
    let opened = File::options().read(true).write(true).open("/dev/fuse");
    let Err(error) = opened else { return true };
    assert!(
        !is_set(REQUIRE_FUSE),
        "required by {REQUIRE_FUSE}: /dev/fuse cannot be opened: {error}"
    );
    skip(format_args!("/dev/fuse cannot be opened: {error}"));
    false
}
