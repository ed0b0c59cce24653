//! Histories of one block that are right, and wrong.

use super::*;

/// Writes as (number, session, call, returned; 0 for none), reads as (number, call, returned), all of one block.
fn judged(writes: &[(u64, u64, u64, u64)], reads: &[(u64, u64, u64)]) -> Vec<String> {
    let write = |(number, session, call, returned): &(u64, u64, u64, u64)| BlockWrite {
        block: 1,
        number: *number,
        session: *session,
        call: *call,
        returned: Some(*returned).filter(|at| *at > 0),
    };
    let read = |(seen, call, returned): &(u64, u64, u64)| BlockRead {
        block: 1,
        seen: Some(*seen),
        call: *call,
        returned: *returned,
    };
    let history = BlockHistory {
        writes: writes.iter().map(write).collect(),
        reads: reads.iter().map(read).collect(),
    };
    history.judge("the volume", &BTreeMap::new()).1
}

#[test]
fn histories_with_an_order_are_fine() {
    for (writes, reads) in [
        (
            &[(1, 1, 10, 20), (2, 1, 30, 40)][..],
            &[(0, 5, 6), (1, 21, 29), (2, 41, 42)][..],
        ),
        // A read beside a write sees either.
        (&[(1, 1, 10, 20)], &[(0, 11, 19), (1, 12, 18)]),
        // Without an answer: done late, or never.
        (
            &[(1, 1, 10, 20), (2, 1, 30, 0)],
            &[(1, 41, 42), (2, 50, 60), (2, 70, 80)],
        ),
        (
            &[(1, 1, 10, 20), (2, 1, 30, 0)],
            &[(1, 41, 42), (1, 70, 80)],
        ),
        // In a former session, before the next one's first answer.
        (
            &[(1, 1, 10, 0), (2, 2, 30, 40)],
            &[(1, 21, 25), (2, 41, 42)],
        ),
    ] {
        assert_eq!(judged(writes, reads), Vec::<String>::new());
    }
}

#[test]
fn what_has_no_order_is_found() {
    for (writes, reads, says) in [
        (
            &[(1, 1, 10, 20)][..],
            &[(0, 21, 22)][..],
            "write 0 was there",
        ),
        (
            &[(1, 1, 10, 20), (2, 1, 30, 40)],
            &[(1, 41, 42)],
            "write 1 was there",
        ),
        // Seen, and then gone again.
        (
            &[(1, 1, 10, 20), (2, 1, 30, 0)],
            &[(2, 31, 32), (1, 41, 42)],
            "write 1 was there",
        ),
        (&[(1, 1, 10, 20)], &[(1, 1, 2)], "before it was written"),
        (&[(1, 1, 10, 20)], &[(7, 30, 40)], "nobody wrote that"),
        // The former session's write shows after the next one's first answer, and its other one is answered.
        (
            &[(1, 1, 10, 0), (2, 2, 30, 40)],
            &[(2, 41, 42), (1, 50, 60)],
            "not linearizable",
        ),
        (
            &[(2, 2, 30, 40), (1, 1, 45, 0)],
            &[(2, 41, 42), (1, 50, 60)],
            "a session that was over",
        ),
        (
            &[(2, 2, 30, 40), (1, 1, 45, 48)],
            &[],
            "answered in a session that was over",
        ),
    ] {
        let wrong = judged(writes, reads);
        assert_eq!(wrong.len(), 1, "{writes:?} {reads:?}: {wrong:?}");
        assert!(wrong[0].contains(says), "{wrong:?}");
    }
}

#[test]
fn a_block_that_is_torn_is_found() {
    let mut bytes = content(3, 9);
    assert_eq!(seen(3, &bytes), Some(9));
    assert_eq!(seen(4, &bytes), None);
    bytes[4000..].copy_from_slice(&content(3, 8)[4000..]);
    assert_eq!(seen(3, &bytes), None);
    assert_eq!(seen(3, &[0; BLOCK_BYTES]), Some(0));
    let torn = BlockHistory {
        reads: vec![BlockRead {
            block: 3,
            seen: None,
            call: 1,
            returned: 2,
        }],
        ..BlockHistory::default()
    };
    assert!(torn.judge("the volume", &BTreeMap::new()).1[0].contains("torn"));
}
