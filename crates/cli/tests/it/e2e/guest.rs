//! Volumes as block devices of a machine whose kernel has nbd: a guest, and a node that is killed under it.

use std::path::Path;
use std::process::Child;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use staves_testkit::wait_until;

use self::machine::{Guest, GuestNet, HOST, Kernel};

mod machine;

const PROGRAM: &str = env!("CARGO_BIN_EXE_staves");
/// Commands of the guest. `attach` leaves what it said in a variable; `rounds` writes, and says so if anything fails.
const SCRIPT: &str = r#"
export STAVES_CLUSTER=@CLUSTER@
attach() { said=$(staves volume attach "$@" -o json 2>&1); echo "attached $? $(echo "$said" | grep -o '"node": "[^"]*"') $(echo "$said" | grep -o '"device": "[^"]*"')"; }
rounds() {
    i=0
    while [ $i -lt 12 ]; do
        dd if=/dev/urandom of=/tmp/b bs=64k count=8 2>/dev/null
        cat /tmp/b > /mnt/b$i && sync || echo "round $i failed"
        [ "$(md5sum < /tmp/b)" = "$(md5sum < /mnt/b$i)" ] || echo "round $i differs"
        i=$((i+1)); sleep 1
    done
}
attach disk
/bin/mke2fs -q -t ext4 /dev/nbd0 && mount /dev/nbd0 /mnt && echo mounted
staves volume attach --stop /dev/nbd0; echo "stopped $?"
echo kill
rounds
echo "errors $(dmesg | grep -c 'I/O error')"
dmesg | grep staves:
umount /mnt; echo "unmounted $?"
staves volume attach --stop /dev/nbd0; echo "stopped $?"
attach disk
/bin/e2fsck -f -n /dev/nbd0; echo "checked $?"
mount /dev/nbd0 /mnt && ls /mnt | grep -c '^b' && umount /mnt
staves volume attach --stop /dev/nbd0; echo "stopped $?"
attach back
dd if=/tmp/b of=/dev/nbd0 bs=64k oflag=direct 2>/dev/null; echo "wrote $?"
echo kill
sleep 1
dd if=/tmp/b of=/dev/nbd0 bs=64k oflag=direct 2>/dev/null; echo "wrote $?"
dmesg | grep staves:
while [ "$(staves node list | grep -c ' up ')" != 3 ]; do sleep 1; done
attach disk
attach both
write() { dd if=/tmp/b of=$1 bs=64k oflag=direct 2>/dev/null; echo "wrote $?"; }
write /dev/nbd0
write /dev/nbd1
echo hang
write /dev/nbd0
write /dev/nbd1
dmesg | grep staves:
"#;

/// Nodes in the guest's network, killed when dropped.
struct Nodes<'a> {
    net: &'a GuestNet,
    children: Vec<Child>,
    folder: tempfile::TempDir,
}

impl Nodes<'_> {
    fn start(net: &GuestNet) -> Nodes<'_> {
        let folder = tempfile::tempdir().expect("a folder");
        let mut nodes = Nodes {
            net,
            children: Vec::new(),
            folder,
        };
        for node in 0..3 {
            let child = nodes.start_node(node);
            nodes.children.push(child);
        }
        wait_until("all nodes are up", || {
            let list = nodes.run(&["node", "list"]);
            list.is_some_and(|list| list.matches(" up ").count() == 3)
        });
        for args in [
            "pool create vols --kind memory --medium disk --scheme 1+1 --memory 256MiB",
            "volume create disk --size 64MiB --pool vols",
            "volume create back --size 16MiB --pool vols --cache writeback",
            "volume create both --size 16MiB --pool vols --shared",
        ] {
            let args: Vec<&str> = args.split(' ').collect();
            wait_until("it is made", || nodes.run(&args).is_some());
        }
        nodes
    }

    fn start_node(&self, node: usize) -> Child {
        let mut command = self.net.command(PROGRAM);
        command.args(["up", "--memory", "64MiB", "--disk", "384MiB", "--data"]);
        command.arg(self.folder.path().join(node.to_string()));
        for (door, port) in [
            ("--listen", 1600),
            ("--resp", 6379),
            ("--admin", 1680),
            ("--nbd", 10809),
        ] {
            command.args([door, &format!("{HOST}:{}", port + 100 * node)]);
        }
        if node > 0 {
            command.args(["--join", &format!("{HOST}:1600")]);
        }
        let log = std::fs::File::create(self.folder.path().join(format!("{node}.log")));
        command.stderr(log.expect("a file"));
        command.spawn().expect("a node starts")
    }

    /// Runs a command of the program; what it said if it went well.
    fn run(&self, args: &[&str]) -> Option<String> {
        let mut command = self.net.command(PROGRAM);
        command.env("STAVES_CLUSTER", cluster()).args(args);
        let ran = command.output().expect("it runs");
        ran.status
            .success()
            .then(|| String::from_utf8_lossy(&ran.stdout).into_owned())
    }

    /// Kills the node with this NBD door.
    fn kill(&mut self, door: &str) {
        let child = &mut self.children[node_of(door)];
        child.kill().expect("it lives");
        child.wait().expect("it ends");
    }

    /// Starts the node with this NBD door again.
    fn start_again(&mut self, door: &str) {
        let child = self.start_node(node_of(door));
        self.children[node_of(door)] = child;
    }

    /// Holds the node with this NBD door: its connections stay, and say nothing.
    fn hold(&self, door: &str) {
        let pid = Pid::from_child(&self.children[node_of(door)]);
        rustix::process::kill_process(pid, Signal::STOP).expect("it lives");
    }

    /// Another client writes to a volume, through another door. True if it could.
    fn others_write(&self, but: &str, volume: &str) -> bool {
        let mut doors = (0..3).map(|node| format!("{HOST}:{}", 10809 + 100 * node));
        let door = doors.find(|door| door != but).expect("another door");
        let mut command = self.net.command("qemu-io");
        command.args(["-f", "raw", "-c", "write -f -P 7 0 4k"]);
        let ran = command.arg(format!("nbd://{door}/{volume}")).output();
        ran.expect("qemu-io runs").status.success()
    }
}

