//! Regions against real nodes: bytes spread over all of them, and nodes that die meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use staves_client::{Client, ClientError, ErrorCode, Region};
use staves_model::{CHUNK_BYTES, Change, ClusterMap, Medium, NodeId, PoolKind, stretch_unit};
use staves_wire::Message;
use staves_wire::admin::NodeTarget;

use staves_testkit::cluster::TestCluster;
use staves_testkit::wait_until;

pub(crate) const POOL: &str = "memory";

pub(crate) fn cluster_with_pool(nodes: usize, scheme: &str) -> (TestCluster, Client) {
    let cluster = TestCluster::start(nodes);
    make_pool(&cluster, POOL, scheme, 24 << 20);
    let client = cluster.native_client();
    (cluster, client)
}

pub(crate) fn make_pool(cluster: &TestCluster, name: &str, scheme: &str, node_budget_bytes: u64) {
    let change = Change::CreatePool {
        name: name.into(),
        kind: PoolKind::Memory {
            regions: Vec::new(),
        },
        scheme: scheme.parse().expect("a scheme"),
        medium: Medium::Ram,
        node_budget_bytes,
        buckets: 0,
        may_start_empty: false,
    };
    cluster.nodes[0].propose(&change).expect("a pool");
}

/// Bytes that tell where they come from.
pub(crate) fn pattern(seed: u64, len: usize) -> Bytes {
    let byte = |i: u64| (seed.wrapping_mul(31).wrapping_add(i * 7 + i / 251)) as u8;
    (0..len as u64).map(byte).collect()
}

pub(crate) fn code(result: Result<impl std::fmt::Debug, ClientError>) -> (ErrorCode, String) {
    match result {
        Err(error) => (error.code(), error.to_string()),
        Ok(done) => panic!("it was done: {done:?}"),
    }
}

/// Rows H1 and H2: flat memory over groups m+k, written and read at any place and length.
fn any_alignment(scheme: &str, m: u8) {
    let (cluster, client) = cluster_with_pool(3, scheme);
    cluster.nodes[0].runtime().block_on(async {
        let size = 2 * stretch_unit(m) + 12_345;
        let region = client
            .create_region(POOL, "r", size)
            .await
            .expect("a region");
        let groups = region.stat().await.expect("its entry").groups;
        assert_eq!(groups.len(), 3, "whole groups");
        assert!(
            region
                .read(size - 5000, 5000)
                .await
                .expect("zeroes")
                .iter()
                .all(|b| *b == 0)
        );

        let ranges = [
            (0, 1),
            (CHUNK_BYTES - 3, 7),
            (3 * CHUNK_BYTES + 100, 300_000),
            (2 * stretch_unit(m) - 4097, 10_000),
            (size - 1, 1),
        ];
        for (seed, (offset, len)) in (0..).zip(ranges) {
            region
                .write(offset, pattern(seed, len))
                .await
                .expect("a write");
        }
        for (seed, (offset, len)) in (0..).zip(ranges) {
            let got = region.read(offset, len as u64).await.expect("a read");
            assert!(got == pattern(seed, len), "{len} bytes at {offset}");
        }
        let around = region.read(3 * CHUNK_BYTES, 200).await.expect("a read");
        assert!(around[..100].iter().all(|b| *b == 0) && around[100..] == pattern(2, 100));

        // Many at once, in any order of offsets.
        let writes = vec![(9_000_000, pattern(8, 70_000)), (1 << 20, pattern(9, 3))];
        region.write_many(writes).await.expect("both");
        let got = region
            .read_many(&[(1 << 20, 3), (9_000_000, 70_000), (0, 1)])
            .await;
        let expected = [pattern(9, 3), pattern(8, 70_000), pattern(0, 1)];
        assert_eq!(got.expect("all"), expected);

        assert_eq!(region.fetch_add(4096, 5).await.expect("a word"), 0);
        assert_eq!(
            region.compare_and_swap(4096, 5, 7).await.expect("a word"),
            5
        );
        assert_eq!(
            region.compare_and_swap(4096, 5, 9).await.expect("a word"),
            7,
            "not done"
        );
        assert_eq!(
            region.read(4096, 8).await.expect("a word")[..],
            7u64.to_le_bytes()
        );
    });
}

