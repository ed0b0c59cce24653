//! A guest under QEMU, without any acceleration, and a network that it shares with nodes.
//!
//! Its kernel is Debian's for clouds, unpacked in the folder that `STAVES_GUEST` names; its only file system is made here, of BusyBox
//! and of the programs that a test needs, with their libraries.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use staves_testkit::tools::{missing, runs};

/// The address of the machine that QEMU runs on, and of its nodes; the guest has the next one.
pub const HOST: &str = "10.77.0.1";
const GUEST: &str = "10.77.0.2";
/// The kernel's modules, each before those that need it.
const MODULES: [&str; 9] = [
    "virtio_ring",
    "virtio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
    "nbd",
];
const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_755;

/// A guest's kernel.
pub struct Kernel {
    image: PathBuf,
    modules: PathBuf,
}

impl Kernel {
    /// The kernel, where all that a guest needs is there; else the test is skipped.
    pub fn find() -> Option<Kernel> {
        let tools = [
            ("qemu-system-x86_64", "--version"),
            ("busybox", "--help"),
            ("mke2fs", "-V"),
            ("ip", "-V"),
        ];
        if !tools.iter().all(|(tool, arg)| runs(tool, &[arg])) {
            return None;
        }
        let folder = std::env::var_os("STAVES_GUEST").map(PathBuf::from);
        let image = folder.as_ref().and_then(|folder| {
            let files = fs::read_dir(folder.join("boot")).ok()?.flatten();
            let mut files = files.map(|file| file.path());
            files.find(|path| path.to_string_lossy().contains("/vmlinuz-"))
        });
        let (Some(folder), Some(image)) = (folder, image) else {
            missing(
                "STAVES_GUEST names no folder with a kernel (CONTRIBUTING.md says how to make one)",
            );
            return None;
        };
        Some(Kernel {
            image,
            modules: folder.join("lib/modules"),
        })
    }

    fn module(&self, name: &str) -> Option<Vec<u8>> {
        let wanted = format!("{name}.ko");
        let mut folders = vec![self.modules.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).ok()?.flatten() {
                match entry.path() {
                    path if path.is_dir() => folders.push(path),
                    path if path.ends_with(&wanted) => return fs::read(path).ok(),
                    _ => {}
                }
            }
        }
        None
    }
}

/// A network of its own, for a guest and nodes, which ends with this.
pub struct GuestNet {
    name: String,
}

impl GuestNet {
    pub fn new() -> GuestNet {
        let name = format!("guest{}", std::process::id());
        let net = GuestNet { name };
        let inside = |args: &[&str]| {
            let done = net.command("ip").args(args).status().expect("it runs");
            assert!(done.success(), "ip {args:?}");
        };
        let made = Command::new("ip")
            .args(["netns", "add", &net.name])
            .status();
        assert!(made.expect("it runs").success(), "a network namespace");
        inside(&["link", "set", "lo", "up"]);
        inside(&["tuntap", "add", "dev", "tap0", "mode", "tap"]);
        inside(&["addr", "add", &format!("{HOST}/24"), "dev", "tap0"]);
        inside(&["link", "set", "tap0", "up"]);
        net
    }

    /// A command in it.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name));
        command.arg(program).stdin(Stdio::null());
        command
    }
}

impl Drop for GuestNet {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["netns", "del", &self.name])
            .status();
    }
}

/// A guest that runs a script.
pub struct Guest {
    child: Child,
    lines: BufReader<ChildStdout>,
    /// All that it has said.
    pub said: String,
}

