//! The log of a mount.

use std::os::unix::fs::OpenOptionsExt;

use anyhow::Context;
use rustix::fs::OFlags;

use super::Mount;

/// Opens the log of warnings.
pub(super) fn open(mount: &Mount) -> anyhow::Result<()> {
    let log = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_ansi(false)
        .log_internal_errors(false);
    match &mount.log {
        Some(path) => {
            let file = std::fs::File::options()
                .create(true)
                .append(true)
                // A pipe without a reader is refused; it would wait for one.
                .custom_flags(OFlags::NONBLOCK.bits() as i32)
                .open(path);
            let file = file.with_context(|| format!("cannot write the log {}", path.display()))?;
            log.with_writer(std::sync::Mutex::new(file)).init();
        }
        None if mount.in_background => {}
        None => log.with_writer(std::io::stderr).init(),
    }
    Ok(())
}
