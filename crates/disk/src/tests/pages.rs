//! Page files over disks that forget, tear, fail and rot.

use std::collections::BTreeMap;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use staves_model::{Epoch, GroupId, Label, MemberSlot};

use super::DISK;
use crate::faulty::FaultyDevice;
use crate::{
    BLOCK_BYTES, Checkpoint, Device, DiskId, PageBytes, PageError, PageFile, PageFileError,
    PageImage, PageVersion, PagesOpenError,
};

/// Places of the page file, the first of which has none.
pub(super) const PLACES: usize = 60;
/// The smallest, so that the ring goes round often.
pub(super) const TABLE_BYTES: usize = 1 << 20;

pub(super) struct Disks {
    pub(super) pages: FaultyDevice,
    pub(super) table: FaultyDevice,
}

impl Disks {
    pub(super) fn new(seed: u64) -> Disks {
        let disks = Disks {
            pages: FaultyDevice::new(PLACES * BLOCK_BYTES, seed),
            table: FaultyDevice::new(TABLE_BYTES, seed ^ 1),
        };
        PageFile::create(&disks.pages, &disks.table, DISK).expect("they are large enough");
        disks
    }

    pub(super) fn open(&self) -> PageFile {
        PageFile::open(&self.pages, &self.table).unwrap_or_else(|error| panic!("{error}"))
    }

    pub(super) fn checkpoint(
        &self,
        file: &mut PageFile,
        checkpoint: Checkpoint,
    ) -> Result<(), PageFileError> {
        let work = file.begin(checkpoint)?;
        file.finish(work.perform(&self.pages, &self.table))
    }

    pub(super) fn each(&self, with: impl Fn(&FaultyDevice)) {
        with(&self.pages);
        with(&self.table);
    }
}

pub(super) type Bytes = Option<Box<[u8]>>;

/// The content that a page file is to have: pages by group and number, headers, and the mark of the journal.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Kept {
    pub(super) pages: BTreeMap<(GroupId, u32), (PageVersion, Bytes)>,
    pub(super) headers: BTreeMap<GroupId, Vec<u8>>,
    pub(super) journal_from: u64,
}

impl Kept {
    pub(super) fn change(&mut self, checkpoint: &Checkpoint) {
        for gone in &checkpoint.gone {
            self.pages.retain(|(group, _), _| group != gone);
            self.headers.remove(gone);
        }
        self.headers.extend(checkpoint.headers.iter().cloned());
        for gone in &checkpoint.forgotten {
            self.pages.remove(gone);
        }
        for image in &checkpoint.pages {
            let at = (image.group, image.page);
            let bytes = match &image.bytes {
                PageBytes::Block(bytes) => Some(bytes.clone()),
                PageBytes::Zero => None,
                PageBytes::Kept => self.pages[&at].1.clone(),
                PageBytes::Journaled { .. } => unreachable!("no journal is beside it"),
            };
            self.pages.insert(at, (image.version.clone(), bytes));
        }
        self.journal_from = checkpoint.journal_from.unwrap_or(self.journal_from);
    }

    /// As a page file has it.
    pub(super) fn of(file: &PageFile, disk: &FaultyDevice) -> Result<Kept, PageError> {
        let mut kept = Kept {
            journal_from: file.journal_from(),
            ..Kept::default()
        };
        let mut with_place = 0;
        for group in file.groups() {
            let header = file.header(group).map(<[u8]>::to_vec);
            kept.headers.extend(header.map(|header| (group, header)));
            for (page, version) in file.pages(group) {
                let at = file.locate(group, page).expect("it is kept");
                let bytes = at.read(disk)?;
                with_place += u32::from(bytes.is_some());
                kept.pages.insert((group, page), (version, bytes));
            }
        }
        assert_eq!(file.places().0, with_place, "places that no page has");
        Ok(kept)
    }
}

fn version(rng: &mut SmallRng, columns: usize) -> PageVersion {
    let label = |seq| Label {
        epoch: Epoch(3),
        seq,
    };
    PageVersion {
        join: Epoch(rng.random_range(1..4)),
        labels: (0..columns)
            .map(|_| label(rng.random_range(0..1000)))
            .collect(),
    }
}

/// Often one whose bytes equal another's.
fn bytes(rng: &mut SmallRng) -> PageBytes {
    match rng.random_range(0..4) {
        0 => PageBytes::Zero,
        1 => PageBytes::Block(vec![rng.random_range(0..3); BLOCK_BYTES].into()),
        _ => {
            let mut bytes = vec![0; BLOCK_BYTES];
            rng.fill(&mut bytes[..]);
            PageBytes::Block(bytes.into())
        }
    }
}

/// Group g has 1 + g % 3 columns.
pub(super) fn image(rng: &mut SmallRng, group: u32, page: u32) -> PageImage {
    let columns = 1 + group as usize % 3;
    PageImage {
        group: GroupId(group),
        slot: MemberSlot(columns as u8),
        page,
        version: version(rng, columns),
        bytes: bytes(rng),
    }
}

