//! Volumes on disk: real nodes are killed, one or all at once, and what was answered is there.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use staves_testkit::free_ports;
use staves_testkit::nbd::NbdClient;

use super::{Cluster, PATIENCE};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 2048;

/// Nodes with a disk and the NBD door; its ports.
pub(super) fn start(count: usize) -> (Cluster, Vec<u16>) {
    let ports = free_ports(count);
    let before = |port: &u16| {
        // Little memory, so that pages come and go.
        format!("export STAVES_DISK=96MiB STAVES_DISK_MEMORY=2MiB STAVES_NBD=127.0.0.1:{port}")
    };
    let before: Vec<String> = ports.iter().map(before).collect();
    (Cluster::start_after(&before), ports)
}

pub(super) fn make_volume(cluster: &Cluster, scheme: &str) {
    let pool = "pool create vols --kind memory --medium disk --memory 60MiB --scheme";
    let pool: Vec<&str> = pool.split(' ').chain([scheme]).collect();
    let volume = [
        "volume", "create", "disk", "--size", "40MiB", "--pool", "vols",
    ];
    for args in [&pool[..], &volume] {
        let made = cluster.run(0, args);
        assert_eq!(made.code, Some(0), "{}", made.stderr);
    }
}

/// A connection to the volume through some node.
pub(super) fn connect(port: u16) -> NbdClient {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let until = Instant::now() + PATIENCE;
    loop {
        match NbdClient::connect(address, "disk") {
            Ok(client) => return client,
            Err(why) if Instant::now() > until => panic!("not after {PATIENCE:?}: {why}"),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn nodes(status: &serde_json::Value) -> impl Iterator<Item = &serde_json::Value> {
    status["nodes"].as_array().into_iter().flatten()
}

fn content(block: u64, version: u64) -> Vec<u8> {
    let words = (0..BLOCK / 8).map(|word| (version << 32) + block * 512 + word);
    words.flat_map(u64::to_le_bytes).collect()
}

/// The versions of each block that were tried and answered.
pub(super) struct Versions {
    tried: Vec<u64>,
    answered: Vec<u64>,
    pub(super) next: u64,
}

impl Versions {
    pub(super) fn new() -> Versions {
        let none = vec![0; BLOCKS as usize];
        Versions {
            tried: none.clone(),
            answered: none,
            next: 0,
        }
    }

    /// Writes blocks until told to stop, or until the connection ends.
    pub(super) fn write_until(&mut self, client: &mut NbdClient, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            self.next += 1;
            let block = self.next.wrapping_mul(2_654_435_761) % BLOCKS;
            self.tried[block as usize] = self.next;
            if client
                .write(block * BLOCK, &content(block, self.next))
                .is_err()
            {
                return;
            }
            self.answered[block as usize] = self.next;
        }
    }

    /// Each block is whole, and not older than what was answered.
    pub(super) fn check(&self, client: &mut NbdClient) {
        for block in 0..BLOCKS {
            let bytes = client
                .read(block * BLOCK, BLOCK as usize)
                .expect("it reads");
            let (first, _) = bytes.split_first_chunk().expect("a block");
            let version = u64::from_le_bytes(*first) >> 32;
            let at = block as usize;
            assert!(
                version >= self.answered[at] && version <= self.tried[at],
                "block {block} has version {version}; {} was answered, {} tried",
                self.answered[at],
                self.tried[at]
            );
            let whole = version == 0 || bytes == content(block, version);
            assert!(whole, "block {block} is torn at version {version}");
        }
    }
}

/// Rows B7, B8 in small: the power of all nodes goes, as far as a process can tell, while a client writes.
#[test]
fn b8_all_nodes_are_killed_at_once_and_nothing_that_was_answered_is_lost() {
    let (mut cluster, ports) = start(3);
    make_volume(&cluster, "1+1");
    let mut versions = Versions::new();
    for round in 0..4 {
        let mut client = connect(ports[round % 3]);
        versions.check(&mut client);
        let stop = AtomicBool::new(false);
        let before = versions.next;
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| versions.write_until(&mut client, &stop));
            std::thread::sleep(Duration::from_millis(1500));
            for at in 0..3 {
                cluster.end(at, "-KILL");
            }
            writer.join().expect("it ends with the connection");
        });
        assert!(
            versions.next > before + 20,
            "{} writes",
            versions.next - before
        );
        (0..3).for_each(|at| cluster.up(at));
    }
    let mut client = connect(ports[0]);
    versions.check(&mut client);
    cluster.wait_for("all is whole", 0, |s| {
        let mut disks = nodes(s).map(|node| &node["facts"]["disks"][0]);
        s["state"] == "healthy" && disks.any(|disk| disk["syncs"].as_u64() > Some(0))
    });
    let said = cluster.run(0, &["status"]).stdout;
    assert!(said.contains("the disk of "), "{said}");
}

