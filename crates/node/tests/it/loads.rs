//! Regions that grow and are loaded, against real nodes.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use staves_client::turn::ServiceOp;
use staves_client::{Client, ErrorCode};
use staves_hunts::{Hunt, hunt};
use staves_model::mutant::Mutant;
use staves_model::{Change, ClusterMap, GroupId, PoolId, ServiceId, stretch_unit};
use staves_testkit::cluster::TestCluster;
use staves_testkit::wait_until;
use staves_wire::memory::Action;
use staves_wire::service::{Address, Answer, PoolRef};

use super::memory::{POOL, cluster_with_pool, code, pattern};

/// Places around each end of a group's part of a region, and some between.
fn places(size: u64, unit: u64) -> impl Iterator<Item = u64> {
    let ends = (0..=size / unit).flat_map(move |n| [n * unit, (n * unit).saturating_sub(4096)]);
    let between = (0..size).step_by(7_777_777);
    ends.chain(between).filter(move |at| at + 4096 <= size)
}

/// Writes at a bucket's first byte without a look at the map of regions, as a client does whose map is old.
async fn write_at(client: &Client, pool: PoolId, to: Address, bytes: Bytes) -> Answer {
    let op = ServiceOp {
        to,
        body: Action::Write { offset: 0, bytes }.into_body(&mut BytesMut::new()),
        is_write: true,
        answer_bytes: 0,
    };
    let deadline = Instant::now() + Duration::from_secs(2);
    let pool = PoolRef::Id(pool);
    let answers = client.execute_for(ServiceId::MEMORY, &pool, vec![op], deadline);
    answers.await.expect("it was sent").pop().expect("one")
}

/// Row H11: a client whose map is older than a load writes nothing where it goes on.
#[test]
fn h11_others_write_nothing_where_a_load_goes_on_whatever_their_map() {
    let (cluster, client) = cluster_with_pool(3, "2+1");
    let other = cluster.native_client();
    cluster.nodes[0].runtime().block_on(async {
        let unit = stretch_unit(2);
        let region = client.create_region(POOL, "r", unit).await;
        let region = region.expect("a region");
        region.write(0, pattern(1, 4096)).await.expect("it marks");
        let map = client.refresh().await.expect("a map");
        let (pool, entry) = map.region_named("r").expect("made");
        let place = entry.place(0, 2).expect("within");
        let to = Address::Bucket(place.group, place.slot);
        other.refresh().await.expect("a map that knows the region");
        let execute = |bytes| write_at(&other, pool.id, to, bytes);
        assert_eq!(execute(pattern(2, 4096)).await, Answer::Ok);

        region.load(0, unit).await.expect("a load begins");
        let Answer::Error(code, text) = execute(pattern(3, 4096)).await else {
            panic!("the load is open to all")
        };
        assert_eq!(code, ErrorCode::Refused, "{text}");
        assert!(text.contains("staves memory protect r"), "{text}");
        let got = region.read(0, 4096).await.expect("a read");
        assert!(got == pattern(2, 4096), "nothing was done");
        region.write(0, pattern(4, 8192)).await.expect("its own");
        // Words are not loaded, not even by the one that loads.
        let word = region.fetch_add(8192, 1).await.map(drop);
        let (code, text) = super::memory::code(word);
        assert_eq!(code, ErrorCode::Refused, "{text}");

        region.protect().await.expect("it ends");
        assert_eq!(execute(pattern(5, 4096)).await, Answer::Ok);
        let got = region.read(0, 4096).await.expect("a read");
        assert!(got == pattern(5, 4096));
    });
}

#[test]
fn a_load_that_is_open_to_all_is_seen() {
    hunt(&[Hunt {
        mutant: Mutant::LoadOpenToAll,
        test: "loads::h11_others_write_nothing_where_a_load_goes_on_whatever_their_map",
        shows: "the load is open to all",
    }]);
}

