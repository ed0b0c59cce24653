//! Paths of a source that lead into a mount of Staves. Such a mount may be the one that asks: it would wait
//! for itself, where nothing ends it, not even SIGKILL.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};

/// The device of what a descriptor stands for, as the kernel's table of mounts has it. Asks no server: that of a mount of FUSE
/// might be this process.
pub fn device(name: impl AsFd) -> Option<String> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let seen = rustix::fs::statx(name, c"", flags, StatxFlags::empty()).ok()?;
    Some(format!("{}:{}", seen.stx_dev_major, seen.stx_dev_minor))
}

/// True if Staves mounted that device.
pub fn is_ours(device: &str) -> bool {
    // FUSE's devices are numbers without a driver; others need no look at the table.
    let table = match device.starts_with("0:") {
        true => std::fs::read("/proc/self/mountinfo").unwrap_or_default(),
        false => return false,
    };
    table.split(|&b| b == b'\n').any(|line| {
        let mut fields = line.split(|&b| b == b' ');
        let is_it = fields.nth(2) == Some(device.as_bytes());
        let mut rest = fields.skip_while(|&field| field != b"-").skip(1);
        is_it
            && rest.next().is_some_and(|kind| kind.starts_with(b"fuse"))
            && rest.next().is_some_and(is_dataset)
    })
}

/// True for the name of a dataset, as `staves mount` gives it to the kernel. Other mounts by this library,
/// such as slow media for measurements, have a path as their name, which no dataset has.
fn is_dataset(from: &[u8]) -> bool {
    let name = from.strip_prefix(b"staves:");
    name.is_some_and(|name| !name.contains(&b'/') && !name.contains(&b':'))
}

/// True if Staves mounted the target of a path.
pub fn leads_to_ours(path: &str) -> bool {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let at = rustix::fs::open(path, flags, Mode::empty()).ok();
    let device = at.and_then(device);
    device.is_some_and(|device| is_ours(&device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_file_systems_are_not_ours() {
        for path in ["/", "/proc", "/sys"] {
            let at = std::fs::File::open(path).unwrap();
            let device = device(&at).unwrap();
            assert!(!is_ours(&device), "{path}: {device}");
        }
        assert!(!is_ours("0:4000000000"));
    }

    /// Regression: what a bench mounted to be a slow source was refused as one.
    #[test]
    fn a_mount_that_is_called_after_a_path_is_no_dataset() {
        assert!(is_dataset(b"staves:hg38.fa"));
        for other in ["staves:hdd-/srv/genomes", "staves:a:b", "hg38", "sshfs:x"] {
            assert!(!is_dataset(other.as_bytes()), "{other}");
        }
    }
}
