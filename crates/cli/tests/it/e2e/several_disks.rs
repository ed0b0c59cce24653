//! Nodes with several disks: added, emptied and taken out under a writer, and one that fails by itself.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use staves_testkit::SetAtEnd;
use staves_testkit::nbd::NbdClient;
use staves_testkit::tools::{runs, skip};

use super::disks::{Versions, connect, make_volume, start};
use super::{Cluster, tool};

/// The disks of all nodes, as the command has them.
fn disks(cluster: &Cluster, through: usize) -> Vec<serde_json::Value> {
    let said = cluster.run(through, &["disk", "list", "-o", "json"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let rows: serde_json::Value = serde_json::from_str(&said.stdout).expect("JSON");
    rows.as_array().cloned().unwrap_or_default()
}

/// The id of a node, as its native address says.
fn id_of(cluster: &Cluster, at: usize) -> String {
    let said = cluster.run(at, &["status", "-o", "json"]);
    let status: serde_json::Value = serde_json::from_str(&said.stdout).expect("JSON");
    let nodes = status["nodes"].as_array().into_iter().flatten();
    let native = cluster.nodes[at].native.as_str();
    let mut own = nodes.filter(|node| node["native"] == native);
    own.next()
        .map_or_else(String::new, |node| node["id"].to_string())
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn done(cluster: &Cluster, args: &[&str]) -> String {
    let ran = cluster.run(0, args);
    assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
    ran.stdout
}

fn is_whole(status: &serde_json::Value) -> bool {
    let pools = status["pools"].as_array().into_iter().flatten();
    let mut vols = pools.filter(|pool| pool["name"] == "vols");
    vols.next()
        .is_some_and(|pool| pool["whole"] == pool["buckets"])
}

/// The first node's copies are all that there is for a while.
fn check_alone(cluster: &mut Cluster, ports: &[u16], versions: &Versions) {
    cluster.wait_for("all is whole", 0, is_whole);
    cluster.end(1, "-KILL");
    versions.check(&mut connect(ports[0]));
    // It was answered alone, and comes back with its disks.
    cluster.end(0, "-KILL");
    cluster.up(0);
    versions.check(&mut connect(ports[0]));
    cluster.up(1);
    cluster.wait_for("all is whole again", 0, is_whole);
}

#[test]
fn a_disk_is_replaced_while_its_volume_is_written() {
    let (mut cluster, ports) = start(2);
    make_volume(&cluster, "1+1");
    let (node, old) = (
        id_of(&cluster, 0),
        text(&cluster.nodes[0].data.join("disk")),
    );
    let new = text(&cluster.folder.path().join("second"));
    let mut versions = Versions::new();
    let mut client = connect(ports[1]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stopping = SetAtEnd(&stop);
        let writer = scope.spawn(|| versions.write_until(&mut client, &stop));
        std::thread::sleep(std::time::Duration::from_millis(500));
        let said = done(
            &cluster,
            &["disk", "replace", &node, &old, &new, "--size", "64MiB"],
        );
        assert!(said.contains("replaced"), "{said}");
        std::thread::sleep(std::time::Duration::from_millis(500));
        drop(stopping);
        writer.join().expect("it ends when it is told to");
    });
    assert!(versions.next > 20, "{} writes", versions.next);
    versions.check(&mut client);
    drop(client);
    let folders = |cluster: &Cluster| {
        let mut all: Vec<String> = disks(cluster, 0)
            .iter()
            .map(|disk| disk["folder"].as_str().unwrap_or_default().to_owned())
            .collect();
        all.sort();
        all
    };
    let mut wanted = vec![new, text(&cluster.nodes[1].data.join("disk"))];
    wanted.sort();
    assert_eq!(folders(&cluster), wanted);
    let here = disks(&cluster, 0);
    assert!(here.iter().all(|disk| disk["buckets"] == 1), "{here:?}");
    // What was taken out is not needed, and not made again by a start.
    fs::remove_dir_all(&old).expect("it is there");
    check_alone(&mut cluster, &ports, &versions);
    assert_eq!(folders(&cluster), wanted);
    assert!(!Path::new(&old).exists());
}

/// Regression: a pool that was made later got no room while an older one, which was empty, might have taken the whole disk; and status said that its memory
/// was used up.
#[test]
fn pools_on_disk_share_a_disk_by_use_and_one_more_gives_them_room() {
    let (cluster, ports) = start(1);
    for (name, memory) in [("old", "96MiB"), ("vols", "96MiB")] {
        let pool = "--kind memory --medium disk --scheme 1+0 --memory";
        let pool = pool.split(' ').chain([memory]);
        let args: Vec<&str> = ["pool", "create", name].into_iter().chain(pool).collect();
        done(&cluster, &args);
    }
    for volume in [
        "first --size 24MiB --pool old",
        "disk --size 160MiB --pool vols",
    ] {
        let args = ["volume", "create"].into_iter().chain(volume.split(' '));
        done(&cluster, &args.collect::<Vec<_>>());
    }
    const PIECE: usize = 1 << 20;
    let write_to = |client: &mut NbdClient| {
        let piece = vec![7; PIECE];
        let written = (0..160u64).take_while(|at| client.write(at * PIECE as u64, &piece).is_ok());
        written.count()
    };
    // The later one takes all that the older one has left, until the disk is full.
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports[0]));
    let mut first = NbdClient::connect(address, "first").expect("it is served");
    assert_eq!(write_to(&mut first), 24);
    let mut client = connect(ports[0]);
    let written = write_to(&mut client);
    assert!((60..73).contains(&written), "{written} MiB of 72");
    let said = done(&cluster, &["status"]);
    for part in [
        "Critical",
        "the disk of ",
        " no room left for pool 'vols'",
        "staves disk add",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("used up its memory"), "{said}");
    let (node, new) = (
        id_of(&cluster, 0),
        text(&cluster.folder.path().join("second")),
    );
    done(&cluster, &["disk", "add", &node, &new, "--size", "64MiB"]);
    let bytes = |status: &serde_json::Value| status["nodes"][0]["disk_bytes"].as_u64();
    cluster.wait_for("both count", 0, |s| bytes(s) >= Some(160 << 20));
    done(&cluster, &["disk", "drain", &node, &new, "--wait", "30s"]);
    cluster.wait_for("a drained one does not", 0, |s| bytes(s) < Some(160 << 20));
}