/// Row H11: a client that does not mark a stretch before it writes there is refused, so that no load takes its bytes for none.
#[test]
fn h11_a_write_to_a_stretch_that_is_not_marked_is_refused() {
    let (cluster, client) = cluster_with_pool(3, "2+1");
    cluster.nodes[0].runtime().block_on(async {
        let region = client.create_region(POOL, "r", stretch_unit(2)).await;
        let region = region.expect("a region");
        let zeroes = region.read(0, 4096).await.expect("its group opens");
        assert!(zeroes.iter().all(|byte| *byte == 0));
        let map = client.refresh().await.expect("a map");
        let (pool, entry) = map.region_named("r").expect("made");
        let place = entry.place(0, 2).expect("within");
        let to = Address::Bucket(place.group, place.slot);
        let execute = |bytes| write_at(&client, pool.id, to, bytes);
        let Answer::Error(code, text) = execute(pattern(1, 4096)).await else {
            panic!("a write without a mark was done")
        };
        assert!(code.nothing_done() && text.contains("marked"), "{text}");
        let got = region.read(0, 4096).await.expect("a read");
        assert!(got == zeroes, "nothing was done");
        region
            .write(4096, pattern(2, 4096))
            .await
            .expect("it marks");
        wait_until("the node knows", || {
            cluster
                .nodes
                .iter()
                .all(|node| node.map().revision >= client.map().revision)
        });
        assert_eq!(execute(pattern(3, 4096)).await, Answer::Ok);
        let got = region.read(0, 4096).await.expect("a read");
        assert!(got == pattern(3, 4096));
    });
}

/// Row H2: the old bytes are read after each growth, within a group and by further ones.
#[test]
fn bytes_stay_where_they_are_while_a_region_grows_by_further_groups() {
    let (cluster, client) = cluster_with_pool(3, "2+1");
    let unit = stretch_unit(2);
    cluster.nodes[0].runtime().block_on(async {
        let region = client.create_region(POOL, "r", unit / 2).await;
        let region = region.expect("a region");
        let mut old = 0;
        for size in [unit / 2, unit, unit + 8192, 3 * unit + 5000, 4 * unit] {
            region.grow(size).await.expect("there are groups left");
            for at in places(size, unit).filter(|at| *at >= old) {
                let written = region.write(at, pattern(at, 4096)).await;
                written.expect("a write");
            }
            for at in places(size, unit) {
                let got = region.read(at, 4096).await.expect("a read");
                assert!(got == pattern(at, 4096), "byte {at} of {size}");
            }
            old = size;
        }
        let stat = region.stat().await.expect("its entry");
        assert_eq!(stat.groups.len(), 4);
    });
}

/// A region of before there were larger buckets grows by some, and its bytes lie on both sides of where they begin.
#[test]
fn a_region_of_small_buckets_grows_by_larger_ones() {
    const GIB: u64 = 1 << 30;
    let (cluster, client) = cluster_with_pool(3, "2+1");
    let border = 3 * stretch_unit(2);
    let old = Change::CreateRegion {
        pool: POOL.into(),
        name: "r".into(),
        size_bytes: border - 9,
    };
    cluster.nodes[0].propose(&old).expect("a region");
    cluster.nodes[0].runtime().block_on(async {
        let region = client.region("r").await.expect("made");
        region
            .write(border - 70_000, pattern(1, 60_000))
            .await
            .expect("written");
        region.grow(20 * GIB).await.expect("larger ones");
        let stat = region.stat().await.expect("its entry");
        let larger = (20 * GIB - border).div_ceil(GIB) as u32;
        assert_eq!(stat.bucket_bytes, [(3, 64 << 20), (larger, 512 << 20)]);
        let places = [border - 9_000, border + 64 * (1 << 20), 20 * GIB - 20_000];
        for at in places {
            region
                .write(at, pattern(at, 20_000))
                .await
                .expect("written");
        }
        let before = region.read(border - 70_000, 60_000).await.expect("read");
        assert!(before == pattern(1, 60_000));
        for at in places {
            let read = region.read(at, 20_000).await.expect("read");
            assert!(read == pattern(at, 20_000), "{at}");
        }
    });
}

