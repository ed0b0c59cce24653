//! The block devices of this machine that its kernel makes of NBD, as its folder `/sys` shows them.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// The folder that stands for `/`, in tests.
const ROOT: &str = "STAVES_MACHINE_ROOT";
/// Longest time for the kernel to show a device's new state.
const SETTLED_MAX: Duration = Duration::from_secs(5);
/// The pause between two looks.
const LOOK: Duration = Duration::from_millis(20);
/// The unit of `size` in sysfs.
const SECTOR_BYTES: u64 = 512;
/// The time after which the kernel looks whether a request without an answer is to be sent by another connection, in milliseconds.
const RESENT_AFTER_MS: u32 = 5_000;

/// The machine that devices are made on.
pub(super) struct NbdMachine {
    /// The folder `/`.
    pub(super) root: PathBuf,
    /// True if the process may make devices.
    pub(super) is_root: bool,
}

impl NbdMachine {
    /// The machine that this process runs on.
    pub(super) fn here() -> NbdMachine {
        NbdMachine {
            root: std::env::var_os(ROOT).map_or_else(|| PathBuf::from("/"), PathBuf::from),
            is_root: rustix::process::geteuid().is_root(),
        }
    }

    /// The obstacles to devices here, each with its remedy.
    pub(super) fn obstacles(&self) -> Vec<&'static str> {
        let kernel = self.devices().is_empty().then_some(
            "the kernel has no nbd ('modprobe nbd' loads it, where there is such a module)",
        );
        let root = (!self.is_root).then_some("only root may make block devices (use sudo)");
        [kernel, root].into_iter().flatten().collect()
    }

    /// The numbers of the kernel's devices, free or not.
    fn devices(&self) -> Vec<u32> {
        let entries = fs::read_dir(self.root.join("sys/block"));
        let names = entries.into_iter().flatten().flatten();
        let number = |name: OsString| name.to_str()?.strip_prefix("nbd")?.parse().ok();
        let mut devices: Vec<u32> = names.filter_map(|e| number(e.file_name())).collect();
        devices.sort_unstable();
        devices
    }

    /// A device by its path, `/dev/nbdN`.
    ///
    /// # Errors
    /// The kernel has no such device.
    pub(super) fn device(&self, path: &str) -> anyhow::Result<NbdDevice<'_>> {
        let number = path.strip_prefix("/dev/nbd").and_then(|n| n.parse().ok());
        let number: u32 = number.with_context(|| {
            format!("'{path}' is no device of nbd: write /dev/nbdN, such as /dev/nbd0")
        })?;
        ensure!(
            self.devices().contains(&number),
            "the kernel has no /dev/nbd{number}: it has {} of them ('modprobe nbd nbds_max=64' makes more, once none is in use)",
            self.devices().len()
        );
        Ok(NbdDevice {
            machine: self,
            number,
        })
    }

    /// The first device that nobody uses.
    ///
    /// # Errors
    /// All are in use.
    pub(super) fn free_device(&self) -> anyhow::Result<NbdDevice<'_>> {
        let devices = self.devices();
        let all = devices.len();
        let devices = devices.into_iter().map(|number| NbdDevice {
            machine: self,
            number,
        });
        let mut free = devices.filter(NbdDevice::is_free);
        free.next().with_context(|| {
            format!("all {all} devices of nbd are in use: detach one with 'staves volume attach --stop /dev/nbdN'")
        })
    }
}

/// One device.
pub(super) struct NbdDevice<'a> {
    machine: &'a NbdMachine,
    /// Its number.
    pub(super) number: u32,
}

