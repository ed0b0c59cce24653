//! The descriptors that a mount in the background inherits.

/// Closes what this process was given beyond input, output and errors: a lock of the shell that called us, held as
/// long as anybody has it open, would be held as long as the mount is there. Only before this process has opened anything.
pub fn let_go() {
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
