//! Files, and nodes that give what cannot be theirs.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use staves_model::{
    Dataset, Holder, Holdings, Incarnation, Medium, NodeId, Pool, PoolId, PoolKind, Scheme,
};
use staves_wire::Message;

use crate::cluster::*;

const SIZE: usize = 100_000;

/// A pool whose buckets nodes 2 and 3 hold, and a dataset in it.
fn pool(source: &str) -> Pool {
    let holder = |node| Holder {
        node: NodeId(node),
        incarnation: Incarnation(node),
        leaving: false,
    };
    let holdings = Holdings {
        buckets: vec![vec![holder(2), holder(3)]; 4],
        datasets: vec![Dataset {
            name: "data".into(),
            source: source.into(),
        }],
        ..Holdings::default()
    };
    Pool {
        id: PoolId(2),
        name: "files".into(),
        kind: PoolKind::Files(holdings),
        scheme: Scheme { m: 1, k: 0 },
        medium: Medium::Ram,
        node_budget_bytes: 1 << 30,
        groups: Vec::new(),
        may_start_empty: true,
    }
}

#[test]
fn d9_bytes_of_another_length_are_never_handed_out() {
    block_on(async {
        let cluster = Cluster::start(3).await;
        let dir = tempfile::tempdir().expect("a folder");
        let right: Vec<u8> = (0..SIZE).map(|i| (i / 3) as u8).collect();
        std::fs::write(dir.path().join("f"), &right).expect("a file");
        let source = dir.path().to_str().expect("text");
        cluster.world.lock().change(|map| {
            map.pools.insert(PoolId(2), pool(source));
        });
        for given in [0, 1, 4095, 4097, SIZE, 2 << 20] {
            cluster.world.lock().files = Some(Bytes::from(vec![0xee; given]));
            cluster.world.lock().files_asked = 0;
            // A client that has no bad memories.
            let client = cluster.client().await;
            let data = client.dataset("files", "data", source).await;
            let data = data.expect("a dataset");
            let file = data.open(b"f").expect("it is there");
            for from in [0, 4096, SIZE - 4096] {
                let read = data.read_at(&file, from as u64, 4096).await;
                let read = read.expect("from the source");
                assert!(read == right[from..from + 4096], "{given} at {from}");
            }
            assert!(cluster.world.lock().files_asked > 0);
            assert_eq!(data.figures().pool_bytes.load(Ordering::Relaxed), 0);
            assert_eq!(data.load(&file, 0, 4096).await, Ok(4096));
        }
        // As many as were asked for are believed.
        cluster.world.lock().files = Some(Bytes::from(vec![0xee; 4096]));
        let client = cluster.client().await;
        let data = client.dataset("files", "data", source).await;
        let data = data.expect("a dataset");
        let file = data.open(b"f").expect("it is there");
        // The source's only where a node is passed over for being slow.
        while data.read_at(&file, 0, 4096).await.expect("bytes") != vec![0xee; 4096] {}
    });
}

/// Homes that take nothing, though they do not refuse it, hold a bounded number of bytes of whoever reads; the rest is counted, and
/// not given.
#[test]
fn what_is_given_to_homes_is_bounded() {
    const MIB: usize = 1 << 20;
    block_on(async {
        let cluster = Cluster::start(3).await;
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("f"), vec![7; 16 * MIB]).expect("a file");
        // Files that changed just now are not kept.
        tokio::time::sleep(std::time::Duration::from_millis(2100)).await;
        let source = dir.path().to_str().expect("text");
        cluster.world.lock().change(|map| {
            map.pools.insert(PoolId(2), pool(source));
        });
        cluster.world.lock().puts_held = Some(Vec::new());
        let client = cluster.client().await;
        let data = client.dataset("files", "data", source).await;
        let data = data.expect("a dataset");
        let file = data.open(b"f").expect("it is there");
        let not_given = || data.figures().not_given_bytes.load(Ordering::Relaxed);
        let read = async || {
            let mut all = tokio::task::JoinSet::new();
            for at in 0..16 {
                let (data, file) = (data.clone(), file.clone());
                all.spawn(async move { data.read_at(&file, (at * MIB) as u64, MIB).await });
            }
            while let Some(bytes) = all.join_next().await {
                let bytes = bytes.expect("it ends").expect("it is read");
                assert!(bytes == vec![7; MIB]);
            }
        };
        let pause = || tokio::time::sleep(std::time::Duration::from_millis(50));
        // A home that was silent for a moment is passed over, and given nothing, for a second.
        for _ in 0..300 {
            if not_given() > 0 {
                break;
            }
            read().await;
            pause().await;
        }
        assert!(not_given() > 0, "all was given");
        // They take it again, and are given it.
        let held = cluster.world.lock().puts_held.take().expect("what is held");
        held.into_iter()
            .for_each(|reply| reply.send(&Message::Done));
        let were = cluster.world.lock().files_put;
        for _ in 0..300 {
            if cluster.world.lock().files_put > were {
                return;
            }
            read().await;
            pause().await;
        }
        panic!("nothing is given any more");
    });
}