#[test]
fn h1_h2_a_region_of_two_and_one_is_read_and_written_at_any_place() {
    any_alignment("2+1", 2);
}

#[test]
fn a_region_of_copies_is_read_and_written_at_any_place() {
    any_alignment("1+1", 1);
}

/// Each wrong request gets one clear error, and nothing else changes.
#[test]
fn what_is_wrong_with_a_request_is_said() {
    let (cluster, client) = cluster_with_pool(3, "2+1");
    cluster.nodes[0].runtime().block_on(async {
        let region = client
            .create_region(POOL, "r", 100_000)
            .await
            .expect("a region");
        let r = &region;
        for (result, says) in [
            (r.read(0, 0).await.map(drop), "0 bytes"),
            (r.write(5, Bytes::new()).await, "0 bytes"),
            (r.read(99_999, 2).await.map(drop), "ends at 100000"),
            (r.read(u64::MAX, 2).await.map(drop), "ends at 100000"),
            (r.write(100_000, "x").await, "ends at 100000"),
            (r.fetch_add(12, 1).await.map(drop), "multiple of 8"),
            (
                r.compare_and_swap(99_996, 0, 1).await.map(drop),
                "multiple of 8",
            ),
            (
                r.write_many(vec![(10, pattern(1, 20)), (0, pattern(2, 11))])
                    .await,
                "overlap",
            ),
        ] {
            let (code, text) = code(result);
            assert_eq!(code, ErrorCode::Malformed, "{text}");
            assert!(text.contains(says), "{text}");
        }
        let again = client.create_region(POOL, "r", 1).await.map(drop);
        assert_eq!(code(again).0, ErrorCode::Refused);
        assert_eq!(
            code(client.region("x").await.map(drop)).0,
            ErrorCode::NotFound
        );
        let shrink = code(r.grow(10).await);
        assert!(shrink.1.contains("cannot shrink"), "{shrink:?}");
        let of_keys = code(client.create_region("cache", "s", 1).await.map(drop));
        assert!(of_keys.1.contains("holds keys"), "{of_keys:?}");
        assert!(
            r.read(0, 100_000)
                .await
                .expect("still there")
                .iter()
                .all(|b| *b == 0)
        );

        // Who uses it goes on while it grows, and is told when it is gone.
        let other = client.region("r").await.expect("the same");
        r.grow(3 * stretch_unit(2)).await.expect("more");
        other
            .write(2 * stretch_unit(2), "far")
            .await
            .expect("it has grown");
        region.delete().await.expect("deleted");
        let (code, text) = code(other.read(0, 1).await);
        assert_eq!(code, ErrorCode::NotFound);
        assert!(text.contains("'r' was deleted"), "{text}");
    });
    let change = Change::CreatePool {
        name: "wide".into(),
        kind: PoolKind::Memory { regions: vec![] },
        scheme: "4+1".parse().expect("a scheme"),
        medium: Medium::Ram,
        node_budget_bytes: 1 << 20,
        buckets: 0,
        may_start_empty: false,
    };
    cluster.nodes[0].propose(&change).expect("a pool");
    let region = Change::CreateRegion {
        pool: "wide".into(),
        name: "w".into(),
        size_bytes: 1,
    };
    let refusal = cluster.nodes[0].propose(&region).expect_err("three nodes");
    assert!(refusal.contains("needs 4 nodes, and 3"), "{refusal}");
}

