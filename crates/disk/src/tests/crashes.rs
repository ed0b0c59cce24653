//! Crashes of every kind: what was said to be durable is there, in order, and nothing else is.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use staves_hunts::{Hunt, hunt};
use staves_model::mutant::Mutant;

use super::{Records, commit, made, opened};
use crate::faulty::FaultyDevice;
use crate::{Journal, JournalError, OpenError};

/// The records that a journal was given, and its words on them.
struct Said {
    /// All that was appended and may be there.
    appended: Records,
    durable: u64,
    kept_from: u64,
}

impl Said {
    /// Looks at what a start brought back, which is what is durable from then on.
    fn look(&mut self, seed: u64, journal: &Journal, records: Records) {
        let first = records.keys().next().copied().unwrap_or(journal.last() + 1);
        let last = journal.last();
        assert!(
            last >= self.durable,
            "seed {seed}: record {} was durable, and the last one there is {last}",
            self.durable
        );
        assert!(
            first <= self.kept_from || records.is_empty(),
            "seed {seed}: kept from {} on, and there from {first} on",
            self.kept_from
        );
        assert!(
            last < self.kept_from || records.contains_key(&self.kept_from),
            "seed {seed}: record {} is kept and not there",
            self.kept_from
        );
        for number in first..=last {
            let there = records.get(&number);
            assert!(
                there.is_some() && there == self.appended.get(&number),
                "seed {seed}: record {number} is not what was appended"
            );
        }
        self.appended = records;
        self.durable = last;
        assert_eq!(
            journal.synced(),
            last,
            "seed {seed}: all is durable after a start"
        );
    }

    /// Some work, until the disk fails or it is done.
    fn work(&mut self, rng: &mut SmallRng, journal: &mut Journal, device: &FaultyDevice) {
        for _ in 0..rng.random_range(1..40) {
            let record = record(rng);
            let appended = match rng.random_bool(0.2) {
                true => journal.append_reserved(&record),
                false => journal.append(&record),
            };
            match appended {
                Ok(number) => {
                    self.appended.insert(number, record);
                }
                Err(JournalError::Full { .. }) => {
                    let below = rng.random_range(self.kept_from..=self.durable + 1);
                    journal.let_go(below);
                    self.kept_from = below;
                }
                Err(JournalError::Busy) => {}
                Err(JournalError::TooLarge { .. }) => panic!("none is"),
                Err(JournalError::Failed(_)) => return,
            }
            let outcome = match rng.random_bool(0.4) {
                true => commit(journal, device),
                false => Ok(()),
            };
            self.durable = journal.synced();
            if outcome.is_err() {
                return;
            }
        }
        if rng.random_bool(0.3) {
            journal.mark_end();
            let _ = commit(journal, device);
            self.durable = journal.synced();
        }
    }
}

/// Often one that equals others, so that their sectors may take each other's place.
fn record(rng: &mut SmallRng) -> Vec<u8> {
    let size = [0, 1, 100, 5_000, 9_000, 16_000][rng.random_range(0..6)];
    let mut record = vec![rng.random_range(0..2); size];
    if rng.random_bool(0.3) {
        rng.fill(&mut record[..]);
    }
    record
}

/// Lives of one journal that end in every way.
fn lives(seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let device = made(seed);
    let mut said = Said {
        appended: Records::new(),
        durable: 0,
        kept_from: 1,
    };
    for _ in 0..rng.random_range(2..8) {
        let is_cut = rng.random_bool(0.2);
        if is_cut {
            device.power_off_after(rng.random_range(0..8));
        }
        device.evict_while_reading(rng.random_bool(0.5));
        let (mut journal, records) = match opened(&device) {
            Ok(opened) => opened,
            Err(OpenError::Write(_)) if is_cut => {
                device.lose_power();
                continue;
            }
            Err(error) => panic!("seed {seed}: {error}"),
        };
        said.look(seed, &journal, records);
        match rng.random_range(0..4) {
            0 => device.power_off_after(rng.random_range(0..30)),
            1 => device.fail_syncs(true),
            2 => device.fail_writes(Some(std::io::ErrorKind::StorageFull)),
            _ => {}
        }
        said.work(&mut rng, &mut journal, &device);
        device.fail_syncs(false);
        device.fail_writes(None);
        match rng.random_bool(0.5) {
            true => device.restart_process(),
            false => device.lose_power(),
        }
    }
    device.restart_process();
    for _ in 0..2 {
        let (journal, records) = opened(&device).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        said.look(seed, &journal, records);
        device.lose_power();
    }
}

#[test]
fn what_was_durable_is_there_after_every_crash() {
    (0..2_000).for_each(lives);
}

/// Bugs of the journal, each seen as what it is.
#[test]
fn planted_bugs_are_found() {
    use Mutant::*;
    let row = |mutant, test, shows| Hunt {
        mutant,
        test,
        shows,
    };
    let crash = "tests::crashes::what_was_durable_is_there_after_every_crash";
    let dropped = "tests::starts::a_batch_that_was_dropped_stays_dropped";
    let believed = "tests::starts::a_start_keeps_what_it_believed";
    let header = "tests::starts::a_header_that_was_read_is_on_disk_before_the_other_one_is_written";
    let middle = "tests::damage::damage_in_the_middle_is_no_end";
    let torn = "tests::damage::a_torn_batch_behind_damage_proves_it";
    let end = "tests::damage::damage_at_the_end_is_seen_where_a_header_tells_of_it";
    let follows = "tests::damage::a_batch_with_right_sums_counts_only_if_it_follows";
    let failed = "tests::damage::a_failed_journal_takes_nothing_more";
    let reserve = "tests::room::a_part_is_kept_for_what_empties_the_journal";
    let gone = "was durable, and the last one there is";
    hunt(&[
        row(JournalUnsynced, crash, gone),
        row(JournalSyncTriedAgain, failed, "a failed sync counts"),
        row(JournalTailTrusted, believed, "the journal is damaged"),
        row(JournalTailReadAgain, believed, "the journal is damaged"),
        row(JournalRoomAtOnce, crash, "the journal is damaged"),
        row(JournalUnchecked, dropped, "is not what was appended"),
        row(JournalOldLifeCounts, dropped, "a dropped record came back"),
        row(JournalOneHeaderPerLife, dropped, "the journal is damaged"),
        row(JournalHeaderTrusted, header, "the journal is damaged"),
        row(
            JournalDamageIsItsEnd,
            middle,
            "damage was taken for the end",
        ),
        row(JournalTornProofUnseen, torn, "damage was taken for the end"),
        row(JournalEndNotMarked, end, "damage was taken for the end"),
        row(
            JournalChainIgnored,
            follows,
            "it does not follow and counts",
        ),
        row(JournalReserveTaken, reserve, "the reserved part was taken"),
    ]);
}
