//! Records with blocks in the page file: they are there whole or not at all, after every crash, and their places are nobody else's.

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use staves_hunts::{Hunt, hunt};
use staves_model::mutant::Mutant;

use super::{BLOCK_BYTES, BYTES, DISK, Records};
use crate::faulty::FaultyDevice;
use crate::{Device, Journal, JournalError, OpenError, PageFile, PlacedBlock, RecordBytes};

const PLACES: usize = 16;
const TABLE: usize = 1 << 20;

/// A disk: its journal, its page file, and the table of that.
struct Disk {
    journal: FaultyDevice,
    pages: FaultyDevice,
    table: FaultyDevice,
}

/// A disk that is open, and the places of each record that is kept.
struct OpenDisk {
    journal: Journal,
    file: PageFile,
    held: Vec<(u64, Vec<u32>)>,
    records: Records,
    /// Records some of whose blocks are not what they were.
    rotten: Vec<u64>,
}

impl Disk {
    fn made(seed: u64) -> Disk {
        let disk = Disk {
            journal: FaultyDevice::new(BYTES, seed),
            pages: FaultyDevice::new((2 * PLACES + 3) * BLOCK_BYTES, seed + 1),
            table: FaultyDevice::new(TABLE, seed + 2),
        };
        let made = PageFile::create_with(&disk.pages, &disk.table, DISK, PLACES as u32);
        made.expect("it is large enough");
        Journal::create(&disk.journal, DISK).expect("it is large enough");
        disk
    }

    fn open(&self) -> Result<OpenDisk, OpenError> {
        let (mut held, mut records, mut rotten) = (Vec::new(), Records::new(), Vec::new());
        let journal = Journal::open_with(
            &self.journal,
            Some(&self.pages),
            &mut |number, record, blocks| {
                held.push((number, blocks.places.to_vec()));
                rotten.extend(Some(number).filter(|_| !blocks.are_whole));
                records.insert(number, record.to_vec());
                Ok(())
            },
        )?;
        let mut file = PageFile::open(&self.pages, &self.table).expect("nothing is written to it");
        for place in held.iter().flat_map(|(_, places)| places) {
            assert!(file.hold(*place), "place {place} is of two records");
        }
        Ok(OpenDisk {
            journal,
            file,
            held,
            records,
            rotten,
        })
    }

    fn lose_power(&self) {
        self.journal.lose_power();
        self.pages.lose_power();
    }

    fn end(&self, power: bool) {
        for device in [&self.journal, &self.pages] {
            device.fail_syncs(false);
            match power {
                true => device.lose_power(),
                false => device.restart_process(),
            }
        }
    }
}

impl OpenDisk {
    fn commit(&mut self, disk: &Disk) -> Result<(), JournalError> {
        while let Some(commit) = self.journal.next_commit() {
            let performed = commit.perform_with(&disk.journal, Some(&disk.pages));
            self.journal.finish(performed)?;
            let released = self.journal.released();
            for (_, places) in self.held.extract_if(.., |(number, _)| *number < released) {
                places
                    .into_iter()
                    .for_each(|place| self.file.release(place));
            }
        }
        Ok(())
    }

    /// A record of a random head and some blocks, with other bytes before, between and behind them.
    fn append(&mut self, rng: &mut SmallRng) -> Result<u64, JournalError> {
        let head = vec![rng.random(); rng.random_range(0..300)];
        let (mut tail, mut offsets) = (vec![1; rng.random_range(0..3)], Vec::new());
        for _ in 0..rng.random_range(0..4) {
            offsets.push(tail.len() as u32);
            let block: u8 = rng.random();
            tail.extend(vec![block; BLOCK_BYTES]);
            let more = [0, 0, 5, 700][rng.random_range(0..4)];
            tail.extend(vec![2; more]);
        }
        let tail = Bytes::from(tail);
        let places = self.file.take_for_journal(offsets.len() as u32);
        let places: Vec<u32> = places.into_iter().flatten().flatten().collect();
        let blocks = offsets.iter().zip(&places);
        let blocks: Vec<PlacedBlock> = blocks
            .map(|(at, place)| PlacedBlock::new(&tail, *at, *place))
            .collect();
        let record = RecordBytes {
            head: &head,
            tail: &tail,
            placed: &blocks,
        };
        match self.journal.append_placed(&record, rng.random_bool(0.2)) {
            Ok(number) => {
                self.held.push((number, places));
                self.records.insert(number, [&head[..], &tail].concat());
                Ok(number)
            }
            Err(error) => {
                places
                    .into_iter()
                    .for_each(|place| self.file.release(place));
                Err(error)
            }
        }
    }

