//! Extents that were given back between others.

use staves_model::CHUNK_BYTES;
use staves_wire::memory::Action;
use staves_wire::service::Answer;

use crate::cluster::Cluster;

/// Regression: extents that were given back between others are no longer in what a bucket has reserved once its nodes have started anew,
/// and a write that took a place in one of them was made with memory that no member had: all of them ended.
#[test]
fn a_place_in_an_extent_that_was_given_back_is_written_once_there_is_memory_for_it() {
    let mut c = Cluster::new(1, 1, 2, 16);
    let chunk = |number: u64| number * CHUNK_BYTES;
    for number in 0..20 {
        c.write(0, chunk(number), b"x");
    }
    let in_use = |c: &Cluster| c.buckets[0].member().pages().map_or(0, |p| p.used());
    let before = in_use(&c);
    for number in 5..13 {
        let zeroed = c.run(0, None, &zero(chunk(number)));
        assert_eq!(zeroed, Answer::Ok);
    }
    c.settle();
    let used = in_use(&c);
    assert!(used < before, "no extent was given back: {used}");
    // As after a start of all nodes: members hold what they have.
    c.buckets[0].member_mut().want_extents(used);
    c.ticks(10);
    assert_eq!(c.buckets[0].member().usable_extents(), used);
    for number in 5..13 {
        c.write(0, chunk(number), b"y");
    }
    c.settle();
    c.check();
    assert_eq!(in_use(&c), before);
}

fn zero(offset: u64) -> Action {
    let (image, session, len) = (0, 0, CHUNK_BYTES as u32);
    Action::Zero {
        image,
        session,
        offset,
        len,
    }
}
