//! Volumes that are far larger than their nodes: they take up what was written.

use staves_testkit::free_ports;
use staves_testkit::nbd::NbdMap;

use super::Cluster;
use super::disks::connect;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const CHUNK: u64 = 64 << 10;

/// Nodes with a disk of 256 MiB and the NBD door, a pool that may have 200 MiB of each, and a volume of 200 GiB; the doors' ports.
fn start() -> (Cluster, Vec<u16>) {
    let ports = free_ports(3);
    let before = |port: &u16| {
        format!("export STAVES_DISK=256MiB STAVES_DISK_MEMORY=16MiB STAVES_NBD=127.0.0.1:{port}")
    };
    let before: Vec<String> = ports.iter().map(before).collect();
    let cluster = Cluster::start_after(&before);
    done(
        &cluster,
        "pool create vols --kind memory --medium disk --memory 200MiB --scheme 1+1",
    );
    done(
        &cluster,
        "volume create disk --size 200GiB --pool vols -o json",
    );
    (cluster, ports)
}

fn done(cluster: &Cluster, command: &str) -> serde_json::Value {
    let args: Vec<&str> = command.split(' ').collect();
    let ran = cluster.run(1, &args);
    assert_eq!(ran.code, Some(0), "{command}: {}", ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap_or_default()
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let words = (0..len as u64 / 8 + 1).map(|i| (i + 1).wrapping_mul(2 * seed + 0x9E37_79B9));
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes[..len].to_vec()
}

#[test]
fn a_volume_of_200_gib_keeps_what_it_was_given_and_grows() {
    let (mut cluster, ports) = start();
    let shown = done(&cluster, "volume show disk -o json");
    assert_eq!(shown["groups"].as_array().map(Vec::len), Some(200));
    let buckets = serde_json::json!([{"groups": 200, "bytes": GIB}]);
    assert_eq!(shown["data_buckets"], buckets);
    let mut client = connect(ports[1]);
    let middle = 100 * GIB;
    let places = [
        (0, 3 * MIB as usize),
        (middle - 5, 2 * MIB as usize),
        (200 * GIB - 5 * MIB, 5 * MIB as usize),
    ];
    for (seed, (offset, len)) in places.into_iter().enumerate() {
        client
            .write(offset, &pattern(seed as u64, len))
            .expect("written");
    }
    client.flush().expect("flushed");
    let check = |client: &mut staves_testkit::nbd::NbdClient| {
        for (seed, (offset, len)) in places.into_iter().enumerate() {
            let read = client.read(offset, len).expect("read");
            assert!(read == pattern(seed as u64, len), "{len} at {offset}");
        }
        assert_eq!(client.read(150 * GIB, 9).expect("read"), [0; 9]);
    };
    cluster.end(0, "-KILL");
    check(&mut connect(ports[2]));
    cluster.up(0);
    cluster.wait_for("all is whole again", 1, is_whole);
    done(&cluster, "volume grow disk --size 201GiB");
    let shown = done(&cluster, "volume show disk -o json");
    let buckets = serde_json::json!([{"groups": 201, "bytes": GIB}]);
    assert_eq!(shown["data_buckets"], buckets);
    drop(client);
    let mut client = connect(ports[2]);
    assert_eq!(client.size_bytes, 201 * GIB);
    check(&mut client);
    // To the group that it grew by.
    client
        .write(201 * GIB - 9, &pattern(7, 9))
        .expect("written");
    check(&mut connect(ports[0]));
    let read = connect(ports[0]).read(201 * GIB - 9, 9).expect("read");
    assert_eq!(read, pattern(7, 9));
    let mut map = NbdMap::connect(([127, 0, 0, 1], ports[0]).into(), "disk").expect("connected");
    let extents = map.extents(201 * GIB - 2 * GIB, (2 * GIB) as u32, false);
    let expected = [
        (GIB - 5 * MIB, 3),
        (5 * MIB, 0),
        (GIB - CHUNK, 3),
        (CHUNK, 0),
    ];
    let expected = expected.map(|(len, state)| (len as u32, state));
    assert_eq!(extents.expect("told"), expected);
}

#[test]
fn what_a_large_volume_discards_is_there_again() {
    let (cluster, ports) = start();
    let mut client = connect(ports[1]);
    // With what the other copies take, twice as much as the pool has in all.
    for round in 0..10u64 {
        let at = (20 * round + 3) * GIB;
        for part in 0..15 {
            client
                .write(at + part * 4 * MIB, &pattern(round, 4 * MIB as usize))
                .expect("written");
        }
        let read = client.read(at + 56 * MIB, 4 * MIB as usize).expect("read");
        assert!(read == pattern(round, 4 * MIB as usize), "round {round}");
        client.trim(at, 60 * MIB as u32).expect("trimmed");
        assert_eq!(client.read(at, 4096).expect("read"), vec![0; 4096]);
    }
    drop(cluster);
}

fn is_whole(status: &serde_json::Value) -> bool {
    let pools = status["pools"].as_array().into_iter().flatten();
    let mut vols = pools.filter(|pool| pool["name"] == "vols");
    vols.next()
        .is_some_and(|pool| pool["whole"] == pool["buckets"])
}
