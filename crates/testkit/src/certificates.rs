//! Certificates for tests, made by `openssl` (Debian: `openssl`), named as libnbd and QEMU look for them.

use std::path::Path;
use std::process::Command;

use crate::tools::runs;

/// Makes an authority in a folder (`ca-cert.pem`, `ca-key.pem`), and certificates by it for a server at 127.0.0.1 (`server-cert.pem`,
/// `server-key.pem`) and for a client (`client-cert.pem`, `client-key.pem`). False where the test is to be skipped.
///
/// # Panics
/// If a certificate cannot be made, or `openssl` is absent with `STAVES_REQUIRE_TOOLS=1`.
pub fn make(folder: &Path) -> bool {
    if !runs("openssl", &["version"]) {
        return false;
    }
    request(folder, "ca", &[]);
    for name in ["server", "client"] {
        let more = [
            "-CA",
            "ca-cert.pem",
            "-CAkey",
            "ca-key.pem",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ];
        request(folder, name, &more);
    }
    true
}

fn request(folder: &Path, name: &str, more: &[&str]) {
    let make = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2";
    let mut command = Command::new("openssl");
    command.current_dir(folder).args(make.split(' '));
    command.args(["-subj", &format!("/CN={name}")]).args(more);
    command.args(["-keyout", &format!("{name}-key.pem")]);
    command.args(["-out", &format!("{name}-cert.pem")]);
    let made = command.output().expect("it ran before");
    let printed = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{printed}");
}
