//! The block devices of this machine that its kernel makes of NBD, by the tool `nbd-client`.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

/// The folder that stands for `/`, in tests.
const ROOT: &str = "STAVES_MACHINE_ROOT";
/// The folders that are searched after those of `PATH`: Debian has the tool where only root's `PATH` leads.
const SYSTEM_FOLDERS: [&str; 2] = ["/usr/sbin", "/sbin"];
/// Longest time for the tool to connect.
const CLIENT_MAX: Duration = Duration::from_secs(30);
/// Longest time for the kernel to show a device's new state.
const SETTLED_MAX: Duration = Duration::from_secs(5);
/// The pause between two looks.
const LOOK: Duration = Duration::from_millis(20);
/// The unit of `size` in sysfs.
const SECTOR_BYTES: u64 = 512;
/// Most of the tool's complaint that is shown.
const COMPLAINT_BYTES: u64 = 2_000;

/// The machine that devices are made on.
pub(super) struct NbdMachine {
    /// The folder `/`.
    pub(super) root: PathBuf,
    /// The folders of programs, as in `PATH`.
    pub(super) path: OsString,
    /// True if the process may make devices.
    pub(super) is_root: bool,
}

impl NbdMachine {
    /// The machine that this process runs on.
    pub(super) fn here() -> NbdMachine {
        NbdMachine {
            root: std::env::var_os(ROOT).map_or_else(|| PathBuf::from("/"), PathBuf::from),
            path: std::env::var_os("PATH").unwrap_or_default(),
            is_root: rustix::process::geteuid().is_root(),
        }
    }

    /// The obstacles to devices here, each with its remedy.
    pub(super) fn obstacles(&self) -> Vec<&'static str> {
        let kernel = self.devices().is_empty().then_some(
            "the kernel has no nbd ('modprobe nbd' loads it, where there is such a module)",
        );
        let tool = self
            .client()
            .is_none()
            .then_some("nbd-client is not installed ('apt install nbd-client')");
        let root = (!self.is_root).then_some("only root may make block devices (use sudo)");
        [kernel, tool, root].into_iter().flatten().collect()
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

    fn client(&self) -> Option<PathBuf> {
        let folders = std::env::split_paths(&self.path);
        let folders = folders.chain(SYSTEM_FOLDERS.map(PathBuf::from));
        folders
            .map(|folder| folder.join("nbd-client"))
            .find(|program| program.is_file())
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

    /// Runs the tool to its end; it leaves a process behind where it goes on.
    fn run_client(&self, args: &[&str]) -> anyhow::Result<()> {
        let program = self.client().context("nbd-client is not installed")?;
        let mut child = Command::new(&program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        // Beside it: what it leaves behind may keep its stderr.
        let (said, complaint) = mpsc::channel();
        if let Some(stderr) = child.stderr.take() {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                let _ = stderr.take(COMPLAINT_BYTES).read_to_end(&mut text);
                let _ = said.send(text);
            });
        }
        let until = Instant::now() + CLIENT_MAX;
        let status = loop {
            match child.try_wait().context("cannot wait for nbd-client")? {
                Some(status) => break status,
                None if Instant::now() < until => std::thread::sleep(LOOK),
                None => {
                    let _ = child.kill();
                    let _ = child.wait();
                    bail!("nbd-client did not end within {} s", CLIENT_MAX.as_secs());
                }
            }
        };
        if status.success() {
            return Ok(());
        }
        let text = complaint.recv_timeout(SETTLED_MAX).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        bail!("nbd-client failed ({status}): {words}");
    }
}

/// The connection that a device is to have.
pub(super) struct NbdConnect<'a> {
    pub(super) host: &'a str,
    pub(super) port: u16,
    pub(super) export: &'a str,
    pub(super) read_only: bool,
    /// The time after which the kernel takes a request for lost.
    pub(super) timeout: Duration,
}

