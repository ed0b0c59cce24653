//! Entries in pages, against a plain model of them.

mod units;

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use staves_store::{Arena, Budget, EXTENT_BYTES, Pages};
use staves_wire::group::RunKind;

use super::clean::Need;
use super::frame::{segment_of, start_of};
use super::*;

/// A data bucket, a copy that follows its deltas, and what they must have.
pub(crate) struct Bench {
    pub pages: Pages,
    pub log: EntryLog,
    pub copy: EntryLog,
    live: BTreeMap<u64, (Vec<u8>, Vec<u8>)>,
    staged: Vec<(Vec<DataPiece>, Vec<u8>)>,
}

pub(crate) fn pages(extents: u32) -> Pages {
    let arena = Arena::new(u64::from(extents) * EXTENT_BYTES as u64).unwrap();
    let mut pages = Pages::new(arena, Arc::new(Budget::new(extents)));
    assert!(pages.reserve(extents));
    pages
}

pub(crate) fn put(pages: &mut Pages, edit: &PageEdit) {
    let mut rest = &edit.bytes[..];
    for run in &edit.runs {
        match run.kind {
            RunKind::Zero => pages.zero(run.offset, run.len.into()),
            RunKind::Bytes => {
                let (part, tail) = rest.split_at(run.len as usize);
                pages.write(run.offset, part).unwrap();
                rest = tail;
            }
        }
    }
    assert!(rest.is_empty());
}

impl Bench {
    pub fn new(extents: u32) -> Bench {
        let pages = pages(extents);
        let mut log = EntryLog::scan(&pages).unwrap();
        log.settle();
        let copy = log.clone();
        Bench {
            pages,
            log,
            copy,
            live: BTreeMap::new(),
            staged: Vec::new(),
        }
    }

    fn make(&mut self, edit: &PageEdit) -> Vec<u64> {
        let noted = self.log.note(&edit.runs, &edit.bytes).unwrap();
        let numbers: Vec<u64> = noted.iter().map(|n| n.number).collect();
        assert_eq!(self.copy.note(&edit.runs, &edit.bytes).unwrap(), noted);
        let before = i64::from(self.pages.used());
        put(&mut self.pages, edit);
        let grown = i64::from(self.pages.used()) - before;
        assert_eq!(grown, i64::from(edit.begun) - i64::from(edit.freed));
        self.log.keep_open(edit);
        numbers
    }

    fn append(&mut self, entries: &[(Vec<u8>, Vec<u8>)]) {
        let new: Vec<AppendedEntry<'_>> = entries
            .iter()
            .map(|(head, data)| AppendedEntry {
                head,
                data: match data.is_empty() {
                    true => NewData::Nothing,
                    false => NewData::Bytes(data),
                },
            })
            .collect();
        let edit = self.log.append(&new).unwrap();
        let numbers = self.make(&edit);
        assert_eq!(numbers.len(), entries.len());
        self.live
            .extend(numbers.into_iter().zip(entries.iter().cloned()));
    }

    fn stage(&mut self, bytes: Vec<u8>) {
        let mut pieces = Vec::new();
        for part in bytes.chunks(INLINE_BYTES_MAX) {
            let (edit, now) = self.log.stage(&pieces, part).unwrap();
            self.make(&edit);
            self.log.has_staged(&pieces, &now);
            pieces = now;
        }
        self.staged.push((pieces, bytes));
    }

    fn name(&mut self, head: Vec<u8>) {
        let Some((pieces, bytes)) = self.staged.pop() else {
            return;
        };
        let data = NewData::Staged(&pieces);
        let edit = self
            .log
            .append(&[AppendedEntry { head: &head, data }])
            .unwrap();
        let numbers = self.make(&edit);
        self.log.unstage(&pieces);
        self.live.insert(numbers[0], (head, bytes));
    }

    fn release(&mut self, chance: u64) {
        let Some(number) = self
            .live
            .keys()
            .nth(chance as usize % self.live.len().max(1))
        else {
            return;
        };
        let number = *number;
        self.live.remove(&number);
        self.log.release(number);
        self.copy.release(number);
    }

    fn tidy(&mut self, need: Need) {
        if let Some(edit) = self.log.free() {
            self.make(&edit);
        }
        if let Some(victim) = self.log.victim(need)
            && let Some(edit) = self.log.clean(&self.pages, victim).unwrap()
        {
            self.make(&edit);
            self.log.tidy_users(victim);
        }
    }

    fn data(&self, log: &EntryLog, number: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for piece in log.data(number) {
            self.pages
                .read_into(piece.at, piece.len as usize, &mut bytes);
        }
        bytes
    }

