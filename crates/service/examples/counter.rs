//! A group of buckets of the smallest service, [`staves_conformance::counter`], and two operations on one counter.
//!
//! `cargo run -p staves-service --example counter`

use staves_conformance::TestCluster;
use staves_conformance::counter::{Change, Count, bucket};

fn main() {
    let options = staves_group::Options::default();
    let mut cluster = TestCluster::new((2, 1), 3, 8, options, bucket);
    for by in [5, 7] {
        let change = Change::Add(by);
        let token = cluster.submit_to(0, Some(by), Count { counter: 3, change });
        println!("add {by}: {:?}", cluster.wait_for(token));
    }
}
