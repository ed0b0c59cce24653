//! Histories of snapshots and clones that are right, and wrong.

use super::super::history::BlockWrite;
use super::*;

/// A write, as (block, number, call, returned; 0 for none).
fn write((block, number, call, returned): (u64, u64, u64, u64)) -> BlockWrite {
    BlockWrite {
        block,
        number,
        session: 1,
        call,
        returned: Some(returned).filter(|at| *at > 0),
    }
}

/// A read, as (block, seen, call, returned).
fn read((block, seen, call, returned): (u64, u64, u64, u64)) -> BlockRead {
    BlockRead {
        block,
        seen: Some(seen),
        call,
        returned,
    }
}

fn history(writes: &[(u64, u64, u64, u64)], reads: &[(u64, u64, u64, u64)]) -> BlockHistory {
    BlockHistory {
        writes: writes.iter().copied().map(write).collect(),
        reads: reads.iter().copied().map(read).collect(),
    }
}

/// Block 1 is written from 10 to 20, block 2 from 30 to 40, block 1 again from 50 to 60.
fn written() -> BlockHistory {
    let writes = [(1, 1, 10, 20), (2, 2, 30, 40), (1, 3, 50, 60)];
    history(&writes, &[])
}

/// A snapshot that was made then and read once, much later.
fn snapshot((call, returned): (u64, u64), values: &[(u64, u64)]) -> ImageHistory {
    let reads = values.iter().map(|(block, seen)| (*block, *seen, 100, 110));
    ImageHistory {
        name: "v@s".into(),
        call,
        returned: Some(returned),
        blocks: history(&[], &reads.collect::<Vec<_>>()),
        ..ImageHistory::default()
    }
}

fn judged(volume: BlockHistory, images: &[ImageHistory]) -> Vec<String> {
    judge(&[("the volume", volume)], images)
}

fn is_found(volume: BlockHistory, images: &[ImageHistory], says: &str) {
    let wrong = judged(volume, images);
    assert_eq!(wrong.len(), 1, "{says}: {wrong:?} {images:?}");
    assert!(wrong[0].contains(says), "{says}: {wrong:?}");
}

#[test]
fn a_snapshot_of_an_instant_within_its_command_is_fine() {
    for (command, values) in [
        ((22, 25), &[(1, 1), (2, 0)][..]),
        ((42, 45), &[(1, 1), (2, 2)]),
        ((70, 80), &[(1, 3), (2, 2)]),
        // Beside writes it has some of them, those that began before others had ended.
        ((15, 55), &[(1, 0), (2, 0)]),
        ((15, 55), &[(1, 1), (2, 0)]),
        ((15, 55), &[(1, 1), (2, 2)]),
        ((15, 55), &[(1, 3), (2, 2)]),
        // A block that nobody else has asked for.
        ((70, 80), &[(7, 0)]),
    ] {
        let images = [snapshot(command, values)];
        let none = Vec::<String>::new();
        assert_eq!(judged(written(), &images), none, "{images:?}");
    }
}

#[test]
fn a_snapshot_that_lacks_what_was_answered_before_it_or_has_what_was_sent_after_it_is_found() {
    for (command, values, says) in [
        ((70, 80), &[(1, 1)][..], "held there at no time"),
        ((42, 45), &[(2, 0)], "held there at no time"),
        ((12, 15), &[(2, 2)], "held there at no time"),
        ((70, 80), &[(1, 9)], "nobody wrote 9"),
    ] {
        is_found(written(), &[snapshot(command, values)], says);
    }
}

#[test]
fn a_snapshot_that_has_a_write_and_lacks_one_that_was_answered_before_it_began_is_found() {
    for values in [[(1, 0), (2, 2)], [(1, 3), (2, 0)]] {
        is_found(
            written(),
            &[snapshot((15, 55), &values)],
            "at no one instant",
        );
    }
    // The same of two volumes that one command copied, and not of two commands.
    let volumes = || {
        [
            ("one", history(&[(1, 1, 10, 20)], &[])),
            ("two", history(&[(2, 1, 30, 40)], &[])),
        ]
    };
    let (one, mut two) = (snapshot((15, 55), &[(1, 0)]), snapshot((15, 55), &[(2, 1)]));
    let wrong = judge(&volumes(), &[one.clone(), two.clone()]);
    assert!(
        wrong.len() == 1 && wrong[0].contains("at no one instant"),
        "{wrong:?}"
    );
    two.command = 2;
    assert_eq!(judge(&volumes(), &[one, two]), Vec::<String>::new());
}