    fn compare(&self, log: &EntryLog) {
        log.check(&self.pages).unwrap();
        assert!(log.numbers().eq(self.live.keys().copied()));
        for (number, (head, data)) in &self.live {
            assert_eq!(log.head(&self.pages, *number).unwrap(), head);
            assert!(self.data(log, *number) == *data, "data of {number}");
        }
    }

    /// The state that a node finds that has nothing but the pages.
    fn found(&self) -> EntryLog {
        let mut found = EntryLog::scan(&self.pages).unwrap();
        let dead: Vec<u64> = found
            .numbers()
            .filter(|n| !self.live.contains_key(n))
            .collect();
        dead.into_iter().for_each(|number| found.release(number));
        found.settle();
        found
    }

    fn check(&self) {
        self.compare(&self.log);
        self.compare(&self.copy);
        self.compare(&self.found());
    }

    /// The copy serves from now on.
    fn promote(&mut self) {
        self.log = self.copy.clone();
        self.log.start();
        self.staged.clear();
    }

    /// The node starts again over its pages.
    fn restart(&mut self) {
        self.copy = self.found();
        self.promote();
    }
}

fn entry(number: u64, head: usize, data: usize) -> (Vec<u8>, Vec<u8>) {
    let bytes = |len: usize, by: u64| {
        (0..len as u64)
            .map(|i| (number * 31 + i * by + i / 251) as u8 | 1)
            .collect()
    };
    (bytes(head, 7), bytes(data, 13))
}