#[test]
fn a_full_pool_refuses_and_goes_on_with_what_it_holds() {
    let cluster = TestCluster::start(3);
    make_pool(&cluster, POOL, "2+1", 2 << 20);
    let client = cluster.native_client();
    cluster.nodes[0].runtime().block_on(async {
        let region = client
            .create_region(POOL, "r", 64 << 20)
            .await
            .expect("a region");
        let mut done = 0;
        let (code, text) = loop {
            match region.write(done * CHUNK_BYTES, pattern(done, 1000)).await {
                Ok(()) => done += 1,
                Err(error) => break (error.code(), error.to_string()),
            }
            assert!(done < 200, "2 MiB of each of two nodes hold no more");
        };
        assert_eq!(code, ErrorCode::OutOfMemory, "{text}");
        assert!(text.contains("staves pool set"), "{text}");
        assert!(text.contains("; nothing was written"), "{text}");
        // Over what is there and on: what has its place is written, and it is said where to go on.
        let (there, more) = ((done * CHUNK_BYTES) as usize, 3 * CHUNK_BYTES as usize);
        let long = region.write(0, vec![7; there + more]).await;
        let (code, text) = (code_of(&long), format!("{long:?}"));
        assert_eq!(code, Some(ErrorCode::OutOfMemory), "{text}");
        assert!(
            text.contains("go on there") && !text.contains("nothing"),
            "{text}"
        );
        for chunk in 0..done {
            region
                .write(chunk * CHUNK_BYTES, pattern(chunk, 1000))
                .await
                .expect("its chunk has its place");
        }
        for chunk in 0..done {
            let got = region
                .read(chunk * CHUNK_BYTES, 1000)
                .await
                .expect("it is there");
            assert!(got == pattern(chunk, 1000));
        }
        region
            .write(7, "still")
            .await
            .expect("its chunk has its place");
    });
}

fn code_of(result: &Result<(), staves_client::ClientError>) -> Option<ErrorCode> {
    result.as_ref().err().map(staves_client::ClientError::code)
}

/// One writer's part of a region: whole pages, each with the number of its last write.
async fn write_on(
    region: Region,
    writer: u64,
    stop: tokio::sync::watch::Receiver<bool>,
) -> Vec<u64> {
    const PAGES: u64 = 64;
    let mut last = vec![0; PAGES as usize];
    let mut number = 0;
    while !*stop.borrow() {
        number += 1;
        let page = number * 37 % PAGES;
        let offset = page_of(writer, page);
        let bytes = pattern(number, 4096);
        region
            .write(offset, bytes)
            .await
            .expect("the deadline is long");
        last[page as usize] = number;
        let other = (number * 11 + 5) % PAGES;
        let got = region
            .read(page_of(writer, other), 4096)
            .await
            .expect("a read");
        check_page(&got, last[other as usize]);
    }
    last
}

/// Pages of one writer, spread over chunks, so that no two writers share one.
fn page_of(writer: u64, page: u64) -> u64 {
    page * CHUNK_BYTES + writer * 4096
}

fn check_page(got: &Bytes, number: u64) {
    match number {
        0 => assert!(got.iter().all(|b| *b == 0)),
        number => assert!(*got == pattern(number, 4096), "write {number}"),
    }
}

/// Kills so many nodes that hold data buckets while four writers write and read; they go on, and nothing that was
/// acknowledged is lost. Then the dead node's bytes are rebuilt elsewhere, and another may die.
fn kills_under_load(scheme: &str, nodes: usize, at_once: usize) {
    let rounds = if at_once == 1 { 2 } else { 1 };
    kills_in_rounds(cluster_with_pool(nodes, scheme), rounds, at_once, true);
}

