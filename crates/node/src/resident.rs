//! What memory a process has, as the kernel counts it.

use std::fs;

/// Resident bytes of a process, whatever they are used for: shared ones, pages among them, count. Of this
/// process without an id. `None` where `/proc` does not say.
pub fn resident_bytes(pid: Option<u32>) -> Option<u64> {
    let of = pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    let status = fs::read_to_string(format!("/proc/{of}/status")).ok()?;
    parse(&status)
}

fn parse(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_what_is_resident() {
        let status = "Name:\tstaves\nVmHWM:\t   99 kB\nVmRSS:\t   1234 kB\nThreads:\t3\n";
        assert_eq!(parse(status), Some(1234 << 10));
        assert_eq!(parse("Name:\tkthreadd\n"), None);
        let before = resident_bytes(None).expect("/proc is there");
        let grown = vec![1u8; 32 << 20];
        let after = resident_bytes(None).expect("/proc is there");
        assert!(after > before + (16 << 20), "{before} {after} {}", grown[5]);
    }
}