#[derive(Clone, Debug)]
enum Step {
    Append(Vec<(usize, usize)>),
    Stage(usize),
    Name(usize),
    Release(u64, u8),
    Tidy(bool),
    Promote,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let data = prop_oneof![4 => Just(0usize), 8 => 1..3000usize, 2 => 60_000..80_000usize];
    let entries = prop::collection::vec((0..2000usize, data), 1..4);
    prop_oneof![
        8 => entries.prop_map(Step::Append),
        1 => (1..900_000usize).prop_map(Step::Stage),
        2 => (0..100usize).prop_map(Step::Name),
        6 => (any::<u64>(), 1..6u8).prop_map(|(which, count)| Step::Release(which, count)),
        4 => any::<bool>().prop_map(Step::Tidy),
        1 => Just(Step::Promote),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// After anything the pages have what lives, byte for byte, for who made it, for who followed, and for who finds nothing but the pages.
    #[test]
    fn pages_have_what_lives(steps in prop::collection::vec(step(), 1..120)) {
        let mut bench = Bench::new(400);
        for (number, step) in (1..).zip(steps) {
            match step {
                Step::Append(sizes) => {
                    let of = |(head, data)| entry(number, head, data);
                    let entries: Vec<_> = sizes.into_iter().map(of).collect();
                    bench.append(&entries);
                }
                Step::Stage(bytes) => bench.stage(entry(number, 0, bytes).1),
                Step::Name(head) => bench.name(entry(number, head, 0).0),
                Step::Release(which, count) => (0..count).for_each(|i| bench.release(which.wrapping_add(i.into()))),
                Step::Tidy(much) => bench.tidy(if much { Need::Much } else { Need::Some }),
                Step::Promote => bench.promote(),
                Step::Restart => bench.restart(),
            }
            if number % 8 == 0 {
                bench.check();
            }
        }
        bench.check();
    }

    /// A scan of pages with any bytes changed says where it is wrong, or finds entries whose bytes are whole.
    #[test]
    fn damaged_pages_are_an_error(at in 0..(3 * EXTENT_BYTES as u64), len in 1..600usize, with in any::<u8>()) {
        let mut bench = Bench::new(8);
        (1..200).for_each(|n| bench.append(&[entry(n, 40, 500)]));
        let before = bench.found();
        let len = len.min(EXTENT_BYTES - (at % EXTENT_BYTES as u64) as usize);
        bench.pages.write(at, &vec![with; len]).unwrap();
        if let Ok(found) = EntryLog::scan(&bench.pages) {
            for number in found.numbers() {
                prop_assert_eq!(found.data(number), before.data(number));
            }
        }
    }
}

#[test]
fn garbage_is_an_error_and_nothing_else() {
    let mut pages = pages(4);
    pages.write(0, &[0x5A; 1000]).unwrap();
    let wrong = EntryLog::scan(&pages).unwrap_err();
    assert!(wrong.to_string().contains("at offset 0"), "{wrong}");

    let mut bench = Bench::new(8);
    bench.append(&[entry(1, 40, 500), entry(2, 40, 0)]);
    let frames = bench.log.entries[&1].at;
    bench.pages.write(frames + 30, b"?").unwrap();
    let wrong = EntryLog::scan(&bench.pages).unwrap_err();
    assert_eq!((wrong.at, wrong.why), (frames, "its checksum does not fit"));
}

#[test]
fn deltas_of_another_kind_are_an_error() {
    let mut bench = Bench::new(8);
    bench.append(&[entry(1, 40, 500)]);
    let mut beside = PageEdit::default();
    beside.put(start_of(5), b"somewhere");
    assert!(
        bench
            .copy
            .clone()
            .note(&beside.runs, &beside.bytes)
            .is_err()
    );
    let live = segment_of(bench.log.entries[&1].at);
    let mut frees = PageEdit::default();
    frees.put_table(vec![(live, super::segments::Contents::Free)], false);
    frees.zero(&[live]);
    let wrong = bench.copy.note(&frees.runs, &frees.bytes).unwrap_err();
    assert_eq!(wrong.why, "a delta frees a segment that is in use");
}

#[test]
fn room_comes_back() {
    let mut bench = Bench::new(40);
    // Of every eight entries one stays: no segment becomes empty by itself.
    for n in 1..=20_000u64 {
        bench.append(&[entry(n, 30, 700)]);
        if n > 800 {
            let dead = n - 800;
            let stays = dead % 8 == 0 && dead > 19_000;
            let long_dead = dead.is_multiple_of(8).then(|| dead.saturating_sub(4000));
            for number in [Some(dead).filter(|d| d % 8 != 0), long_dead]
                .into_iter()
                .flatten()
            {
                if !stays && bench.live.remove(&number).is_some() {
                    bench.log.release(number);
                    bench.copy.release(number);
                }
            }
        }
        if n % 4 == 0 && bench.log.is_untidy() {
            bench.tidy(Need::Some);
        }
    }
    bench.check();
    let live = bench.log.live_bytes().div_ceil(EXTENT_BYTES as u64) as u32;
    let used = bench.pages.used();
    assert!(
        used <= live * 3 / 2 + 8,
        "{used} extents for {live} that live"
    );
}

/// A segment is freed by the delta that moves what lives in it: no scan finds an entry twice.
#[test]
fn a_segment_is_cleaned_and_freed_by_one_delta() {
    let mut bench = Bench::new(8);
    (1..3000).for_each(|n| bench.append(&[entry(n, 200, 0)]));
    let first = segment_of(bench.log.entries[&1].at);
    let stays = |n: u64| n.is_multiple_of(300);
    for n in (1..3000).filter(|n| !stays(*n)) {
        bench.live.remove(&n);
        bench.log.release(n);
        bench.copy.release(n);
    }
    let used = bench.pages.used();
    let edit = bench.log.clean(&bench.pages, first).unwrap().unwrap();
    assert_eq!((edit.begun, edit.freed), (0, 1));
    bench.make(&edit);
    assert_eq!(bench.pages.used(), used - 1);
    bench.check();
}

#[test]
fn what_is_staged_is_not_cleaned_away() {
    let mut bench = Bench::new(40);
    bench.stage(entry(1, 0, 300_000).1);
    bench.append(&[entry(2, 30, 200_000), entry(3, 30, 20_000)]);
    bench.append(&[entry(4, 30, 200_000)]);
    for n in 1..=3 {
        bench.live.remove(&n);
        bench.log.release(n);
        bench.copy.release(n);
    }
    (0..20).for_each(|_| bench.tidy(Need::Much));
    bench.name(b"named".to_vec());
    bench.check();
}

#[test]
fn an_append_that_is_too_large_is_refused() {
    let bench = Bench::new(8);
    let head = vec![1; HEAD_BYTES_MAX + 1];
    let data = vec![1; INLINE_BYTES_MAX + 1];
    let of = |head, data| bench.log.append(&[AppendedEntry { head, data }]);
    assert_eq!(of(&head, NewData::Nothing), Err(NoPlace::TooLarge));
    assert_eq!(of(b"", NewData::Bytes(&data)), Err(NoPlace::TooLarge));
    let many = vec![
        AppendedEntry {
            head: &head[..60_000],
            data: NewData::Nothing
        };
        5
    ];
    assert_eq!(bench.log.append(&many), Err(NoPlace::TooLarge));
    let many = vec![
        AppendedEntry {
            head: b"",
            data: NewData::Nothing
        };
        ENTRIES_MAX + 1
    ];
    assert_eq!(bench.log.append(&many), Err(NoPlace::TooLarge));
}
