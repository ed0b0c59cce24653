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

/// A volume of two nodes, one of which keeps its pages on the disk alone: which two.
fn saved(cluster: &Cluster) -> (usize, usize) {
    let keeps = |disk: &serde_json::Value| disk["used_bytes"].as_u64() > Some(10 << 20);
    cluster.wait_for("its pages are saved", 0, |s| {
        let nodes = s["nodes"].as_array().map_or(&[][..], |nodes| nodes);
        let nodes = nodes.iter();
        nodes.filter(|n| keeps(&n["facts"]["disks"][0])).count() == 2
    });
    let of = disks(cluster, 0);
    let mut have = (0..of.len()).filter(|at| keeps(&of[*at]));
    let two = have.next().zip(have.next());
    two.expect("two nodes have the bucket")
}

fn log(cluster: &Cluster, at: usize) -> String {
    let log = std::fs::read_to_string(cluster.folder.path().join(format!("{at}.log")));
    log.expect("a log")
}

fn ended(cluster: &mut Cluster, at: usize) -> Option<std::process::ExitStatus> {
    let child = cluster.nodes[at].child.as_mut().expect("it was started");
    child.try_wait().expect("a child")
}

fn is_whole(status: &serde_json::Value) -> bool {
    let pools = status["pools"].as_array().map_or(&[][..], |pools| pools);
    pools.iter().all(|pool| pool["whole"] == pool["buckets"])
}

/// Pages rot on one node's disk: it shows nobody what it reads there, gives the bucket up, goes on, and is filled again from the other copy. Clients see nothing of it.
#[test]
fn pages_that_have_rotted_are_mended_from_the_other_copy_while_clients_go_on() {
    let (mut cluster, ports) = start(3);
    make_volume(&cluster, "1+1");
    let mut client = connect(ports[0]);
    write_all(&mut client);
    let (victim, other) = saved(&cluster);
    rot(&cluster, victim);
    check_all(&mut client);
    // All members' pages are read.
    let until = Instant::now() + PATIENCE;
    let bad = |cluster: &Cluster| {
        let disks = disks(cluster, other);
        disks
            .iter()
            .any(|disk| disk["bad_pages"].as_u64() > Some(0))
    };
    while !bad(&cluster) {
        cluster.run(other, &["scrub"]);
        assert!(Instant::now() < until, "{}", log(&cluster, victim));
    }
    check_all(&mut client);
    client.write(7, b"goes on").expect("written");
    client.write(7, &content(0)[7..14]).expect("written");
    cluster.wait_for("it is whole again", other, is_whole);
    assert_eq!(
        ended(&mut cluster, victim),
        None,
        "{}",
        log(&cluster, victim)
    );
    assert!(log(&cluster, victim).contains("is damaged at place"));
    let said = cluster.run(other, &["status"]).stdout;
    assert!(said.contains("could not be read"), "{said}");
    let scrubbed = cluster.run(other, &["scrub"]);
    assert_eq!(
        scrubbed.code,
        Some(0),
        "{}{}",
        scrubbed.stdout,
        scrubbed.stderr
    );
    cluster.end(other, "-KILL");
    check_all(&mut connect(ports[victim]));
    assert_eq!(
        ended(&mut cluster, victim),
        None,
        "{}",
        log(&cluster, victim)
    );
}

/// Reads a volume of the first node until that ends: the other one, which has its bytes too, has ended before.
fn read_until_it_ends(cluster: &mut Cluster, client: &mut NbdClient) {
    for at in 0..VOLUME_MIB {
        match client.read((at * MIB) as u64, MIB) {
            Ok(bytes) => assert!(bytes == content(at), "MiB {at}"),
            Err(_) => break,
        }
    }
    let until = Instant::now() + PATIENCE;
    let code = loop {
        if let Some(ended) = ended(cluster, 0) {
            break ended.code();
        }
        let status = || cluster.run(0, &["status", "-o", "json"]).stdout;
        assert!(Instant::now() < until, "{}{}", log(cluster, 0), status());
        std::thread::sleep(std::time::Duration::from_millis(100));
    };
    assert_eq!(code, Some(1));
    assert!(log(cluster, 0).contains("is damaged at place"));
    cluster.nodes[0].child = None;
}

/// The same of the only copy that there is: nothing may be given up, and nobody is shown such bytes, so the node ends. When it starts again it looks at
/// every page, and the other one fills it.
#[test]
fn a_node_whose_pages_have_rotted_ends_while_nobody_else_has_them() {
    let (mut cluster, ports) = start(2);
    make_volume(&cluster, "1+1");
    write_all(&mut connect(ports[0]));
    saved(&cluster);
    let mut client = connect(ports[0]);
    cluster.end(1, "-KILL");
    // It is silent long enough for that to be known.
    std::thread::sleep(std::time::Duration::from_secs(2));
    rot(&cluster, 0);
    read_until_it_ends(&mut cluster, &mut client);
}

/// The other copy ends a moment before a page is found to be bad, and nobody knows: the bucket is given up, and then there is none. What is on the disk comes back with the
/// node, which ends for that, and the other one has what is bad there.
#[test]
fn a_bucket_with_rotted_pages_that_nobody_else_has_comes_back_by_a_start() {
    let (mut cluster, ports) = start(2);
    make_volume(&cluster, "1+1");
    write_all(&mut connect(ports[0]));
    saved(&cluster);
    rot(&cluster, 0);
    let mut client = connect(ports[0]);
    cluster.end(1, "-KILL");
    read_until_it_ends(&mut cluster, &mut client);
    (0..2).for_each(|at| cluster.up(at));
    cluster.wait_for("it is whole again", 0, is_whole);
    check_all(&mut connect(ports[0]));
    cluster.end(1, "-KILL");
    check_all(&mut connect(ports[0]));
}