#[test]
fn blocks_may_have_been_so_at_several_times_but_not_at_the_same_one() {
    // Block 1 had write 1 until 40 or from 45 on; block 2 had write 3 from 41 to 44, and perhaps after 58.
    let writes = [
        (1, 1, 10, 100),
        (1, 2, 30, 40),
        (2, 3, 20, 100),
        (2, 4, 20, 100),
    ];
    let reads = [
        (1, 2, 45, 60),
        (2, 0, 41, 60),
        (2, 4, 43, 44),
        (2, 4, 58, 59),
    ];
    let volume = history(&writes, &reads);
    for (command, is_fine) in [((35, 57), false), ((41, 44), false), ((35, 60), true)] {
        let images = [snapshot(command, &[(1, 1), (2, 3)])];
        match is_fine {
            true => assert_eq!(judged(volume.clone(), &images), Vec::<String>::new()),
            false => is_found(volume.clone(), &images, "at no"),
        }
    }
}

#[test]
fn a_snapshot_that_changes_is_found() {
    let mut image = snapshot((42, 45), &[(1, 1)]);
    image.blocks.reads.push(read((1, 1, 120, 130)));
    assert_eq!(judged(written(), &[image.clone()]), Vec::<String>::new());
    image.blocks.reads.push(read((1, 3, 140, 150)));
    is_found(written(), &[image.clone()], "of 'v@s' is not linearizable");
    image.blocks.reads.pop();
    image.blocks.reads.push(BlockRead {
        seen: None,
        ..read((1, 0, 140, 150))
    });
    is_found(written(), &[image], "torn");
}

#[test]
fn what_a_snapshot_has_is_not_gone_from_the_volume_afterwards() {
    let volume = |seen: u64| history(&[(1, 1, 10, 20), (1, 2, 30, 0)], &[(1, seen, 50, 60)]);
    for (seen, is_fine) in [(2, true), (1, false)] {
        let images = [snapshot((40, 45), &[(1, 2)])];
        match is_fine {
            true => assert_eq!(judged(volume(seen), &images), Vec::<String>::new()),
            false => is_found(volume(seen), &images, "held there at no time"),
        }
    }
    // The write is seen by two snapshots only, and is gone in the later one.
    let (one, mut two) = (snapshot((40, 45), &[(1, 2)]), snapshot((50, 55), &[(1, 1)]));
    (two.name, two.command) = ("v@t".into(), 2);
    let volume = history(&[(1, 1, 10, 20), (1, 2, 30, 0)], &[]);
    is_found(volume, &[one, two], "with its snapshots");
}

#[test]
fn a_command_that_failed_is_of_any_instant_until_it_was_seen() {
    let mut image = snapshot((5, 65), &[(1, 3), (2, 2)]);
    assert_eq!(judged(written(), &[image.clone()]), Vec::<String>::new());
    image.returned = None;
    image.blocks.reads.clear();
    assert_eq!(judged(written(), &[image]), Vec::<String>::new());
}

#[test]
fn a_clone_begins_as_its_origin_and_has_its_own_writes() {
    let origin = snapshot((42, 45), &[(1, 1), (2, 2)]);
    let clone = |reads: &[(u64, u64, u64, u64)]| ImageHistory {
        name: "c".into(),
        of: Some("v@s".into()),
        command: 1,
        call: 120,
        returned: Some(130),
        blocks: history(&[(1, 70, 150, 160)], reads),
        ..ImageHistory::default()
    };
    let first = [(1, 1, 131, 132), (2, 2, 131, 132)];
    let with = |more: &[(u64, u64, u64, u64)]| clone(&[&first[..], more].concat());
    let fine = with(&[(1, 70, 170, 180), (2, 2, 170, 180)]);
    let all = [origin.clone(), fine];
    assert_eq!(judged(written(), &all), Vec::<String>::new());
    for (reads, says) in [
        // Its own write is gone, or what the volume was written to is in it.
        (&[(1, 1, 170, 180)][..], "of 'c' is not linearizable"),
        (&[(1, 3, 170, 180)], "nobody wrote that"),
        (&[(2, 0, 170, 180)], "nobody wrote that"),
    ] {
        is_found(written(), &[origin.clone(), with(reads)], says);
    }
    let other = clone(&[(1, 3, 131, 132)]);
    is_found(written(), &[origin, other], "of which it is a clone");
    // A block that was not read before it was written to: nothing is known of its beginning.
    let late = clone(&[(1, 3, 170, 180)]);
    assert_eq!(judged(written(), &[late]), Vec::<String>::new());
}