impl Guest {
    /// Starts one with these programs besides BusyBox's.
    pub fn start(net: &GuestNet, kernel: &Kernel, programs: &[&Path], script: &str) -> Guest {
        let folder = tempfile::tempdir().expect("a folder");
        let initrd = folder.path().join("initrd");
        fs::write(&initrd, file_system(kernel, programs, script)).expect("a file");
        let mut command = net.command("qemu-system-x86_64");
        command.args([
            "-m",
            "768",
            "-display",
            "none",
            "-monitor",
            "none",
            "-no-reboot",
        ]);
        command
            .arg("-kernel")
            .arg(&kernel.image)
            .arg("-initrd")
            .arg(&initrd);
        command.args([
            "-append",
            "console=ttyS0 quiet panic=-1",
            "-serial",
            "stdio",
        ]);
        let tap = "tap,id=n,ifname=tap0,script=no,downscript=no";
        command.args(["-netdev", tap, "-device", "virtio-net-pci,netdev=n"]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("QEMU starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut guest = Guest {
            child,
            lines,
            said: String::new(),
        };
        // QEMU has read the file by then.
        guest.until("up");
        guest
    }

    /// Waits for a line that begins so, and returns the rest of it.
    pub fn until(&mut self, begin: &str) -> String {
        loop {
            let mut line = Vec::new();
            let count = self.lines.read_until(b'\n', &mut line).expect("a pipe");
            assert!(
                count > 0,
                "the guest ended before '{begin}':\n{}",
                self.said
            );
            let line = String::from_utf8_lossy(&line).trim().to_owned();
            self.said.push_str(&line);
            self.said.push('\n');
            if let Some(rest) = line.strip_prefix(begin) {
                return rest.trim().to_owned();
            }
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The guest's files, in the format of `cpio` that the kernel unpacks.
fn file_system(kernel: &Kernel, programs: &[&Path], script: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for folder in ["bin", "proc", "sys", "dev", "tmp", "mnt", "modules"] {
        add(&mut out, folder, DIRECTORY, &[]);
    }
    let mut load = String::new();
    for name in MODULES {
        if let Some(bytes) = kernel.module(name) {
            add(&mut out, &format!("modules/{name}.ko"), FILE, &bytes);
            load.push_str(&format!("insmod /modules/{name}.ko\n"));
        }
    }
    let init = format!(
        "#!/bin/busybox sh\nexport PATH=/bin\n/bin/busybox --install -s /bin\nmount -t proc proc /proc\nmount -t sysfs sys /sys\nmount -t devtmpfs dev /dev\n{load}ip link set lo up\nip addr add {GUEST}/24 dev eth0\nip link set eth0 up\necho up\nsh /script\necho done\npoweroff -f\n"
    );
    add(&mut out, "init", FILE, init.as_bytes());
    add(&mut out, "script", FILE, script.as_bytes());
    let busybox = Path::new("/bin/busybox");
    let mut libraries = BTreeSet::new();
    for program in programs.iter().copied().chain([busybox]) {
        let name = program.file_name().expect("a name").to_string_lossy();
        add(&mut out, &format!("bin/{name}"), FILE, &stripped(program));
        libraries.extend(libraries_of(program));
    }
    for library in libraries {
        let bytes = fs::read(&library).expect("a library");
        let path = library.strip_prefix("/").expect("a whole path");
        let mut folders: Vec<&Path> = path.ancestors().skip(1).collect();
        folders.reverse();
        for folder in folders.iter().filter(|folder| folder.parent().is_some()) {
            add(&mut out, &folder.to_string_lossy(), DIRECTORY, &[]);
        }
        add(&mut out, &path.to_string_lossy(), FILE, &bytes);
    }
    add(&mut out, "TRAILER!!!", 0, &[]);
    out
}

fn add(out: &mut Vec<u8>, name: &str, mode: u32, bytes: &[u8]) {
    let fields = [
        0,
        mode,
        0,
        0,
        1,
        0,
        bytes.len() as u32,
        0,
        0,
        0,
        0,
        name.len() as u32 + 1,
        0,
    ];
    out.extend(b"070701");
    for field in fields {
        out.extend(format!("{field:08X}").as_bytes());
    }
    out.extend(name.as_bytes());
    out.push(0);
    out.resize(out.len().next_multiple_of(4), 0);
    out.extend(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// A program without its symbols: those of a build for tests are most of it.
fn stripped(program: &Path) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::copy(program, file.path()).expect("it is read");
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
    let _ = Command::new("strip").arg(file.path()).status();
    fs::read(file.path()).expect("it is read")
}

fn libraries_of(program: &Path) -> Vec<PathBuf> {
    let listed = Command::new("ldd").arg(program).output().expect("ldd runs");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let words = listed.split_whitespace();
    words
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}