    /// Some work, until the disk fails or it is done.
    fn work(&mut self, rng: &mut SmallRng, disk: &Disk) {
        for _ in 0..rng.random_range(1..60) {
            match self.append(rng) {
                Ok(_) | Err(JournalError::Busy) => {}
                Err(JournalError::Full { .. }) => self.journal.let_go(self.journal.synced() + 1),
                Err(_) => return,
            }
            if rng.random_bool(0.1) {
                let from = rng.random_range(self.journal.kept_from()..=self.journal.synced() + 1);
                self.journal.let_go(from);
            }
            if rng.random_bool(0.5) && self.commit(disk).is_err() {
                return;
            }
        }
    }
}

/// Lives of one disk that end in every way.
fn lives(seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let disk = Disk::made(seed);
    let mut said = Records::new();
    let (mut durable, mut kept_from, mut is_rotten) = (0, 1, false);
    for _ in 0..rng.random_range(2..8) {
        disk.pages.evict_while_reading(rng.random_bool(0.5));
        let mut open = match disk.open() {
            Ok(open) => open,
            // What an older header names may have been written over, and that is seen.
            Err(OpenError::Damaged { .. }) if is_rotten => return,
            Err(error) => panic!("seed {seed}: {error}"),
        };
        is_rotten = false;
        assert!(
            open.rotten.is_empty(),
            "seed {seed}: blocks of {:?} are not what they were",
            open.rotten
        );
        let last = open.journal.last();
        assert!(
            last >= durable,
            "seed {seed}: record {durable} was durable, and the last one there is {last}"
        );
        for number in kept_from..=last {
            let (there, was) = (open.records.get(&number), said.get(&number));
            assert!(
                there.is_some() && there == was,
                "seed {seed}: record {number} is not what was appended"
            );
        }
        match rng.random_range(0..4) {
            0 => [&disk.journal, &disk.pages][rng.random_range(0..2)]
                .power_off_after(rng.random_range(0..30)),
            1 => [&disk.journal, &disk.pages][rng.random_range(0..2)].fail_syncs(true),
            _ => {}
        }
        open.work(&mut rng, &disk);
        (durable, kept_from) = (open.journal.synced(), open.journal.kept_from());
        said = open.records;
        disk.end(rng.random_bool(0.5));
        if rng.random_bool(0.2) {
            // The newest header rots: the one before it names more.
            let mut newest = [0, 1].map(|at| {
                let mut block = vec![0; BLOCK_BYTES];
                disk.journal
                    .read(at * BLOCK_BYTES as u64, &mut block)
                    .expect("well");
                (
                    u64::from_le_bytes(block[32..40].try_into().expect("8 bytes")),
                    at,
                )
            });
            newest.sort_unstable();
            is_rotten = true;
            disk.journal.rot(newest[1].1 as usize * BLOCK_BYTES + 50);
        }
    }
    disk.lose_power();
}

#[test]
fn a_record_with_blocks_elsewhere_is_there_whole_or_not_at_all() {
    (0..400).for_each(lives);
}

/// Rotten bytes of a record that was known to be synced are no end of the journal: whose record it is loses its bytes, and nobody else.
#[test]
fn a_block_that_has_rotted_or_cannot_be_read_is_one_of_its_record_alone() {
    let disk = Disk::made(5);
    let mut open = disk.open().expect("it is empty");
    let mut rng = SmallRng::seed_from_u64(5);
    let mut places = Vec::new();
    while places.is_empty() {
        open.append(&mut rng).expect("room");
        open.commit(&disk).expect("well");
        places = open
            .held
            .last()
            .map(|(_, places)| places.clone())
            .unwrap_or_default();
    }
    open.append(&mut rng).expect("room");
    open.commit(&disk).expect("well");
    let (number, all) = (
        open.held.last().map_or(0, |(number, _)| *number),
        open.records,
    );
    disk.pages.rot(places[0] as usize * BLOCK_BYTES + 9);
    for is_unread in [false, true] {
        if is_unread {
            disk.pages.make_unreadable(places[0] as usize * BLOCK_BYTES);
        }
        let mut open = disk.open().expect("the journal itself is whole");
        assert_eq!(open.rotten, [number - 1]);
        open.records.remove(&(number - 1));
        let others = all.iter().filter(|(of, _)| **of != number - 1);
        assert!(
            open.records.iter().eq(others),
            "the others are as they were"
        );
    }
}

/// Bugs of places of the journal, each seen as what it is.
#[test]
fn planted_bugs_are_found() {
    use Mutant::*;
    let test = "tests::placed::a_record_with_blocks_elsewhere_is_there_whole_or_not_at_all";
    let row = |mutant, shows| Hunt {
        mutant,
        test,
        shows,
    };
    hunt(&[
        row(PlacedUnsynced, "are not what they were"),
        row(PlacedUnchecked, "is not what was appended"),
        row(PlacesReleasedEarly, "is of two records"),
    ]);
}