/// One device.
pub(super) struct NbdDevice<'a> {
    machine: &'a NbdMachine,
    number: u32,
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

    /// True if the kernel lets nobody write to it.
    pub(super) fn is_read_only(&self) -> bool {
        self.figure("ro") == Some(1)
    }

    /// True if nothing is attached as it. One that has lost its connection has no size, but a process.
    pub(super) fn is_free(&self) -> bool {
        self.size_bytes() == 0 && !self.sysfs().join("pid").exists()
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

    /// Gives it a connection, which the tool makes anew when it is lost.
    ///
    /// # Errors
    /// The tool's complaint, or that the device has got no size.
    pub(super) fn connect(&self, to: &NbdConnect<'_>) -> anyhow::Result<()> {
        let (port, device) = (to.port.to_string(), self.path());
        let timeout = to.timeout.as_secs().to_string();
        // By netlink the tool of Debian 12 ends at once, and nobody would connect anew.
        let mut args = vec!["-nonetlink", "-persist", "-timeout", &timeout];
        args.extend(["-name", to.export, to.host, &port, &device]);
        if to.read_only {
            args.push("-readonly");
        }
        self.machine.run_client(&args)?;
        ensure!(
            until(|| self.size_bytes() > 0),
            "nbd-client has ended well, and {device} has no size: 'dmesg' may say why"
        );
        Ok(())
    }

    /// Ends its connection. False if somebody still has it open.
    pub(super) fn disconnect(&self) -> anyhow::Result<bool> {
        self.machine
            .run_client(&["-nonetlink", "-d", &self.path()])?;
        Ok(until(|| self.is_free()))
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

    /// A machine in a folder, with a tool that does as `nbd-client` would.
    pub(in crate::volume) fn fake_machine(
        folder: &std::path::Path,
        devices: u32,
        tool: Option<&str>,
    ) -> NbdMachine {
        use std::os::unix::fs::PermissionsExt;
        let root = folder.join("root");
        for number in 0..devices {
            let device = root.join(format!("sys/block/nbd{number}"));
            fs::create_dir_all(&device).expect("a folder");
            fs::write(device.join("size"), "0\n").expect("a file");
            fs::write(device.join("ro"), "0\n").expect("a file");
        }
        let bin = folder.join("bin");
        fs::create_dir_all(&bin).expect("a folder");
        if let Some(script) = tool {
            let program = bin.join("nbd-client");
            let folder = folder.display();
            let text = format!("#!/bin/sh\ncd {folder}\necho \"$@\" >> called\n{script}\n");
            fs::write(&program, text).expect("a file");
            let mode = fs::Permissions::from_mode(0o755);
            fs::set_permissions(&program, mode).expect("a mode");
        }
        NbdMachine {
            root,
            path: bin.into_os_string(),
            is_root: true,
        }
    }

    fn disk(read_only: bool) -> NbdConnect<'static> {
        NbdConnect {
            host: "10.0.0.1",
            port: 10809,
            export: "disk",
            read_only,
            timeout: Duration::from_secs(90),
        }
    }

    #[test]
    fn the_first_free_device_is_connected_and_let_go_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let tool = "case \"$*\" in *-d*) echo 0 > root/sys/block/nbd2/size;; *) echo 2048 > root/sys/block/nbd2/size;; esac";
        let machine = fake_machine(folder.path(), 12, Some(tool));
        let file = |name: &str| machine.root.join(name);
        // One with a size, and one that has lost its connection and has it made anew.
        fs::write(file("sys/block/nbd0/size"), "8\n").expect("a file");
        fs::write(file("sys/block/nbd1/pid"), "77\n").expect("a file");
        assert_eq!(machine.obstacles(), Vec::<&str>::new());
        let device = machine.free_device().expect("one is free");
        assert_eq!(device.path(), "/dev/nbd2");
        device.connect(&disk(true)).expect("it connects");
        assert_eq!(device.size_bytes(), 1 << 20);
        assert_eq!(machine.free_device().expect("free").path(), "/dev/nbd3");
        assert!(device.disconnect().expect("the tool ends well"));
        let called = fs::read_to_string(folder.path().join("called")).expect("it was called");
        assert_eq!(
            called,
            "-nonetlink -persist -timeout 90 -name disk 10.0.0.1 10809 /dev/nbd2 -readonly\n-nonetlink -d /dev/nbd2\n"
        );
    }

    #[test]
    fn what_the_tool_complains_of_is_shown() {
        let folder = tempfile::tempdir().expect("a folder");
        let tool = "echo 'Negotiation: ..Error:' >&2; echo 'no such export' >&2; exit 1";
        let machine = fake_machine(folder.path(), 1, Some(tool));
        let device = machine.free_device().expect("one is free");
        let error = device.connect(&disk(false)).expect_err("it fails");
        let text = error.to_string();
        assert!(text.contains("Error: no such export"), "{text}");
    }

    #[test]
    fn all_that_is_missing_is_named_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut machine = fake_machine(folder.path(), 0, None);
        machine.is_root = false;
        let missing = machine.obstacles().join("; ");
        let is_installed = machine.client().is_some();
        for (part, is_named) in [
            ("modprobe nbd", true),
            ("apt install nbd-client", !is_installed),
            ("sudo", true),
        ] {
            assert_eq!(missing.contains(part), is_named, "{part}: {missing}");
        }
        let error = machine.free_device().err().expect("none is free");
        assert!(error.to_string().contains("all 0 devices"), "{error}");
    }

    #[test]
    fn a_device_that_is_mounted_is_known_by_its_partitions_too() {
        let folder = tempfile::tempdir().expect("a folder");
        let machine = fake_machine(folder.path(), 12, None);
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