fn kills_in_rounds(
    (mut cluster, client): (TestCluster, Client),
    rounds: u64,
    at_once: usize,
    rebuilds: bool,
) {
    let mut adds = 0;
    for round in 0..rounds {
        let region = cluster.nodes[0].runtime().block_on(async {
            match round {
                0 => client.create_region(POOL, "r", 16 << 20).await,
                _ => client.region("r").await,
            }
        });
        let region = region.expect("a region");
        let entry = cluster.nodes[0].map();
        let group = entry.region_named("r").expect("made").1.stretches[0].first;
        wait_until("its group is open", || {
            cluster.nodes[0].map().groups[&group].open
        });
        // Not the first node: the clients run there.
        let members = cluster.nodes[0].map().groups[&group].members.clone();
        let held = members
            .iter()
            .flatten()
            .map(|x| cluster.position(x.id.node));
        let victims: Vec<usize> = held.filter(|at| *at != 0).take(at_once).collect();
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let runtime = cluster.nodes[0].runtime().handle().clone();
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                runtime.spawn(write_on(
                    region.clone(),
                    round * 4 + writer,
                    stopped.clone(),
                ))
            })
            .collect();
        let counter = region.clone();
        let mut stopped = stopped.clone();
        let adder = runtime.spawn(async move {
            let mut done = 0u64;
            while !*stopped.borrow_and_update() {
                counter
                    .fetch_add(8 << 20, 1)
                    .await
                    .expect("the deadline is long");
                done += 1;
            }
            done
        });
        std::thread::sleep(Duration::from_millis(700));
        victims.iter().for_each(|at| cluster.nodes[*at].kill());
        std::thread::sleep(Duration::from_secs(3));
        stop.send(true).expect("somebody listens");
        runtime.block_on(async {
            for (writer, task) in (0..).zip(writers) {
                let last = task.await.expect("a writer");
                assert!(last.iter().sum::<u64>() > 0, "it wrote");
                for (page, number) in (0..).zip(last) {
                    let offset = page_of(round * 4 + writer, page);
                    let got = region.read(offset, 4096).await.expect("a read");
                    check_page(&got, number);
                }
            }
            adds += adder.await.expect("the counter");
            let count = region.fetch_add(8 << 20, 0).await.expect("a word");
            assert_eq!(count, adds, "each took effect once");
        });
        let rebuilt = || {
            let map = cluster.nodes[0].map();
            let group = &map.groups[&group];
            let whole = |x: &staves_model::Member| x.complete && map.runs(x.id);
            let width = members.len();
            group.open && group.members.iter().flatten().filter(|x| whole(x)).count() == width
        };
        match rebuilds {
            true => drop(wait_until("what it held is whole again", rebuilt)),
            false => assert!(
                !rebuilt(),
                "all was answered before anything else was rebuilt"
            ),
        }
    }
}

/// Rows H5, H6 and H7: 2+1 survives a death, answers while it rebuilds, and then survives another. Where nodes rebuild
/// nothing by themselves, what is asked for is rebuilt all the same.
#[test]
fn h5_h6_h7_nodes_die_under_load_and_a_coded_region_goes_on() {
    kills_under_load("2+1", 5, 1);
    let cluster = TestCluster::start_with(5, |_, config| config.rebuild_pages_max = 0);
    make_pool(&cluster, POOL, "2+1", 24 << 20);
    let client = cluster.native_client();
    kills_in_rounds((cluster, client), 1, 1, false);
}

#[test]
fn d4_h7_nodes_die_under_load_and_a_region_of_copies_goes_on() {
    kills_under_load("1+1", 4, 1);
}

/// Row H5: what two lost members held is made in one go, while it is used.
#[test]
fn h5_two_members_of_two_and_two_die_at_once() {
    kills_under_load("2+2", 6, 2);
}

/// Row H10: parity is added and given up while a region is written; it bears the losses that it says.
#[test]
fn h10_k_of_a_region_is_raised_while_it_is_written() {
    let (mut cluster, client) = cluster_with_pool(5, "2+1");
    let runtime = cluster.nodes[0].runtime().handle().clone();
    let region = runtime.block_on(client.create_region(POOL, "r", 16 << 20));
    let region = region.expect("a region");
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let writer = runtime.spawn(write_on(region.clone(), 0, stopped));
    let set = |scheme: &str| Change::SetPool {
        name: POOL.into(),
        scheme: Some(scheme.parse().expect("a scheme")),
        node_budget_bytes: None,
    };
    let members = |cluster: &TestCluster| {
        let map = cluster.nodes[0].map();
        let entry = map.region_named("r").expect("made").1.stretches[0].first;
        let group = &map.groups[&entry];
        let whole = group.members.iter().flatten().filter(|x| x.complete);
        let nodes: Vec<usize> = whole.map(|x| cluster.position(x.id.node)).collect();
        (nodes, group.open)
    };
    cluster.nodes[0].propose(&set("2+2")).expect("one more");
    wait_until("there are four members", || {
        let (nodes, open) = members(&cluster);
        open && nodes.len() == 4
    });
    let (nodes, _) = members(&cluster);
    let victims: Vec<usize> = nodes.into_iter().filter(|at| *at != 0).take(2).collect();
    victims.iter().for_each(|at| cluster.nodes[*at].kill());
    std::thread::sleep(Duration::from_secs(2));
    stop.send(true).expect("somebody listens");
    runtime.block_on(async {
        for (page, number) in (0..).zip(writer.await.expect("the writer")) {
            let got = region.read(page_of(0, page), 4096).await.expect("a read");
            check_page(&got, number);
        }
    });
}

