//! Crashes between and within checkpoints: each is there whole or not at all.

use std::collections::BTreeMap;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use staves_hunts::{Hunt, hunt};
use staves_model::GroupId;
use staves_model::mutant::Mutant;

use super::pages::{Disks, Kept, image, of_rows};
use crate::faulty::FaultyDevice;
use crate::{Checkpoint, PageBytes, PageFileError, PageImage};

fn some_changes(rng: &mut SmallRng, kept: &Kept) -> Checkpoint {
    let mut checkpoint = Checkpoint {
        journal_from: rng
            .random_bool(0.7)
            .then(|| kept.journal_from + rng.random_range(0..5)),
        ..Checkpoint::default()
    };
    if rng.random_bool(0.1) {
        checkpoint.gone.push(GroupId(rng.random_range(0..4)));
    }
    if rng.random_bool(0.3) {
        let header = vec![rng.random(); rng.random_range(0..300)];
        checkpoint
            .headers
            .push((GroupId(rng.random_range(0..4)), header));
    }
    let mut pages: BTreeMap<(u32, u32), PageImage> = BTreeMap::new();
    for _ in 0..rng.random_range(0..8) {
        let (group, page) = (rng.random_range(0..4), rng.random_range(0..25));
        pages.insert((group, page), image(rng, group, page));
    }
    for _ in 0..rng.random_range(0..3) {
        // Another version of what is kept.
        let at = rng.random_range(0..kept.pages.len().max(1));
        let Some((group, page)) = kept
            .pages
            .keys()
            .nth(at)
            .map(|(group, page)| (group.0, *page))
        else {
            continue;
        };
        let mut again = image(rng, group, page);
        again.bytes = PageBytes::Kept;
        if !checkpoint.gone.contains(&GroupId(group)) {
            pages.insert((group, page), again);
        }
    }
    for _ in 0..rng.random_range(0..3) {
        let gone = (rng.random_range(0..4), rng.random_range(0..25));
        if !pages.contains_key(&gone) {
            checkpoint.forgotten.push((GroupId(gone.0), gone.1));
        }
    }
    checkpoint.pages = pages.into_values().collect();
    checkpoint
}

/// So many rows that a sweep takes several checkpoints.
fn add_rows(rng: &mut SmallRng, disks: &Disks, kept: &mut Kept) {
    let mut file = disks.open();
    for pages in (100..700).step_by(100).map(|from| from..from + 100) {
        let rows = of_rows(rng, 3, pages);
        kept.change(&rows);
        let done = disks.checkpoint(&mut file, rows);
        done.expect("the disks are well");
    }
}

/// Some faults come at once, others after a while, or none.
fn begin_a_fault(rng: &mut SmallRng, disks: &Disks) {
    match rng.random_range(0..7) {
        4 => disks.table.fail_syncs(true),
        5 => disks.pages.fail_writes(Some(std::io::ErrorKind::Other)),
        0 => disks.pages.power_off_after(rng.random_range(0..20)),
        1 => disks.table.power_off_after(rng.random_range(0..20)),
        2 => disks.pages.fail_syncs(true),
        3 => disks
            .table
            .fail_writes(Some(std::io::ErrorKind::StorageFull)),
        _ => {}
    }
}

/// Lives of one page file that end in every way.
fn lives(seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let disks = Disks::new(seed);
    let mut kept = Kept {
        journal_from: 1,
        ..Kept::default()
    };
    if seed.is_multiple_of(8) {
        add_rows(&mut rng, &disks, &mut kept);
    }
    // The checkpoint that was under way when the last life ended.
    let mut perhaps: Option<Kept> = None;
    let last = rng.random_range(2..7);
    for life in 0..=last {
        let mut file = disks.open();
        let there = Kept::of(&file, &disks.pages).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let is_known = there == kept || perhaps.as_ref() == Some(&there);
        assert!(is_known, "seed {seed}: it is no checkpoint that was made");
        (kept, perhaps) = (there, None);
        if life == last {
            return;
        }
        begin_a_fault(&mut rng, &disks);
        for _ in 0..rng.random_range(1..25) {
            let checkpoint = some_changes(&mut rng, &kept);
            let mut next = kept.clone();
            next.change(&checkpoint);
            match disks.checkpoint(&mut file, checkpoint) {
                Ok(()) => kept = next,
                Err(PageFileError::Failed(_)) => {
                    perhaps = Some(next);
                    break;
                }
                Err(PageFileError::Full { needed, free }) => {
                    assert!(needed + file.spare_places() as usize > free as usize);
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
            let there = Kept::of(&file, &disks.pages);
            let there = there.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            assert_eq!(there, kept, "seed {seed}: while it runs");
        }
        disks.each(|disk| {
            disk.fail_syncs(false);
            disk.fail_writes(None);
        });
        match rng.random_bool(0.4) {
            true => disks.each(FaultyDevice::restart_process),
            false => disks.each(FaultyDevice::lose_power),
        }
    }
}

#[test]
fn a_checkpoint_is_there_whole_or_not_at_all_after_every_crash() {
    (0..600).for_each(lives);
}

#[test]
fn planted_bugs_are_found() {
    use Mutant::*;
    let row = |mutant, test, shows| Hunt {
        mutant,
        test,
        shows,
    };
    let crash = "tests::checkpoints::a_checkpoint_is_there_whole_or_not_at_all_after_every_crash";
    let round = "tests::pages::a_table_that_goes_round_loses_no_row";
    let page = "tests::pages::a_page_is_the_one_that_was_written_or_an_error";
    let failed = "tests::pages::a_page_file_that_failed_takes_nothing_more";
    let bound = "tests::page_room::a_table_at_its_bound_goes_on_whatever_is_changed_and_however_often_it_starts";
    let full = "tests::page_room::a_full_disk_can_be_written_over";
    hunt(&[
        row(PagesUnsynced, crash, "is damaged at place"),
        row(PagesInPlace, crash, "is damaged at place"),
        row(PagesUnchecked, page, "rot is not seen"),
        row(PagesSweepOverrides, crash, "while it runs"),
        row(PagesSweptLetGo, round, "a row is lost"),
        row(PagesPlaceLeaked, crash, "places that no page has"),
        row(PagesSweepForgotten, bound, "the table has no room"),
        row(PagesNoSpare, full, "no place for its next version"),
        row(PagesFailureForgotten, failed, "a failed sync counts"),
    ]);
}
