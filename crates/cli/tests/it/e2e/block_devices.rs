//! Volumes as block devices of a machine, with a tool in the place of `nbd-client` that notes how it is called.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::volumes::{make, start};
use crate::{Ran, staves_with};

/// The tool: device 0 has a size while it is connected.
const TOOL: &str = "#!/bin/sh
cd \"${0%/*}/..\"
echo \"$@\" >> called
case \"$*\" in
    *-d*) echo 0 > sys/block/nbd0/size ;;
    *) echo 8192 > sys/block/nbd0/size ;;
esac
";

/// A machine with one device, in a folder.
fn machine(root: &Path) {
    let device = root.join("sys/block/nbd0");
    fs::create_dir_all(&device).expect("a folder");
    fs::write(device.join("size"), "0\n").expect("a file");
    let bin = root.join("bin");
    fs::create_dir_all(&bin).expect("a folder");
    let tool = bin.join("nbd-client");
    fs::write(&tool, TOOL).expect("a file");
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).expect("a mode");
}

/// Runs the program on that machine.
fn on(root: &Path, args: &[&str]) -> Ran {
    let path = format!("{}/bin:/usr/bin:/bin", root.display());
    let root = root.to_string_lossy();
    staves_with(&[("PATH", &path), ("STAVES_MACHINE_ROOT", &root)], args)
}

#[test]
fn a_volume_is_attached_as_a_device_through_a_node_that_serves_it_and_detached() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (mut cluster, ports) = start(3);
    make(&cluster, "1+1", "4MiB");
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    machine(root);
    let all: Vec<&str> = cluster.nodes.iter().map(|n| n.native.as_str()).collect();
    let all = all.join(",");
    let attach = ["--cluster", &all, "volume", "attach"];
    let ran = on(root, &[&attach[..], &["disk", "-o", "json"]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let made: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(made["device"], "/dev/nbd0");
    // Which node joined first, and so is asked first, is a matter of chance.
    let is_of = |port: &u16| made["node"] == format!("127.0.0.1:{port}");
    let of = ports.iter().position(is_of);
    let of = of.unwrap_or_else(|| panic!("no node's: {made}"));
    assert_eq!(made["size_bytes"], 4 << 20);
    let called = |root: &Path| fs::read_to_string(root.join("called")).expect("a file");
    let first = format!(
        "-nonetlink -persist -timeout 90 -name disk 127.0.0.1 {} /dev/nbd0\n",
        ports[of]
    );
    assert_eq!(called(root), first);
    let ran = on(root, &[&attach[..], &["disk"]].concat());
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    assert!(ran.stderr.contains("all 1 devices"), "{}", ran.stderr);
    let ran = on(root, &["volume", "attach", "--stop", "/dev/nbd0"]);
    assert_eq!(ran.stdout, "/dev/nbd0: detached\n", "{}", ran.stderr);
    let ran = on(root, &["volume", "attach", "--stop", "/dev/nbd0"]);
    assert!(ran.stderr.contains("nothing is attached"), "{}", ran.stderr);
    // Through another node, and a snapshot to read only.
    cluster.end(of, "-KILL");
    let made = cluster.run((of + 1) % 3, &["volume", "snapshot", "disk@monday"]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let ran = on(root, &[&attach[..], &["disk@monday"]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for part in [
        "attached to read only as /dev/nbd0 through 127.0.0.1:",
        "; 4.0 MiB",
        "if that node ends, ",
    ] {
        assert!(ran.stdout.contains(part), "{part}: {}", ran.stdout);
    }
    let dead = format!("127.0.0.1:{} ", ports[of]);
    assert!(!ran.stdout.contains(&dead), "{}", ran.stdout);
    let last = called(root);
    let last = last.lines().last().unwrap_or_default();
    assert!(last.ends_with("/dev/nbd0 -readonly"), "{last}");
}

/// Without a cluster: what the machine lacks is said before one is asked.
#[test]
fn a_machine_that_cannot_have_devices_says_why_and_what_to_do_instead() {
    let folder = tempfile::tempdir().expect("a folder");
    let ran = on(folder.path(), &["volume", "attach", "disk"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    let parts = ["modprobe nbd", "nbdfuse", "nbd://HOST/disk"];
    for part in parts {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
    // The machine itself.
    let ran = staves_with(&[], &["volume", "attach", "disk", "-o", "json"]);
    let error: serde_json::Value = serde_json::from_str(&ran.stderr).expect("JSON");
    let text = error.to_string();
    let has_nbd = Path::new("/sys/block/nbd0").exists();
    assert_eq!(text.contains("modprobe nbd"), !has_nbd, "{text}");
    let ran = staves_with(&[], &["volume", "attach"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
}
