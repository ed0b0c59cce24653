//! A volume's map, as the NBD door tells it: holes, and what was written.

use std::time::Duration;

use staves_model::CHUNK_BYTES;
use staves_testkit::cluster::TestCluster;
use staves_testkit::nbd::NbdMap;

use crate::memory::pattern;
use crate::volumes::{MIB, cluster, connect, create, nbd};

const CHUNK: u32 = CHUNK_BYTES as u32;
/// The states of extents.
const DATA: u32 = 0;
const HOLE: u32 = 3;

fn map(cluster: &TestCluster, node: usize, name: &str) -> NbdMap {
    NbdMap::connect(nbd(cluster, node), name).expect("it connects")
}

/// All extents of a range, by as many questions as it takes; neighbours in one.
fn whole(map: &mut NbdMap, (mut at, end): (u64, u64), one: bool) -> Vec<(u64, u32)> {
    let mut all: Vec<(u64, u32)> = Vec::new();
    while at < end {
        let len = (end - at).min(4 << 30) - 1;
        let told = map.extents(at, len as u32 + 1, one).expect("extents");
        assert!(!told.is_empty() && told.len() <= if one { 1 } else { 1024 });
        for (len, state) in told {
            at += u64::from(len);
            match all.last_mut() {
                Some((before, kind)) if *kind == state => *before += u64::from(len),
                _ => all.push((len.into(), state)),
            }
        }
        assert!(at <= end, "no further than was asked");
    }
    all
}

#[test]
fn what_was_never_written_or_was_trimmed_is_a_hole() {
    for scheme in ["1+1", "2+1"] {
        let (cluster, client) = cluster(3, scheme);
        let size = 300 * MIB + 700;
        create(&cluster, &client, "v", size);
        let mut maps = [map(&cluster, 1, "v"), map(&cluster, 2, "v")];
        for map in &mut maps {
            assert_eq!(whole(map, (0, size), false), [(size, HOLE)]);
        }
        let mut a = connect(&cluster, 0, "v");
        // Over the border of two chunks, three in a row, and the end.
        a.write(10 * MIB - 5, &pattern(1, 10)).expect("written");
        a.write(200 * MIB, &pattern(2, 3 * CHUNK as usize))
            .expect("written");
        a.write(size - 1, b"x").expect("written");
        let [chunk, end] = [CHUNK_BYTES, size - 300 * MIB];
        let written = [
            (10 * MIB - chunk, HOLE),
            (2 * chunk, DATA),
            (190 * MIB - chunk, HOLE),
            (3 * chunk, DATA),
            (100 * MIB - 3 * chunk, HOLE),
            (end, DATA),
        ];
        for map in &mut maps {
            assert_eq!(whole(map, (0, size), false), written, "{scheme}");
            assert_eq!(whole(map, (0, size), true), written, "{scheme}");
        }
        let [map, _] = &mut maps;
        let within = map.extents(10 * MIB - 1000, 2000, false).expect("told");
        assert_eq!(within, [(2000, DATA)]);
        let within = map.extents(10 * MIB + chunk - 1000, 2000, false);
        assert_eq!(within.expect("told"), [(1000, DATA), (1000, HOLE)]);
        // What is answered is seen at every door: zeroes that are not a whole chunk stay allocated.
        a.trim(200 * MIB + 9, 2 * CHUNK).expect("trimmed");
        a.zero(10 * MIB - chunk, CHUNK + 5).expect("zeroed");
        let trimmed = [
            (10 * MIB, HOLE),
            (chunk, DATA),
            (190 * MIB - chunk, HOLE),
            (chunk, DATA),
            (chunk, HOLE),
            (chunk, DATA),
            (100 * MIB - 3 * chunk, HOLE),
            (end, DATA),
        ];
        for map in &mut maps {
            assert_eq!(whole(map, (0, size), false), trimmed, "{scheme}");
        }
        let beyond = maps[0].extents(size - 10, 11, false).expect_err("too far");
        assert_eq!(beyond.number(), Some(22));
    }
}

#[test]
fn a_volume_in_shreds_is_told_in_parts() {
    let (cluster, client) = cluster(2, "1+0");
    let size = 200 * MIB;
    create(&cluster, &client, "v", size);
    let mut a = connect(&cluster, 0, "v");
    for chunk in (0..1100).step_by(2) {
        a.write(chunk * CHUNK_BYTES, b"x").expect("written");
    }
    let mut map = map(&cluster, 1, "v");
    let told = map.extents(0, size as u32, false).expect("told");
    assert_eq!(told.len(), 1024);
    let all = (0..1100).map(|chunk| match chunk {
        1099 => (size - 1099 * CHUNK_BYTES, HOLE),
        chunk if chunk % 2 == 0 => (CHUNK_BYTES, DATA),
        _ => (CHUNK_BYTES, HOLE),
    });
    let all: Vec<_> = all.collect();
    for one in [false, true] {
        assert_eq!(whole(&mut map, (0, size), one), all);
    }
}

#[test]
fn a_map_waits_for_the_node_that_is_to_tell_it() {
    let (mut cluster, client) = cluster(4, "1+1");
    let size = 130 * MIB;
    create(&cluster, &client, "v", size);
    let mut a = connect(&cluster, 0, "v");
    let places: Vec<u64> = (0..10).map(|i| 13 * i * MIB).collect();
    for at in &places {
        a.write(*at, &pattern(*at, 5000)).expect("written");
    }
    let mut map = map(&cluster, 0, "v");
    let before = whole(&mut map, (0, size), false);
    assert_eq!(before.len(), 20);
    cluster.nodes[1].pause(Duration::from_millis(300));
    cluster.nodes[3].kill();
    for one in [false, true] {
        assert_eq!(whole(&mut map, (0, size), one), before);
    }
}