/// Regression: the last node of a cluster was not stopped without force, because of the cache that a cluster begins with, in which there was nothing.
#[test]
fn the_last_node_stops_if_its_cache_is_empty() {
    let (cluster, _) = start(1);
    make_volume(&cluster, "1+0");
    let node = id_of(&cluster, 0);
    done(&cluster, &["cache", "put", "k", "v"]);
    let refused = cluster.run(0, &["node", "stop", &node]);
    assert_eq!(refused.code, Some(1), "{}", refused.stdout);
    assert!(
        refused.stderr.contains("would be lost"),
        "{}",
        refused.stderr
    );
    done(&cluster, &["cache", "delete", "k"]);
    let said = done(&cluster, &["node", "stop", &node]);
    assert!(said.contains("stop"), "{said}");
}

#[test]
fn wrong_commands_for_disks_change_nothing() {
    let (cluster, _) = start(1);
    let (node, own) = (
        id_of(&cluster, 0),
        text(&cluster.nodes[0].data.join("disk")),
    );
    let there = text(cluster.folder.path());
    let nowhere = text(&cluster.folder.path().join("no/where"));
    let fresh = text(&cluster.folder.path().join("fresh"));
    let dots = format!("{there}/../fresh");
    for (args, why) in [
        (
            &["add", &node, "b", "--size", "64MiB"][..],
            "a path from the root",
        ),
        (&["add", &node, &dots, "--size", "64MiB"], "without '..'"),
        (
            &["add", &node, &there, "--size", "64MiB"],
            "it is there already",
        ),
        (
            &["add", &node, &nowhere, "--size", "64MiB"],
            "the folder around it is not there",
        ),
        (&["add", &node, &fresh, "--size", "1KiB"], "1 MiB at least"),
        (
            &["add", &node, &fresh, "--size", "999TiB"],
            "cannot be made",
        ),
        (&["add", "nobody", &fresh, "--size", "64MiB"], "nobody"),
        (
            &["drain", &node, &fresh],
            &format!("no disk '{fresh}': it has {own}"),
        ),
        (&["drain", &node, &own], "the only disk"),
        (&["remove", &node, &own], "drain it"),
        (
            &["replace", &node, &fresh, &fresh, "--size", "64MiB"],
            "no disk",
        ),
    ] {
        let args: Vec<&str> = ["disk"].iter().chain(args).copied().collect();
        let ran = cluster.run(0, &args);
        assert_ne!(ran.code, Some(0), "{args:?}: {}", ran.stdout);
        assert!(ran.stderr.contains(why), "{args:?}: {}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    }
    let left = disks(&cluster, 0);
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(left[0]["state"], "healthy");
    assert!(!Path::new(&fresh).exists());
}

/// A file system that takes far less than it says: the disk behind it has no room, and fails writes that it was to have room for.
struct ShortDisk {
    folder: PathBuf,
    device: String,
}

impl ShortDisk {
    /// `None`, and the test is skipped, where there are no loop devices.
    fn mount(folder: &Path) -> Option<ShortDisk> {
        if !runs("losetup", &["-V"]) || !runs("mke2fs", &["-V"]) {
            return None;
        }
        let control = File::options().write(true).open("/dev/loop-control");
        if let Err(error) = &control {
            skip(format_args!("/dev/loop-control cannot be opened: {error}"));
            return None;
        }
        let (small, point) = (folder.join("small"), folder.join("mounted"));
        for made in [&small, &point] {
            fs::create_dir_all(made).expect("a folder");
        }
        tool(
            "mount",
            &["-t", "tmpfs", "-o", "size=20m", "tmpfs", &text(&small)],
        );
        let image = small.join("image");
        let file = File::create(&image).expect("a file");
        file.set_len(600 << 20).expect("a file with holes");
        let image = text(&image);
        tool(
            "mke2fs",
            &[
                "-q",
                "-t",
                "ext4",
                "-O",
                "^has_journal",
                "-E",
                "nodiscard",
                &image,
            ],
        );
        let device = tool("losetup", &["-f", "--show", &image]);
        let disk = ShortDisk {
            folder: folder.to_owned(),
            device: device.trim().to_owned(),
        };
        tool("mount", &[&disk.device, &text(&point)]);
        Some(disk)
    }

    fn path(&self) -> String {
        text(&self.folder.join("mounted/disk"))
    }

    /// It is not there any more.
    fn vanish(&self) {
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.folder.join("mounted"))
            .output();
    }
}

impl Drop for ShortDisk {
    fn drop(&mut self) {
        self.vanish();
        let _ = Command::new("losetup").args(["-d", &self.device]).output();
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.folder.join("small"))
            .output();
    }
}

