//! The file of the authorities that this process trusts (`SSL_CERT_FILE`). The library for TLS reads it whole, without a bound or a
//! deadline, so it is looked at before.

use std::path::Path;

/// The variable that names the file.
pub const VARIABLE: &str = "SSL_CERT_FILE";
/// Longest file that is read; those of systems have some 200 KiB.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Refuses a file that would hold whoever reads it, or take all memory. One that is not there is the library's to name.
pub fn check() -> Result<(), String> {
    std::env::var_os(VARIABLE).map_or(Ok(()), |file| check_file(Path::new(&file)))
}

fn check_file(path: &Path) -> Result<(), String> {
    let Ok(found) = path.metadata() else {
        return Ok(());
    };
    let what = match (found.is_file(), found.len()) {
        (true, bytes) if bytes <= FILE_BYTES_MAX => return Ok(()),
        (true, bytes) => format!("it has {bytes} bytes, and {FILE_BYTES_MAX} at most are read"),
        (false, _) => "it is no regular file".to_owned(),
    };
    Err(format!(
        "the certificates in {} ({VARIABLE}) cannot be used: {what}; name a file of certificates (PEM) there, or unset it to trust whom \
         this machine trusts",
        path.display()
    ))
}
