//! The memory of a process, as the kernel counts it.

use std::fs;

/// Resident bytes of a process, whatever they are used for: shared ones, pages among them, count. Of this
/// process without an id. `None` where `/proc` does not say.
pub fn resident_bytes(pid: Option<u32>) -> Option<u64> {
    line(pid, "status", "VmRSS:")
}

/// Resident bytes of a process, of which those that several processes share (the program's file, above all) count as
/// the part that falls to each: what all processes have of it together is what they take of the machine.
pub fn proportional_bytes(pid: Option<u32>) -> Option<u64> {
    line(pid, "smaps_rollup", "Pss:")
}

/// Bytes that the machine can give to processes before it is short of memory. `None` where `/proc` does not say.
pub fn available_bytes() -> Option<u64> {
    parse(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")
}

/// Bytes that the machine has, or that this process's group of processes may take of it, whichever is less. `None` where
/// neither `/proc` nor `/sys` says.
pub fn total_bytes() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok();
    let machine = machine.and_then(|text| parse(&text, "MemTotal:"));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limit_files(&groups).into_iter().filter_map(|path| {
        // "max" is none.
        fs::read_to_string(path).ok()?.trim().parse().ok()
    });
    machine.into_iter().chain(limits).min()
}

/// Paths of the limits of a process's memory, by its `/proc/self/cgroup`.
fn limit_files(groups: &str) -> Vec<String> {
    let file = |line: &str| {
        let (_, rest) = line.split_once(':')?;
        match rest.split_once(':')? {
            ("", group) => Some(format!("/sys/fs/cgroup{group}/memory.max")),
            ("memory", group) => {
                let limit = "memory.limit_in_bytes";
                Some(format!("/sys/fs/cgroup/memory{group}/{limit}"))
            }
            _ => None,
        }
    };
    groups.lines().filter_map(file).collect()
}

fn line(pid: Option<u32>, file: &str, name: &str) -> Option<u64> {
    let of = pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    let text = fs::read_to_string(format!("/proc/{of}/{file}")).ok()?;
    parse(&text, name)
}

fn parse(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_the_machines_or_less() {
        let meminfo = fs::read_to_string("/proc/meminfo").expect("/proc is there");
        let machine = parse(&meminfo, "MemTotal:").expect("a line of it");
        let total = total_bytes().expect("/proc is there");
        assert!(total > 0 && total <= machine, "{total} {machine}");
        let groups = "4:memory:/a/b\n3:cpuset:/\n1:name=systemd:/\n0::/c:d\nodd\n";
        assert_eq!(
            limit_files(groups),
            [
                "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
                "/sys/fs/cgroup/c:d/memory.max"
            ]
        );
    }

    #[test]
    fn the_kernel_says_what_is_resident() {
        let status = "Name:\tstaves\nVmHWM:\t   99 kB\nVmRSS:\t   1234 kB\nThreads:\t3\n";
        assert_eq!(parse(status, "VmRSS:"), Some(1234 << 10));
        assert_eq!(parse("Name:\tkthreadd\n", "VmRSS:"), None);
        assert!(available_bytes().is_some_and(|bytes| bytes > 0));
        let before = resident_bytes(None).expect("/proc is there");
        let before_by_share = proportional_bytes(None).expect("/proc is there");
        let grown = vec![1u8; 32 << 20];
        let after = resident_bytes(None).expect("/proc is there");
        assert!(after > before + (16 << 20), "{before} {after} {}", grown[5]);
        let by_share = proportional_bytes(None).expect("/proc is there");
        assert!(
            by_share > before_by_share + (16 << 20),
            "{before_by_share} {by_share}"
        );
    }
}