/// One disk of several fails under a writer: its node goes on, what it had is filled again on the other one, and nothing that was answered is lost.
#[test]
fn a_disk_that_fails_is_not_its_nodes_death() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let Some(short) = ShortDisk::mount(folder.path()) else {
        return;
    };
    let (mut cluster, ports) = start(2);
    make_volume(&cluster, "1+1");
    let (node, own) = (
        id_of(&cluster, 0),
        text(&cluster.nodes[0].data.join("disk")),
    );
    let mut versions = Versions::new();
    let mut client = connect(ports[1]);
    let stop = AtomicBool::new(false);
    let failed =
        |disk: &serde_json::Value| disk["state"] == "failed" && disk["folder"] == short.path();
    std::thread::scope(|scope| {
        let stopping = SetAtEnd(&stop);
        let writer = scope.spawn(|| versions.write_until(&mut client, &stop));
        done(
            &cluster,
            &["disk", "add", &node, &short.path(), "--size", "64MiB"],
        );
        done(&cluster, &["disk", "drain", &node, &own]);
        staves_testkit::wait_until("it has failed", || disks(&cluster, 1).iter().any(failed));
        let before = disks(&cluster, 1);
        assert!(
            before.iter().any(|disk| disk["folder"] == own.as_str()),
            "the node is up"
        );
        cluster.wait_for("all is whole", 1, is_whole);
        std::thread::sleep(std::time::Duration::from_millis(500));
        drop(stopping);
        writer.join().expect("it ends when it is told to");
    });
    versions.check(&mut client);
    drop(client);
    let status = done(&cluster, &["status"]);
    let warning = format!("the disk {} of ", short.path());
    assert!(
        status.contains(&warning) && status.contains("has failed"),
        "{status}"
    );
    // A node that starts goes on without a disk that is not there.
    short.vanish();
    check_alone(&mut cluster, &ports, &versions);
    assert!(disks(&cluster, 1).iter().any(failed), "it is told of");
    done(&cluster, &["disk", "remove", &node, &short.path()]);
    assert_eq!(disks(&cluster, 1).len(), 2);
    done(&cluster, &["disk", "resume", &node, &own]);
    assert!(
        disks(&cluster, 1)
            .iter()
            .all(|disk| disk["state"] == "healthy")
    );
}
