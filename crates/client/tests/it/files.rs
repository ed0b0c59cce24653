//! Files, and nodes that give what cannot be theirs.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use staves_model::{
    Dataset, Holder, Holdings, Incarnation, Medium, NodeId, Pool, PoolId, PoolKind, Scheme,
};

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
    run(async {
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
