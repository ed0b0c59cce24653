//! Readahead behind misses: of a node's memory, and not beyond its promise.

use std::time::Duration;

use crate::files::*;

/// Reads at random fetch no more than four times what they ask for, with what is fetched behind them where they come to the same
/// blocks again and again; who goes through a file finds most of it fetched ahead.
#[test]
fn d8_a_miss_fetches_ahead_for_who_goes_on_and_not_for_who_jumps_about() {
    const BLOCK: usize = 256 << 10;
    let size = 64 * MIB;
    let dir = folder(&[("random", size), ("through", 16 * MIB)]);
    let cluster = cluster(2, 100 << 20);
    let_it_age();
    let data = dataset(&cluster, &dir);
    let (random, through) = (
        data.open(b"random").unwrap(),
        data.open(b"through").unwrap(),
    );
    let runtime = cluster.nodes[0].runtime();
    let want = pattern(0, size);
    let mut at = 1u64;
    let mut read = |block: Option<usize>| {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let from = match block {
            Some(block) => block * BLOCK + (at >> 16) as usize % (BLOCK - 8192),
            None => (at >> 16) as usize % (size - 8192),
        };
        let bytes = runtime.block_on(data.read_at(&random, from as u64, 8192));
        assert!(bytes.unwrap() == want[from..from + 8192]);
    };
    let ahead = || {
        // What still waits is fetched, or given up, before long.
        std::thread::sleep(Duration::from_secs(3));
        metric(&cluster, "staves_files_ahead_bytes_total")
    };
    // At two places of each block.
    let blocks = size / BLOCK;
    (0..2 * blocks).for_each(|i| read(Some(i * 101 % blocks)));
    assert_eq!(ahead(), 0, "nothing for who jumps");
    (0..1000).for_each(|_| read(None));
    assert!(ahead() > 0, "the rest of blocks that are read all over");
    let (fetched, asked) = (
        metric(&cluster, "staves_files_fetched_bytes_total"),
        (2 * blocks as u64 + 1000) * 8192,
    );
    let at_source = from_source(&data);
    assert!(
        fetched + at_source <= 4 * asked,
        "{fetched} and {at_source} were fetched for {asked}"
    );
    let before = ahead();
    let want = pattern(1, 16 * MIB);
    for from in (0..16 * MIB).step_by(8192) {
        let bytes = runtime.block_on(data.read_at(&through, from as u64, 8192));
        assert!(bytes.unwrap() == want[from..from + 8192]);
    }
    let ahead = metric(&cluster, "staves_files_ahead_bytes_total") - before;
    assert!(
        ahead >= 4 << 20,
        "{ahead} bytes were there before they were asked for"
    );
}