fn parity(map: &ClusterMap, group: GroupId) -> usize {
    map.groups
        .get(&group)
        .map_or(0, |g| g.parity_slots().count())
}

/// Row H11: while a part of a region is loaded, k nodes die; all that was acknowledged elsewhere in it is there.
#[test]
fn h11_nodes_die_during_a_load_and_no_byte_outside_of_it_is_lost() {
    let (mut cluster, client) = cluster_with_pool(5, "2+2");
    let other = cluster.native_client();
    let runtime = cluster.nodes[0].runtime().handle().clone();
    let unit = stretch_unit(2);
    let (old, new) = (pattern(1, 3 << 20), pattern(2, 3 << 20));
    let region = runtime.block_on(async {
        let region = client.create_region(POOL, "r", unit).await;
        let region = region.expect("a region");
        region.write(5, old.clone()).await.expect("protected");
        region.grow(2 * unit).await.expect("another group");
        // What begins in the first group and ends in the second is loaded in the second only.
        let (from, len) = (unit - (1 << 20), 3 << 20);
        let bare = region.load(from, len).await.expect("a load begins");
        assert_eq!((bare.len(), &bare[0]), (1, &(unit..unit + (2 << 20))));
        region.write(from, new.clone()).await.expect("loaded");
        let same = other.region("r").await.expect("it is there");
        // Others write where there is parity, and nowhere else.
        same.write(4 << 20, pattern(3, 5000)).await.expect("logged");
        let refused = same.write(unit + (5 << 20), pattern(4, 5000)).await;
        let (code, text) = code(refused);
        assert_eq!(code, ErrorCode::Refused, "{text}");
        assert!(text.contains("staves memory protect r"), "{text}");
        // The one that loads keeps to what it said.
        let beyond = region.write(unit + (5 << 20), pattern(4, 5000)).await;
        assert!(beyond.is_err());
        region
    });
    let groups = runtime.block_on(region.stat()).expect("its entry").groups;
    wait_until("a node knows of it", || {
        let map = cluster.nodes[0].map();
        (parity(&map, groups[0]), parity(&map, groups[1])) == (2, 0)
    });
    let map = cluster.nodes[0].map();
    let members = map.groups[&groups[0]].listed();
    // Data first; the clients live at the first node.
    let places = members.map(|(_, x)| cluster.position(x.id.node));
    let victims: Vec<usize> = places.filter(|at| *at != 0).take(2).collect();
    victims.iter().for_each(|at| cluster.nodes[*at].kill());
    runtime.block_on(async {
        let got = region.read(5, 3 << 20).await.expect("rebuilt");
        assert!(got == old);
        let got = region.read(4 << 20, 5000).await.expect("rebuilt");
        assert!(got == pattern(3, 5000));
        let got = region.read(unit - (1 << 20), 1 << 20).await;
        assert!(got.expect("rebuilt") == new[..1 << 20]);
    });
}