impl Drop for Nodes<'_> {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn cluster() -> String {
    [0, 1, 2]
        .map(|node| format!("{HOST}:{}", 1600 + 100 * node))
        .join(",")
}

fn node_of(door: &str) -> usize {
    let port = door.rsplit(':').next();
    let port: usize = port.and_then(|p| p.parse().ok()).expect("a port");
    (port - 10809) / 100
}

/// The door that a device was attached through; its number must be this.
fn door(attached: &str, number: u32) -> String {
    let device = format!("\"device\": \"/dev/nbd{number}\"");
    assert!(
        attached.starts_with("0 ") && attached.contains(&device),
        "{attached}"
    );
    let mut words = attached.split('"');
    let door = words.find(|word| word.starts_with(HOST));
    door.unwrap_or_else(|| panic!("no door: {attached}"))
        .to_owned()
}

#[test]
fn b8_a_machines_block_device_goes_on_through_another_node_when_its_own_is_killed() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let Some(kernel) = Kernel::find() else { return };
    let net = GuestNet::new();
    let mut nodes = Nodes::start(&net);
    let programs = ["/sbin/mke2fs", "/sbin/e2fsck"].map(Path::new);
    let script = SCRIPT.replace("@CLUSTER@", &cluster());
    let mut guest = Guest::start(
        &net,
        &kernel,
        &[programs[0], programs[1], Path::new(PROGRAM)],
        &script,
    );
    let first = door(&guest.until("attached"), 0);
    guest.until("mounted");
    assert_eq!(guest.until("stopped"), "1", "it is mounted: {}", guest.said);
    guest.until("kill");
    std::thread::sleep(Duration::from_secs(2));
    nodes.kill(&first);
    // All writes are done, and read back.
    assert_eq!(guest.until("errors"), "0", "{}", guest.said);
    assert_eq!(guest.until("unmounted"), "0");
    let said = guest.said.clone();
    assert!(!said.contains("round "), "{said}");
    assert!(
        said.contains(&format!("the connection through {first} has ended")),
        "{said}"
    );
    assert!(said.contains("goes on through"), "{said}");
    assert_eq!(guest.until("stopped"), "0");
    // The file system is whole.
    door(&guest.until("attached"), 0);
    assert_eq!(guest.until("checked"), "0", "{}", guest.said);
    guest.until("12");
    assert_eq!(guest.until("stopped"), "0");
    // With write-back a machine hears that something may be gone.
    let second = door(&guest.until("attached"), 0);
    assert_eq!(guest.until("wrote"), "0", "{}", guest.said);
    guest.until("kill");
    nodes.kill(&second);
    assert_eq!(guest.until("wrote"), "1", "{}", guest.said);
    nodes.start_again(&first);
    nodes.start_again(&second);
    nobody_goes_on_where_others_may_have_written(&mut nodes, &mut guest);
}

/// One device's volume is written by another client while its node hangs, the other's volume is shared: both fail once the node is gone.
fn nobody_goes_on_where_others_may_have_written(nodes: &mut Nodes<'_>, guest: &mut Guest) {
    let third = door(&guest.until("attached"), 0);
    assert_eq!(door(&guest.until("attached"), 1), third);
    assert_eq!(guest.until("wrote"), "0", "{}", guest.said);
    assert_eq!(guest.until("wrote"), "0", "{}", guest.said);
    guest.until("hang");
    nodes.hold(&third);
    wait_until("another client has the volume", || {
        nodes.others_write(&third, "disk")
    });
    // Meanwhile the device has looked which session the volume has: this one is not its own.
    std::thread::sleep(Duration::from_secs(3));
    nodes.kill(&third);
    let wrote = [guest.until("wrote"), guest.until("wrote")];
    assert_eq!(wrote, ["1", "1"], "{}", guest.said);
    guest.until("done");
    let said = &guest.said;
    assert!(
        said.contains("another client has had the volume meanwhile: the device has failed"),
        "{said}"
    );
    assert!(
        said.contains("(write-back, or shared): the device has failed"),
        "{said}"
    );
}