/// Writes every block of the volume's first half.
fn write_half(client: &mut NbdClient, version: u64) {
    for block in 0..BLOCKS / 2 {
        let bytes = content(block, version);
        client.write(block * BLOCK, &bytes).expect("written");
    }
}

/// Writes the volume `busy`, again and again, as many bytes as that. Each write is shorter than those whose pages the journal has not.
fn write_much(port: u16, bytes: u64) {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut busy = NbdClient::connect(address, "busy").expect("it connects");
    let piece = vec![7; 60 << 10];
    for at in (0..24 << 4).cycle().take(bytes as usize / piece.len() + 1) {
        busy.write(at << 16, &piece).expect("written");
    }
}

/// A node comes back whose bucket waits for another node's disk: other volumes on its disk are written meanwhile, several times what its journal takes.
#[test]
fn a_bucket_that_waits_for_another_disk_holds_up_no_writer() {
    let ports = free_ports(3);
    let before = |(at, port): (usize, &u16)| {
        let disk = ["", "STAVES_DISK=96MiB "][at.min(1)];
        format!("export {disk}STAVES_NBD=127.0.0.1:{port}")
    };
    let before: Vec<String> = ports.iter().enumerate().map(before).collect();
    let mut cluster = Cluster::start_after(&before);
    make_volume(&cluster, "1+1");
    let mut client = connect(ports[0]);
    write_half(&mut client, 1);
    cluster.end(1, "-KILL");
    write_half(&mut client, 2);
    cluster.end(2, "-KILL");
    cluster.up(1);
    let native = cluster.nodes[1].native.clone();
    let disk = |status: &serde_json::Value| {
        let mut rows = nodes(status).filter(|node| node["native"] == native.as_str());
        rows.next()
            .map_or_else(Default::default, |row| row["facts"]["disks"][0].clone())
    };
    cluster.wait_for("its bucket waits", 0, |s| disk(s)["waiting"] == 1);
    for args in [
        "pool create busy --kind memory --medium disk --memory 30MiB --scheme 1+0",
        "volume create busy --size 24MiB --pool busy",
    ] {
        let made = cluster.run(0, &args.split(' ').collect::<Vec<_>>());
        assert_eq!(made.code, Some(0), "{}", made.stderr);
    }
    let journal = |cluster: &Cluster| {
        let said = cluster.run(0, &["status", "-o", "json"]);
        let said = disk(&serde_json::from_str(&said.stdout).expect("JSON"));
        let of = |key: &str| said[key].as_u64().expect("a number");
        (
            of("journal_written_bytes"),
            of("journal_bytes"),
            of("waiting"),
        )
    };
    let (before, ring, _) = journal(&cluster);
    write_much(ports[1], ring * 2);
    let (after, _, waiting) = journal(&cluster);
    assert!(after - before > ring * 2, "{before} to {after}, of {ring}");
    assert_eq!(waiting, 1, "it is still there");
    // What it waits for comes back, and brings it up to date.
    cluster.up(2);
    let mut client = connect(ports[0]);
    for block in 0..BLOCKS / 2 {
        let read = client.read(block * BLOCK, BLOCK as usize);
        assert!(read.expect("it reads") == content(block, 2), "{block}");
    }
    cluster.wait_for("nothing waits", 0, |s| disk(s)["waiting"] == 0);
}