/// The number of losses that the weakest group bears; none where the map names no group yet.
fn bears(map: &ClusterMap) -> Option<u8> {
    let regions = map.groups.values().filter(|g| g.m > 1);
    let each = regions.map(|g| g.tolerates(|id| map.runs(id)));
    each.min().flatten()
}

/// Row X5: who holds a data bucket is drained under writes; the group bears a loss all the time, and when nothing
/// names the node any more, one.
#[test]
fn x5_a_drain_costs_a_coded_region_no_tolerance() {
    let (mut cluster, client) = cluster_with_pool(4, "2+1");
    let runtime = cluster.nodes[0].runtime();
    let region = runtime.block_on(client.create_region(POOL, "r", stretch_unit(2)));
    let region = region.expect("a region");
    // Over and over the same 18 MiB: however long a drain takes, a node's 24 MiB hold them.
    let write = |seed: u64| {
        let at = (seed % 180) * 97_003;
        let done = runtime.block_on(region.write(at, pattern(seed, 50_000)));
        done.expect("a write");
        at
    };
    wait_until("the region is whole", || {
        bears(&cluster.nodes[0].map()) == Some(1)
    });
    for seed in 0..60 {
        write(seed);
    }

    let map = cluster.nodes[0].map();
    let group = map.groups.values().find(|g| g.m > 1).expect("a group");
    let data = group.members[1].expect("a data bucket").id.node;
    let drain = |on| cluster.nodes[0].propose(&Change::Drain { node: data, on });
    drain(true).expect("drained");
    // At every change: it does not last for longer than the node takes to fill.
    let beside = Arc::new(AtomicBool::new(false));
    let (mut maps, saw) = (cluster.nodes[0].maps(), beside.clone());
    runtime.spawn(async move {
        while maps.changed().await.is_ok() {
            let map = maps.borrow_and_update();
            if map.groups.values().any(|g| g.members.len() > 16) {
                saw.store(true, Ordering::Relaxed);
            }
        }
    });
    let mut seed = 60;
    wait_until("nothing depends on it", || {
        write(seed);
        seed += 1;
        let map = cluster.nodes[0].map();
        assert_eq!(bears(&map), Some(1), "{:?}", map.groups);
        !map.groups.values().any(|g| g.m > 1 && g.names(data))
    });
    assert!(beside.load(Ordering::Relaxed), "somebody stood beside it");
    let last = write(seed);

    // With the node taken in again it bears another loss, and what was written while it moved is there.
    drain(false).expect("resumed");
    let map = cluster.nodes[0].map();
    let group = map.groups.values().find(|g| g.m > 1).expect("a group");
    let nodes = group.listed().map(|(_, x)| x.id.node);
    let dies = nodes.map(|n| cluster.position(n)).find(|at| *at != 0);
    cluster.nodes[dies.expect("one of three")].kill();
    let runtime = cluster.nodes[0].runtime();
    let got = runtime.block_on(region.read(last, 50_000)).expect("a read");
    assert!(got == pattern(seed, 50_000));
}

/// Regression: two nodes were stopped one right after the other, and a region was lost without a word.
#[test]
fn a_stop_that_would_lose_a_region_is_refused() {
    let (cluster, client) = cluster_with_pool(3, "2+1");
    let runtime = cluster.nodes[0].runtime();
    let region = runtime.block_on(client.create_region(POOL, "r", stretch_unit(2)));
    region.expect("a region");
    wait_until("the region is whole", || {
        // Each of them knows.
        cluster.nodes.iter().all(|c| bears(&c.map()) == Some(1))
    });
    // Through any node. These do not stop, but nobody knows that: they were told that they may.
    let stop = |node: usize| {
        let node = cluster.nodes[node].id;
        cluster.nodes[0].ask(&Message::NodeStop(NodeTarget { node }))
    };
    let (one, two) = std::thread::scope(|scope| {
        let one = scope.spawn(|| stop(1));
        let two = scope.spawn(|| stop(2));
        (one.join().expect("asked"), two.join().expect("asked"))
    });
    let refused = match (&one, &two) {
        (Message::Done, Message::Error(refused)) | (Message::Error(refused), Message::Done) => {
            refused
        }
        other => panic!("one of them: {other:?}"),
    };
    assert_eq!(refused.code, ErrorCode::Refused);
    for part in ["pool 'memory'", "2 members", "drain", "--force"] {
        assert!(refused.text.contains(part), "{part}: {}", refused.text);
    }
    let forced = Message::NodeStopForced(NodeTarget { node: NodeId(3) });
    assert_eq!(cluster.nodes[0].ask(&forced), Message::Done);
}