/// Two that write a region for the first time at once, through maps that do not know of it yet.
#[test]
fn the_first_writes_of_a_region_need_not_agree() {
    let (cluster, client) = cluster_with_pool(3, "2+1");
    let unit = stretch_unit(2);
    let runtime = cluster.nodes[0].runtime().handle().clone();
    let clients: Vec<_> = (0..6).map(|_| cluster.native_client()).collect();
    runtime.block_on(async {
        let region = client.create_region(POOL, "r", 2 * unit).await;
        let region = region.expect("a region");
        let writers = (0..).zip(clients).map(|(at, client)| {
            tokio::spawn(async move {
                let region = client.region("r").await.expect("it is there");
                let at: u64 = at * (unit / 3);
                region.write(at, pattern(at, 5000)).await.expect("a write");
                at
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            let at = writer.await.expect("a writer");
            let got = region.read(at, 5000).await.expect("a read");
            assert!(got == pattern(at, 5000));
        }
        // It holds bytes now, and a load of a part of it is logged.
        let bare = region.load(0, unit - 1).await.expect("a load begins");
        assert!(bare.is_empty(), "{bare:?}");
        assert!(!region.stat().await.expect("its entry").loading);
    });
}

/// Row H11: a region of a protected pool is loaded without parity; then parity is made of the data in one
/// pass, and bears the loss of as many nodes as if every write had been logged.
#[test]
fn h11_a_region_is_loaded_without_parity_and_then_encoded() {
    let (mut cluster, client) = cluster_with_pool(5, "2+2");
    let runtime = cluster.nodes[0].runtime().handle().clone();
    let size = 6 << 20;
    let (region, groups) = runtime.block_on(async {
        let region = client.create_region(POOL, "r", size).await;
        let region = region.expect("a region");
        region.write(5, pattern(1, 100)).await.expect("protected");
        // All that it holds is overwritten.
        let bare = region.load(0, size).await.expect("a load begins");
        assert_eq!((bare.len(), &bare[0]), (1, &(0..size)));
        let stat = region.stat().await.expect("its entry");
        assert!(stat.loading && stat.settled);
        (region, stat.groups)
    });
    let parity = |cluster: &TestCluster| {
        let map = cluster.nodes[0].map();
        let slots = groups.iter().filter_map(|id| map.groups.get(id));
        slots.map(|g| g.parity_slots().count()).collect::<Vec<_>>()
    };
    wait_until("a node knows of it", || parity(&cluster) == [0]);
    runtime.block_on(async {
        region
            .write(0, pattern(2, size as usize))
            .await
            .expect("loaded");
        region.protect().await.expect("parity is made");
        let stat = region.stat().await.expect("its entry");
        assert!(!stat.loading && stat.settled);
    });
    wait_until("a node knows of it", || parity(&cluster) == [2]);
    let map = cluster.nodes[0].map();
    let members = map.groups[&groups[0]].listed();
    // The client lives at the first node.
    let places = members
        .map(|(_, x)| cluster.position(x.id.node))
        .filter(|at| *at != 0);
    let victims: Vec<usize> = places.take(2).collect();
    victims.iter().for_each(|at| cluster.nodes[*at].kill());
    let got = runtime.block_on(region.read(0, size)).expect("rebuilt");
    assert!(got == pattern(2, size as usize));
}

/// Regression: parity of a region that had lost a group during its load was "still being made" for ever.
#[test]
fn h11_a_group_that_is_lost_while_it_is_loaded_is_told_when_the_load_ends() {
    let (mut cluster, client) = cluster_with_pool(4, "2+1");
    let runtime = cluster.nodes[0].runtime().handle().clone();
    let (region, group) = runtime.block_on(async {
        let region = client.create_region(POOL, "r", 1 << 20).await;
        let region = region.expect("a region");
        region.load(0, 1 << 20).await.expect("a load begins");
        region.write(0, pattern(1, 1 << 20)).await.expect("loaded");
        let stat = region.stat().await.expect("its entry");
        (region, stat.groups[0])
    });
    let at_data = |cluster: &TestCluster| {
        let map = cluster.nodes[0].map();
        let mut nodes = map.groups[&group]
            .listed()
            .map(|(_, x)| cluster.position(x.id.node));
        nodes.find(|at| *at != 0).expect("two hold data")
    };
    let victim = at_data(&cluster);
    cluster.nodes[victim].kill();
    wait_until("the group is found lost", || {
        cluster.nodes[0].map().groups[&group].lost
    });
    let (code, text) = code(runtime.block_on(region.protect()));
    assert_eq!(code, ErrorCode::Lost, "{text}");
    for part in [
        "region 'r'",
        &format!("group {group}"),
        "staves memory delete r",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
