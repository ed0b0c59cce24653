//! Volumes with write-back: what was flushed is there after every crash, and a session whose unflushed writes may be gone is over.

use std::time::{Duration, Instant};

use staves_testkit::free_ports;
use staves_testkit::nbd::{NbdClient, NbdFailure};

use super::disks::connect;
use super::{Cluster, PATIENCE};

const BLOCK: usize = 4096;

/// Three nodes, the first of which has no disk: its door outlives the two that hold the volume.
fn start() -> (Cluster, Vec<u16>) {
    let ports = free_ports(3);
    let before = |(at, port): (usize, &u16)| {
        let disk = ["", "STAVES_DISK=96MiB "][at.min(1)];
        format!("export {disk}STAVES_NBD=127.0.0.1:{port}")
    };
    let before: Vec<String> = ports.iter().enumerate().map(before).collect();
    let cluster = Cluster::start_after(&before);
    for args in [
        "pool create vols --kind memory --medium disk --memory 60MiB --scheme 1+1",
        "volume create disk --size 40MiB --pool vols --cache writeback",
    ] {
        let made = cluster.run(0, &args.split(' ').collect::<Vec<_>>());
        assert_eq!(made.code, Some(0), "{}", made.stderr);
    }
    (cluster, ports)
}

fn block(byte: u8) -> Vec<u8> {
    vec![byte; BLOCK]
}

/// Reads through a new connection until the volume is served again.
fn read(port: u16, at: u64) -> Vec<u8> {
    let until = Instant::now() + PATIENCE;
    loop {
        match connect(port).read(at * BLOCK as u64, BLOCK) {
            Ok(bytes) => return bytes,
            Err(error) if Instant::now() > until => panic!("not after {PATIENCE:?}: {error:?}"),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn write(client: &mut NbdClient, at: u64, byte: u8) {
    let written = client.write(at * BLOCK as u64, &block(byte));
    written.expect("the session goes on");
}

#[test]
fn what_was_flushed_is_there_after_both_were_killed_and_the_session_is_over() {
    let (mut cluster, ports) = start();
    let shown = cluster.run(0, &["volume", "show", "disk", "-o", "json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown.stdout).expect("JSON");
    assert_eq!(shown["cache"], "writeback");
    let mut client = connect(ports[0]);
    write(&mut client, 0, 1);
    client.flush().expect("both have synced it");
    write(&mut client, 1, 2);
    for at in 1..3 {
        cluster.end(at, "-KILL");
    }
    (1..3).for_each(|at| cluster.up(at));
    // Whatever a process leaves to the system is there; with the power of both it could be gone, and nobody can tell.
    let until = Instant::now() + PATIENCE;
    loop {
        match client.flush() {
            Err(NbdFailure::Ended(_)) => break,
            // Its groups are not served yet.
            Err(error) => assert!(Instant::now() < until, "the connection goes on: {error:?}"),
            Ok(()) => panic!("a flush of a session that is over"),
        }
    }
    assert_eq!(read(ports[0], 0), block(1));
    // The next session begins anew.
    let mut client = connect(ports[0]);
    write(&mut client, 2, 3);
    client.flush().expect("a session of its own");
    assert_eq!(read(ports[0], 2), block(3));
}

#[test]
fn while_one_of_two_lives_on_all_that_was_answered_is_there_and_the_session_goes_on() {
    let (mut cluster, ports) = start();
    let mut client = connect(ports[0]);
    for (round, victim) in (0..).zip([1, 2, 1]) {
        for at in 0..40 {
            write(&mut client, at, round + 1);
        }
        cluster.end(victim, "-KILL");
        write(&mut client, 40, round + 1);
        for at in 0..41 {
            let bytes = client.read(at * BLOCK as u64, BLOCK);
            assert_eq!(bytes.expect("it reads"), block(round + 1), "block {at}");
        }
        client.flush().expect("the one that is left has synced it");
        cluster.up(victim);
        cluster.wait_for("all is whole", 0, |s| s["state"] == "healthy");
        client.flush().expect("and both");
    }
}

#[test]
fn a_pool_in_memory_has_no_volumes_with_write_back() {
    let cluster = Cluster::start(1);
    for (args, code) in [
        (
            "pool create vols --kind memory --memory 16MiB --scheme 1+0",
            0,
        ),
        (
            "volume create disk --size 1MiB --pool vols --cache writeback",
            1,
        ),
    ] {
        let ran = cluster.run(0, &args.split(' ').collect::<Vec<_>>());
        assert_eq!(ran.code, Some(code), "{args}: {}", ran.stderr);
        assert!(code == 0 || ran.stderr.contains("no disk to write back to"));
    }
}
