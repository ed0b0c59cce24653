//! Volumes larger than the memory that nodes lend to their disks.

use std::os::unix::fs::FileExt;
use std::time::Instant;

use staves_testkit::nbd::NbdClient;

use super::disks::{connect, make_volume, start};
use super::{Cluster, PATIENCE};

const MIB: usize = 1 << 20;
const VOLUME_MIB: usize = 40;
/// See [`start`]: what nodes of these tests lend.
const MEMORY: u64 = 2 << 20;
const PAGE: u64 = 4096;

fn content(at: usize) -> Vec<u8> {
    let word = |i: usize| ((at * MIB / 8 + i) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..MIB / 8).flat_map(|i| word(i).to_le_bytes()).collect()
}

fn write_all(client: &mut NbdClient) {
    for at in 0..VOLUME_MIB {
        let offset = (at * MIB) as u64;
        client.write(offset, &content(at)).expect("written");
    }
}

fn check_all(client: &mut NbdClient) {
    for at in 0..VOLUME_MIB {
        let read = client.read((at * MIB) as u64, MIB).expect("it reads");
        assert!(read == content(at), "MiB {at}");
    }
}

/// The facts of nodes' disks.
fn disks(cluster: &Cluster, at: usize) -> Vec<serde_json::Value> {
    let said = cluster.run(at, &["status", "-o", "json"]);
    let status: serde_json::Value = serde_json::from_str(&said.stdout).expect("JSON");
    let nodes = status["nodes"].as_array().expect("nodes").iter();
    let disks = nodes.map(|node| node["facts"]["disks"][0].clone());
    disks.collect()
}

#[test]
fn a_volume_of_twenty_times_the_memory_is_written_and_read_through_kills() {
    let (mut cluster, ports) = start(3);
    make_volume(&cluster, "1+1");
    let mut client = connect(ports[0]);
    write_all(&mut client);
    check_all(&mut client);
    for disk in disks(&cluster, 0) {
        let in_memory = disk["in_memory_bytes"].as_u64().expect("a number");
        assert!(in_memory <= MEMORY * 3 / 2, "{disk}");
    }
    // Parts of pages that are on the disk alone.
    for at in 0..VOLUME_MIB {
        let offset = (at * MIB) as u64 + 1234;
        let bytes = &content(at)[1234..1334];
        client.write(offset, bytes).expect("written");
    }
    drop(client);
    // A bucket is filled anew, and read from the disk of the one that fills it.
    cluster.end(1, "-KILL");
    let mut client = connect(ports[2]);
    check_all(&mut client);
    cluster.wait_for("all is whole again", 0, |s| {
        let pools = s["pools"].as_array().map_or(&[][..], |pools| pools);
        let vols = pools.iter().find(|pool| pool["name"] == "vols");
        vols.is_some_and(|pool| pool["whole"] == pool["buckets"])
    });
    cluster.end(0, "-KILL");
    cluster.end(2, "-KILL");
    (0..3).for_each(|at| cluster.up(at));
    check_all(&mut connect(ports[1]));
}

/// Rots every eleventh page of a node's page file, the first and its header not.
fn rot(cluster: &Cluster, at: usize) {
    let path = cluster.nodes[at].data.join("disk/pages");
    let file = std::fs::File::options().write(true).open(path);
    let file = file.expect("a page file");
    let pages = file.metadata().expect("a file").len() / PAGE;
    for page in (11..pages).step_by(11) {
        file.write_all_at(b"ROT!", page * PAGE + 1000)
            .expect("written");
    }
}

/// Pages rot on one node's disk: it shows nobody what it reads there, ends, and is mended from the other copy when it comes back.
#[test]
fn a_node_whose_pages_have_rotted_ends_and_is_mended_from_others() {
    let (mut cluster, ports) = start(3);
    make_volume(&cluster, "1+1");
    let mut client = connect(ports[0]);
    write_all(&mut client);
    let of = disks(&cluster, 0);
    let keeps = |disk: &serde_json::Value| disk["used_bytes"].as_u64() > Some(10 << 20);
    cluster.wait_for("its pages are saved", 0, |s| {
        let nodes = s["nodes"].as_array().map_or(&[][..], |nodes| nodes);
        nodes
            .iter()
            .filter(|node| keeps(&node["facts"]["disks"][0]))
            .count()
            == 2
    });
    let victim = of.iter().position(keeps).expect("a node with a bucket");
    rot(&cluster, victim);
    let through = (victim + 1) % 3;
    // All members' pages are read.
    let until = Instant::now() + PATIENCE;
    let ended = loop {
        cluster.run(through, &["scrub"]);
        let child = cluster.nodes[victim]
            .child
            .as_mut()
            .expect("it was started");
        if let Some(ended) = child.try_wait().expect("a child") {
            break ended;
        }
        assert!(Instant::now() < until, "it goes on");
    };
    assert_eq!(ended.code(), Some(1));
    let log = std::fs::read_to_string(cluster.folder.path().join(format!("{victim}.log")));
    let log = log.expect("a log");
    assert!(log.contains("is damaged at place"), "{log}");
    check_all(&mut connect(ports[through]));
    cluster.nodes[victim].child = None;
    cluster.up(victim);
    cluster.wait_for("it is back and whole", through, |s| {
        let pools = s["pools"].as_array().map_or(&[][..], |pools| pools);
        let nodes = s["nodes"].as_array().map_or(&[][..], |nodes| nodes);
        pools.iter().all(|pool| pool["whole"] == pool["buckets"])
            && nodes.iter().all(|node| node["up"] == true)
    });
    check_all(&mut connect(ports[through]));
}