impl NbdDevice<'_> {
    pub(super) fn path(&self) -> String {
        format!("/dev/nbd{}", self.number)
    }

    fn sysfs(&self) -> PathBuf {
        let folder = format!("sys/block/nbd{}", self.number);
        self.machine.root.join(folder)
    }

    fn figure(&self, file: &str) -> Option<u64> {
        let text = fs::read_to_string(self.sysfs().join(file)).ok()?;
        text.trim().parse().ok()
    }

    /// Its length in bytes; 0 if it has no connection.
    pub(super) fn size_bytes(&self) -> u64 {
        self.figure("size")
            .unwrap_or(0)
            .saturating_mul(SECTOR_BYTES)
    }

    /// True if nothing is attached as it. One that has lost its connection has no size, but a process.
    pub(super) fn is_free(&self) -> bool {
        self.size_bytes() == 0 && self.pid().is_none()
    }

    /// Devices that are made of it (LVM, dm, md).
    pub(super) fn used_by(&self) -> Vec<String> {
        let holders = fs::read_dir(self.sysfs().join("holders"));
        let names = holders.into_iter().flatten().flatten();
        names
            .filter_map(|e| e.file_name().into_string().ok())
            .collect()
    }

    /// The folder on which it, or a partition of it, is mounted.
    pub(super) fn mounted_on(&self) -> Option<String> {
        let mounts = fs::read_to_string(self.machine.root.join("proc/self/mounts")).ok()?;
        let device = self.path();
        let is_part = |source: &str| {
            let rest = source.strip_prefix(device.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('p'))
        };
        let mut mounts = mounts.lines().filter_map(|line| line.split_once(' '));
        let (_, rest) = mounts.find(|(source, _)| is_part(source))?;
        rest.split(' ').next().map(str::to_owned)
    }

    /// The process that made it, as the kernel gives it; `None` if it has no connection.
    pub(super) fn pid(&self) -> Option<String> {
        let pid = fs::read_to_string(self.sysfs().join("pid")).ok()?;
        Some(pid.trim().to_owned())
    }

    /// Ends the process that connects it anew, which would take a connection that is ended on purpose for one that is lost. Another program
    /// may have made the device: it is left alone.
    pub(super) fn end_holder(&self) {
        let pid = self.pid().and_then(|pid| pid.parse().ok());
        let Some(pid) = pid.and_then(Pid::from_raw) else {
            return;
        };
        let process = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
        // The number may be another program's by now.
        let args = fs::read(process.join("cmdline")).unwrap_or_default();
        let mut args = args.split(|byte| *byte == 0);
        if args.any(|arg| arg == b"attach") && kill_process(pid, Signal::TERM).is_ok() {
            until(|| !process.exists());
        }
    }

    /// Waits until a device that was just made shows its length, and sets how soon requests are sent by another connection.
    ///
    /// # Errors
    /// It has none.
    pub(super) fn settle(&self) -> anyhow::Result<()> {
        ensure!(
            until(|| self.size_bytes() > 0),
            "{} is connected, and has no size: 'dmesg' may say why",
            self.path()
        );
        // A kernel without it (before 5.0) looks after 30 s.
        let _ = fs::write(
            self.sysfs().join("queue/io_timeout"),
            RESENT_AFTER_MS.to_string(),
        );
        Ok(())
    }

    /// Waits until nothing is attached as it any more. False if somebody still has it open.
    pub(super) fn wait_until_free(&self) -> bool {
        until(|| self.is_free())
    }
}

fn until(holds: impl Fn() -> bool) -> bool {
    let end = Instant::now() + SETTLED_MAX;
    while !holds() {
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A machine in a folder.
    pub(in crate::volume) fn fake_machine(folder: &std::path::Path, devices: u32) -> NbdMachine {
        let root = folder.join("root");
        for number in 0..devices {
            let device = root.join(format!("sys/block/nbd{number}"));
            fs::create_dir_all(device.join("queue")).expect("a folder");
            fs::write(device.join("size"), "0\n").expect("a file");
        }
        NbdMachine {
            root,
            is_root: true,
        }
    }

    #[test]
    fn the_first_free_device_is_found_and_known_by_its_size_and_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let machine = fake_machine(folder.path(), 12);
        let write = |name: &str, text: &str| {
            fs::write(machine.root.join("sys/block").join(name), text).expect("a file");
        };
        // One with a size, and one that has lost its connection.
        write("nbd0/size", "8\n");
        write("nbd1/pid", "77\n");
        assert_eq!(machine.obstacles(), Vec::<&str>::new());
        let device = machine.free_device().expect("one is free");
        assert_eq!(device.path(), "/dev/nbd2");
        assert!(device.wait_until_free());
        write("nbd2/size", "2048\n");
        write("nbd2/pid", "78\n");
        device.settle().expect("it has a size");
        assert_eq!(
            (device.size_bytes(), device.pid()),
            (1 << 20, Some("78".to_owned()))
        );
        let resent = fs::read_to_string(device.sysfs().join("queue/io_timeout"));
        assert_eq!(resent.expect("a file"), "5000");
        assert_eq!(machine.free_device().expect("free").path(), "/dev/nbd3");
    }

    #[test]
    fn all_that_is_missing_is_named_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut machine = fake_machine(folder.path(), 0);
        machine.is_root = false;
        let missing = machine.obstacles().join("; ");
        for part in ["modprobe nbd", "sudo"] {
            assert!(missing.contains(part), "{part}: {missing}");
        }
        let error = machine.free_device().err().expect("none is free");
        assert!(error.to_string().contains("all 0 devices"), "{error}");
    }

    #[test]
    fn a_device_that_is_mounted_is_known_by_its_partitions_too() {
        let folder = tempfile::tempdir().expect("a folder");
        let machine = fake_machine(folder.path(), 12);
        fs::create_dir_all(machine.root.join("proc/self")).expect("a folder");
        let mounts = "proc /proc proc rw 0 0\n/dev/nbd10 /other ext4 rw 0 0\n/dev/nbd1p2 /data ext4 rw 0 0\n";
        fs::write(machine.root.join("proc/self/mounts"), mounts).expect("a file");
        let on = |path: &str| machine.device(path).expect("it is there").mounted_on();
        assert_eq!(on("/dev/nbd0"), None);
        assert_eq!(on("/dev/nbd1").as_deref(), Some("/data"));
        assert_eq!(on("/dev/nbd10").as_deref(), Some("/other"));
        assert!(machine.device("/dev/nbd12").is_err());
        assert!(machine.device("/dev/sda").is_err());
    }
}