/// Row H6: a page that a client waits for is asked for at once. Regression: what a read asked other nodes for
/// was sent with the node's next look at the clock.
#[test]
fn h6_a_missing_page_does_not_wait_for_the_clock() {
    let tick = Duration::from_millis(300);
    let mut cluster = TestCluster::start_with(5, |_, config| {
        config.tick_ms = staves_node::config::Millis(tick.as_millis() as u64);
        config.lease_ms = staves_node::config::Millis(4 * config.tick_ms.0);
        config.rebuild_pages_max = 0;
    });
    make_pool(&cluster, POOL, "2+2", 24 << 20);
    let client = cluster.native_client();
    let runtime = cluster.nodes[0].runtime().handle().clone();
    let chunks = 32;
    let region = runtime.block_on(async {
        let region = client.create_region(POOL, "r", chunks * CHUNK_BYTES).await;
        let region = region.expect("a region");
        let bytes = pattern(3, (chunks * CHUNK_BYTES) as usize);
        region.write(0, bytes).await.expect("all of it");
        region
    });
    let map = cluster.nodes[0].map();
    let group = map.region_named("r").expect("made").1.stretches[0].first;
    let slots = 0..2u8;
    let home = |slot| map.groups[&group].member(staves_model::MemberSlot(slot));
    let homes: Vec<usize> = slots
        .filter_map(home)
        .map(|x| cluster.position(x.id.node))
        .collect();
    let lost = (0..2).find(|slot| homes[*slot] != 0).expect("one of two");
    cluster.nodes[homes[lost]].kill();
    let all = pattern(3, (chunks * CHUNK_BYTES) as usize);
    let mut took: Vec<Duration> = (0..chunks)
        .filter(|chunk| *chunk as usize % 2 == lost)
        .map(|chunk| {
            let (offset, begun) = (chunk * CHUNK_BYTES, std::time::Instant::now());
            let got = runtime
                .block_on(region.read(offset, 4096))
                .expect("rebuilt");
            assert!(got == all[offset as usize..][..4096]);
            begun.elapsed()
        })
        .collect();
    took.sort();
    assert!(took[took.len() / 2] < tick / 3, "{took:?}");
}

/// A region was deleted, and another has its name by now: who still holds the first changes nothing of the second.
#[test]
fn a_handle_of_a_region_that_is_gone_changes_no_other_of_its_name() {
    let (cluster, first) = cluster_with_pool(3, "2+1");
    let second = cluster.native_client();
    let runtime = cluster.nodes[0].runtime();
    runtime.block_on(async {
        let old = first.create_region(POOL, "r", 1 << 20).await.expect("made");
        let same = second.region("r").await.expect("it is there");
        same.delete().await.expect("deleted");
        let new = second.create_region(POOL, "r", 1 << 20).await;
        let new = new.expect("made anew");
        for result in [old.grow(2 << 20).await, old.protect().await] {
            assert_eq!(code(result).0, ErrorCode::NotFound);
        }
        assert_eq!(code(old.delete().await).0, ErrorCode::NotFound);
        let stat = new.stat().await.expect("it is still there");
        assert_eq!((stat.size_bytes, stat.loading), (1 << 20, false));
        // Who asks for it by name gets the new one, whatever map is at hand.
        let found = first.region("r").await.expect("it is there");
        found.delete().await.expect("deleted");
        assert!(new.stat().await.is_err());
    });
}