/// A node is killed while a client writes, and comes back with its disk; then the other one of the volume goes for good.
#[test]
fn b7_a_node_that_was_killed_comes_back_with_its_disk_and_the_other_may_go() {
    let (mut cluster, ports) = start(3);
    make_volume(&cluster, "1+1");
    let mut versions = Versions::new();
    let stop = AtomicBool::new(false);
    let mut client = connect(ports[0]);
    for victim in [1, 2, 1, 2] {
        stop.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| versions.write_until(&mut client, &stop));
            std::thread::sleep(Duration::from_millis(500));
            cluster.end(victim, "-KILL");
            std::thread::sleep(Duration::from_millis(1500));
            cluster.up(victim);
            std::thread::sleep(Duration::from_millis(500));
            stop.store(true, Ordering::Relaxed);
            writer.join().expect("it ends");
        });
        cluster.wait_for("all is whole again", 0, |s| {
            s["state"] == "healthy"
                && s["nodes"]
                    .as_array()
                    .is_some_and(|n| n.iter().all(|n| n["up"] == true))
        });
        versions.check(&mut client);
    }
    cluster.end(1, "-KILL");
    versions.check(&mut client);
}

/// Pools that cannot be on disk are refused, with the reason.
#[test]
fn pools_on_disk_that_cannot_be_are_refused_with_the_reason() {
    let cluster = Cluster::start(1);
    let create = |more: &str| {
        let args = format!("pool create vols --medium disk --memory 16MiB {more}");
        let ran = cluster.run(0, &args.split(' ').collect::<Vec<_>>());
        assert_eq!(ran.code, Some(1), "{args}: {}", ran.stdout);
        ran.stderr
    };
    let said = create("--kind memory --scheme 1+0");
    assert!(
        said.contains("no node has a disk") && said.contains("--disk"),
        "{said}"
    );
    let said = create("--kind cache --scheme 1+0");
    assert!(said.contains("only regions, volumes and logs"), "{said}");
    let said = create("--kind memory --scheme 5+1");
    assert!(said.contains("m of at most 4"), "{said}");
}

/// The disk of another node is not taken for one's own.
#[test]
fn a_disk_that_is_another_nodes_is_refused_and_one_that_is_gone_is_made_anew() {
    let (mut cluster, ports) = start(3);
    make_volume(&cluster, "1+1");
    connect(ports[0]).write(0, b"here").expect("written");
    cluster.end(1, "-KILL");
    let folder = |at: usize| cluster.nodes[at].data.join("disk");
    std::fs::remove_dir_all(folder(1)).expect("it was there");
    let copied = std::process::Command::new("cp")
        .arg("-r")
        .args([folder(0), folder(1)])
        .status();
    assert!(copied.expect("cp runs").success());
    cluster.up(1);
    let mut child = cluster.nodes[1].child.take().expect("it was started");
    let ended = child.wait().expect("it ends");
    let log = std::fs::read_to_string(cluster.folder.path().join("1.log")).expect("a log");
    let last = log.lines().last().unwrap_or_default();
    assert!(
        !ended.success() && last.contains("is of node 1 of cluster"),
        "{last}"
    );
    std::fs::remove_dir_all(cluster.nodes[1].data.join("disk")).expect("it was there");
    cluster.up(1);
    cluster.wait_for("all is whole", 0, |s| s["state"] == "healthy");
    cluster.end(0, "-KILL");
    let bytes = connect(ports[2]).read(0, 4).expect("it reads");
    assert_eq!(bytes, b"here");
}