/// So many pages of zeroes: rows that take no place.
pub(super) fn of_rows(rng: &mut SmallRng, group: u32, pages: std::ops::Range<u32>) -> Checkpoint {
    let mut checkpoint = of_pages(rng, group, pages);
    checkpoint
        .pages
        .iter_mut()
        .for_each(|image| image.bytes = PageBytes::Zero);
    checkpoint
}

/// A checkpoint of some pages of a group, in this order.
pub(super) fn of_pages(
    rng: &mut SmallRng,
    group: u32,
    pages: impl IntoIterator<Item = u32>,
) -> Checkpoint {
    let mut checkpoint = Checkpoint {
        ..Checkpoint::default()
    };
    for page in pages {
        let mut image = image(rng, group, page);
        let mut bytes = vec![0; BLOCK_BYTES];
        rng.fill(&mut bytes[..]);
        image.bytes = PageBytes::Block(bytes.into());
        checkpoint.pages.push(image);
    }
    checkpoint
}

/// Rows are written again, so that the table never fills, however long pages change.
#[test]
fn a_table_that_goes_round_loses_no_row() {
    let (mut rng, disks) = (SmallRng::seed_from_u64(7), Disks::new(7));
    let mut file = disks.open();
    let old = of_pages(&mut rng, 0, 0..20);
    disks.checkpoint(&mut file, old.clone()).unwrap();
    for pages in 0..17 {
        let rows = of_rows(&mut rng, 2, pages * 90..(pages + 1) * 90);
        disks.checkpoint(&mut file, rows).unwrap();
    }
    // Some forty times the ring, and a sweep each few turns.
    for turn in 0..2_000 {
        let checkpoint = of_pages(&mut rng, 1, [turn % 10]);
        let done = disks.checkpoint(&mut file, checkpoint);
        done.unwrap_or_else(|error| panic!("turn {turn}: {error}"));
    }
    let file = disks.open();
    for image in old.pages {
        let at = file.locate(image.group, image.page).expect("a row is lost");
        let read = at.read(&disks.pages).unwrap().expect("it has a place");
        assert_eq!(PageBytes::Block(read), image.bytes);
    }
    let count = |group| file.pages(GroupId(group)).count();
    assert_eq!([count(1), count(2)], [10, 1530], "a row is lost");
}

/// A page that rots, one that cannot be read, and one that another one was written over are errors, each of them alone.
#[test]
fn a_page_is_the_one_that_was_written_or_an_error() {
    let (mut rng, disks) = (SmallRng::seed_from_u64(9), Disks::new(9));
    let mut file = disks.open();
    let all = of_pages(&mut rng, 0, 0..6);
    disks.checkpoint(&mut file, all).unwrap();
    disks.pages.rot(2 * BLOCK_BYTES + 77);
    disks.pages.make_unreadable(3 * BLOCK_BYTES + 700);
    let mut other = vec![0; BLOCK_BYTES];
    disks
        .pages
        .read(4 * BLOCK_BYTES as u64, &mut other)
        .unwrap();
    disks.pages.write(5 * BLOCK_BYTES as u64, &other).unwrap();
    let read = |page| {
        let at = file.locate(GroupId(0), page).expect("it is kept");
        at.read(&disks.pages)
    };
    assert!(read(0).is_ok() && read(3).is_ok() && read(5).is_ok());
    let rotten = read(1);
    assert!(
        matches!(
            rotten,
            Err(PageError::Damaged {
                page: 1,
                place: 2,
                ..
            })
        ),
        "rot is not seen"
    );
    assert!(matches!(read(2), Err(PageError::Read { .. })));
    assert!(
        matches!(read(4), Err(PageError::Damaged { .. })),
        "another page counts"
    );
}

/// Rule D-9: nothing is tried again.
#[test]
fn a_page_file_that_failed_takes_nothing_more() {
    let (mut rng, disks) = (SmallRng::seed_from_u64(10), Disks::new(10));
    let mut file = disks.open();
    disks.pages.fail_syncs(true);
    let lost = of_pages(&mut rng, 0, 0..3);
    assert!(
        disks.checkpoint(&mut file, lost).is_err(),
        "a failed sync counts"
    );
    disks.pages.fail_syncs(false);
    let next = of_pages(&mut rng, 0, 0..3);
    let error = disks.checkpoint(&mut file, next).unwrap_err();
    assert!(matches!(error, PageFileError::Failed(_)), "{error}");
    assert!(file.failed().is_some_and(|why| why.contains("synced")));
}

#[test]
fn files_of_two_disks_are_not_mixed() {
    let disks = Disks::new(11);
    let other = Disks::new(12);
    let id = DiskId(*b"another disk its");
    PageFile::create(&other.pages, &other.table, id).unwrap();
    let error = PageFile::open(&disks.pages, &other.table).unwrap_err();
    assert!(matches!(error, PagesOpenError::OtherDisk), "{error}");
    disks.pages.rot(20);
    let error = PageFile::open(&disks.pages, &disks.table).unwrap_err();
    assert!(matches!(error, PagesOpenError::NoHeader), "{error}");
}
