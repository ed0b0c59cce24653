//! Page files that are full, or nearly: places, rows, the table's ring.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use staves_model::GroupId;

use super::pages::{Disks, Kept, PLACES, TABLE_BYTES, of_pages, of_rows};
use crate::faulty::FaultyDevice;
use crate::{Checkpoint, PageFileError};

/// A table as full as it may be, under changes of every size, pages that come above as others go below, and lives that are shorter than a sweep.
#[test]
fn a_table_at_its_bound_goes_on_whatever_is_changed_and_however_often_it_starts() {
    let (mut rng, disks) = (SmallRng::seed_from_u64(13), Disks::new(13));
    let mut file = disks.open();
    let (mut first, mut end) = (0, 0);
    while disks
        .checkpoint(&mut file, of_rows(&mut rng, 0, end..end + 100))
        .is_ok()
    {
        end += 100;
    }
    assert!(end > 4_000, "{end} rows");
    for turn in 0..600u32 {
        let count = [1, 20, 74, 107, 114, 130][turn as usize % 6];
        let at = first + rng.random_range(0..end - first - count);
        let mut checkpoint = of_rows(&mut rng, 0, at..at + count);
        if turn % 3 == 0 {
            // As a log goes on.
            let count = count.min(60);
            checkpoint = of_rows(&mut rng, 0, end..end + count);
            let gone = first..first + count;
            checkpoint
                .forgotten
                .extend(gone.map(|page| (GroupId(0), page)));
            (first, end) = (first + count, end + count);
        }
        let done = disks.checkpoint(&mut file, checkpoint);
        assert!(done.is_ok(), "turn {turn}: the table has no room: {done:?}");
        if turn % [2, 3, 5, 50][turn as usize / 150] == 0 {
            disks.each(FaultyDevice::restart_process);
            file = disks.open();
        }
    }
    let pages: Vec<u32> = file.pages(GroupId(0)).map(|(page, _)| page).collect();
    assert_eq!(pages, (first..end).collect::<Vec<_>>());
}

/// Pages that have a place get another one for their next version, however many want a first one.
#[test]
fn a_full_disk_can_be_written_over() {
    let (mut rng, disks) = (SmallRng::seed_from_u64(14), Disks::new(14));
    let mut file = disks.open();
    let mut pages = 0;
    while disks
        .checkpoint(&mut file, of_pages(&mut rng, 0, [pages]))
        .is_ok()
    {
        pages += 1;
    }
    let spare = file.spare_places();
    assert!(
        pages > PLACES as u32 - 2 * spare && spare > 1,
        "{pages}, {spare}"
    );
    for from in (0..2 * pages).step_by(spare as usize) {
        let again = (from..from + spare).map(|page| page % pages);
        let done = disks.checkpoint(&mut file, of_pages(&mut rng, 0, again));
        assert!(done.is_ok(), "no place for its next version: {done:?}");
    }
    assert_eq!(disks.open().pages(GroupId(0)).count(), pages as usize);
}

/// A page far from all others costs no more than its neighbours would, and the last one that there can be is kept, too.
#[test]
fn pages_may_lie_far_apart() {
    let (mut rng, disks) = (SmallRng::seed_from_u64(15), Disks::new(15));
    let mut file = disks.open();
    let far = of_pages(&mut rng, 0, [0, 70_000_000, u32::MAX]);
    disks.checkpoint(&mut file, far.clone()).unwrap();
    for turn in 0..50 {
        let checkpoint = of_pages(&mut rng, 1, [turn % 3]);
        disks.checkpoint(&mut file, checkpoint).unwrap();
    }
    file.close(&disks.table).expect("the disks are well");
    let file = disks.open();
    for image in &far.pages {
        let (join, labels) = file.version(GroupId(0), image.page).expect("it is kept");
        assert_eq!(
            (join, labels),
            (image.version.join, &image.version.labels[..])
        );
    }
    assert_eq!(file.slot(GroupId(0)), Some(far.pages[0].slot));
    assert_eq!(file.version(GroupId(0), 1), None);
}

/// A checkpoint that was begun and not brought back ends the page file, and it says so.
#[test]
fn work_that_is_dropped_is_a_failure() {
    let (mut rng, disks) = (SmallRng::seed_from_u64(16), Disks::new(16));
    let mut file = disks.open();
    drop(file.begin(of_pages(&mut rng, 0, [1])));
    let error = disks
        .checkpoint(&mut file, of_pages(&mut rng, 0, [2]))
        .unwrap_err();
    assert!(matches!(error, PageFileError::Failed(_)), "{error}");
    assert!(file.failed().is_some());
    assert_eq!(disks.open().pages(GroupId(0)).count(), 0);
}

#[test]
fn what_has_no_room_changes_nothing() {
    let (mut rng, disks) = (SmallRng::seed_from_u64(8), Disks::new(8));
    let mut file = disks.open();
    let first = of_pages(&mut rng, 0, 0..30);
    disks.checkpoint(&mut file, first).unwrap();
    let before = Kept::of(&file, &disks.pages).unwrap();
    // Each page needs a second place until the first one is free.
    let all_again = of_pages(&mut rng, 0, 0..30);
    let error = disks.checkpoint(&mut file, all_again).unwrap_err();
    assert!(
        matches!(
            error,
            PageFileError::Full {
                needed: 30,
                free: 29
            }
        ),
        "{error}"
    );
    assert_eq!(Kept::of(&file, &disks.pages).unwrap(), before);
    for pages in [0..15, 15..30] {
        let again = of_pages(&mut rng, 0, pages);
        disks.checkpoint(&mut file, again).unwrap();
    }
    let mut headers = Checkpoint::default();
    headers
        .headers
        .push((GroupId(9), vec![0; TABLE_BYTES / 16]));
    let error = disks.checkpoint(&mut file, headers).unwrap_err();
    assert!(matches!(error, PageFileError::TooMuch { .. }), "{error}");
    // Pages of zeroes take no place, and a row each.
    let mut group = 10;
    let error = loop {
        let rows = of_rows(&mut rng, group, 0..90);
        match disks.checkpoint(&mut file, rows) {
            Ok(()) => group += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, PageFileError::TableFull { .. }), "{error}");
    let all = Kept::of(&file, &disks.pages).unwrap();
    assert_eq!(Kept::of(&disks.open(), &disks.pages).unwrap(), all);
    let gone = Checkpoint {
        gone: vec![GroupId(10)],
        ..Checkpoint::default()
    };
    disks.checkpoint(&mut file, gone).unwrap();
    let rows = of_pages(&mut rng, 10, 0..8);
    disks
        .checkpoint(&mut file, rows)
        .expect("there is room again");
}
