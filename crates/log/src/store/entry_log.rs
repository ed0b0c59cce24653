//! The entries of a bucket that live, and where they lie.
//!
//! [`EntryLog::note`] is the one way in which it changes by a delta, at the data bucket and at its copies alike, so that what a copy knows when it is
//! promoted is what the data bucket knew, and both are what [`EntryLog::scan`] would find in the pages.

use std::collections::BTreeMap;

use staves_store::{EXTENT_BYTES, EXTENT_PAGES, Pages};
use staves_wire::group::{Run, RunKind};

use super::PageDamage;
use super::edit::{MAGIC, PageEdit, TABLE_AT};
use super::frame::{
    DataPiece, EntryFrame, Frames, frame_bytes, head_at, segment_of, start_of, within,
};
use super::segments::{Contents, LogSegments, UNIT_SEGMENTS_MAX};

/// The place of an entry that lives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EntryPlace {
    /// The offset of its frame.
    pub at: u64,
    /// Bytes of its head.
    pub head: u32,
    /// Its data.
    pub pieces: Box<[DataPiece]>,
}

impl EntryPlace {
    fn of(at: u64, frame: &EntryFrame<'_>) -> EntryPlace {
        EntryPlace {
            at,
            head: frame.head.len() as u32,
            pieces: frame.pieces.clone(),
        }
    }

    /// Bytes of its frame.
    pub(crate) fn frame_bytes(&self) -> usize {
        frame_bytes(self.head as usize, self.pieces.len())
    }
}

/// An entry that a delta has appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotedEntry<'a> {
    /// Its number.
    pub number: u64,
    /// Its head.
    pub head: &'a [u8],
}

/// The entries of one bucket.
#[derive(Clone, Debug, Default)]
pub struct EntryLog {
    /// The bucket has its table.
    pub(crate) exists: bool,
    pub(crate) entries: BTreeMap<u64, EntryPlace>,
    pub(crate) segments: LogSegments,
    /// The bytes that live in each segment are counted.
    settled: bool,
    /// The highest number of an entry that was here.
    pub(crate) last: u64,
    /// The segments of entries and of data that are appended to, at a data bucket.
    pub(crate) open: (Option<u32>, Option<u32>),
    /// Appends begin spare segments first.
    pub(crate) lean: bool,
}

fn damage<T>(at: u64, why: &'static str) -> Result<T, PageDamage> {
    Err(PageDamage { at, why })
}

impl EntryLog {
    /// The entries in the pages of a bucket, dead ones that still lie there among them. Its owner releases those, and calls
    /// [`EntryLog::settle`].
    ///
    /// # Errors
    /// The pages are damaged.
    pub fn scan(pages: &Pages) -> Result<EntryLog, PageDamage> {
        let mut log = EntryLog::default();
        let count = (pages.end_page() / EXTENT_PAGES).min(UNIT_SEGMENTS_MAX);
        let table = pages.slice(TABLE_AT, count as usize);
        match pages.slice(0, MAGIC.len()) {
            head if head == MAGIC => log.exists = true,
            head if head.iter().chain(table).all(|b| *b == 0) && count <= 1 => return Ok(log),
            _ => return damage(0, "it does not begin as a unit's bucket does"),
        }
        log.note_table(TABLE_AT, table, &mut Vec::new())?;
        let all = log.segments.iter();
        let entries = all.filter(|(_, s)| s.contents == Contents::Entries);
        for segment in entries.map(|(segment, _)| segment).collect::<Vec<_>>() {
            let start = start_of(segment);
            for frame in Frames::new(start, pages.slice(start, EXTENT_BYTES)) {
                let (at, frame) = frame?;
                log.found_frame(at, frame)?;
            }
        }
        log.segments.skip_used();
        Ok(log)
    }

    /// A scan has found a frame. One whose data lies in a segment of something else is dead: the segment was freed since.
    fn found_frame(&mut self, at: u64, frame: EntryFrame<'_>) -> Result<(), PageDamage> {
        self.last = self.last.max(frame.number);
        let place = EntryPlace::of(at, &frame);
        self.segments
            .fill(segment_of(at), within(at) + place.frame_bytes());
        if self.lies_in_data(&frame) && self.entries.insert(frame.number, place).is_some() {
            return damage(at, "two entries have the same number");
        }
        Ok(())
    }

    fn lies_in_data(&self, frame: &EntryFrame<'_>) -> bool {
        let contents = |piece: &DataPiece| self.segments.get(piece.segment()).contents;
        let mut all = frame.pieces.iter();
        all.all(|piece| contents(piece) == Contents::Data)
    }

    /// Counts what lives in each segment, once all dead entries that a scan has found are released.
    pub fn settle(&mut self) {
        for (number, place) in &self.entries {
            let bytes = place.frame_bytes();
            self.segments
                .add_frame(segment_of(place.at), within(place.at) + bytes, bytes);
            for piece in &place.pieces {
                self.segments.add_piece(*number, piece);
            }
        }
        self.settled = true;
    }

    /// Takes in a delta. The entries that it has appended are given in its order; those that it has moved are not.
    ///
    /// # Errors
    /// It makes the pages something else than a unit's.
    pub fn note<'a>(
        &mut self,
        runs: &'a [Run],
        bytes: &'a [u8],
    ) -> Result<Vec<NotedEntry<'a>>, PageDamage> {
        let (mut ended, mut noted) = (Vec::new(), Vec::new());
        for (offset, part) in PageEdit::written(runs, bytes) {
            match segment_of(offset) {
                0 if offset == 0 && part == MAGIC => self.exists = true,
                0 if offset >= TABLE_AT => self.note_table(offset, part, &mut ended)?,
                0 => return damage(offset, "a delta writes beside the table"),
                _ => {}
            }
        }
        for (offset, part) in PageEdit::written(runs, bytes) {
            match self.segments.get(segment_of(offset)).contents {
                Contents::Entries => {
                    for frame in Frames::new(offset, part) {
                        let (at, frame) = frame?;
                        let head = frame.head;
                        if let Some(number) = self.note_frame(at, frame)? {
                            noted.push(NotedEntry { number, head });
                        }
                    }
                }
                Contents::Free if segment_of(offset) > 0 => {
                    return damage(offset, "a delta writes to a segment that is free");
                }
                _ => {}
            }
        }
        let zeroed = |segment: &u32| {
            let (start, end) = (start_of(*segment), start_of(*segment + 1));
            let covers = |r: &Run| r.offset <= start && end <= r.offset + u64::from(r.len);
            runs.iter().any(|r| r.kind == RunKind::Zero && covers(r))
        };
        for segment in ended {
            if !zeroed(&segment) || !self.segments.end(segment) {
                return damage(start_of(segment), "a delta frees a segment that is in use");
            }
        }
        self.segments.skip_used();
        Ok(noted)
    }

    fn note_table(
        &mut self,
        offset: u64,
        bytes: &[u8],
        ended: &mut Vec<u32>,
    ) -> Result<(), PageDamage> {
        for (at, byte) in (offset..).zip(bytes) {
            let segment = u32::try_from(at - TABLE_AT).unwrap_or(u32::MAX);
            let is_fine = match Contents::from_byte(*byte) {
                Some(Contents::Free) if self.segments.get(segment).contents != Contents::Free => {
                    ended.push(segment);
                    true
                }
                Some(Contents::Free) => true,
                Some(contents) => self.segments.begin(segment, contents),
                None => false,
            };
            if !is_fine {
                return damage(at, "a segment's byte in the table is wrong");
            }
        }
        Ok(())
    }

    /// The number of the entry, if it is a new one.
    fn note_frame(&mut self, at: u64, frame: EntryFrame<'_>) -> Result<Option<u64>, PageDamage> {
        if !self.lies_in_data(&frame) {
            return damage(at, "an entry's data lies in a segment of something else");
        }
        let place = EntryPlace::of(at, &frame);
        let (number, bytes) = (frame.number, place.frame_bytes());
        for piece in &place.pieces {
            self.segments.add_piece(number, piece);
        }
        self.segments
            .add_frame(segment_of(at), within(at) + bytes, bytes);
        let pieces = place.pieces.len();
        match self.entries.insert(number, place) {
            // It may be lower than one that was here: whoever has scanned the pages does not know of entries whose segment is gone.
            None => {
                self.last = self.last.max(number);
                Ok(Some(number))
            }
            Some(was) if was.pieces.len() == pieces => {
                self.drop_place(&was);
                Ok(None)
            }
            _ => damage(at, "an entry's number is that of another"),
        }
    }

    fn drop_place(&mut self, place: &EntryPlace) {
        self.segments
            .remove_frame(segment_of(place.at), place.frame_bytes());
        place
            .pieces
            .iter()
            .for_each(|piece| self.segments.remove_piece(piece));
    }

    /// The entry is dead: its room may be used again. Does nothing if it is none.
    pub fn release(&mut self, number: u64) {
        let place = self.entries.remove(&number);
        if let Some(place) = place.filter(|_| self.settled) {
            self.drop_place(&place);
        }
    }

    /// The numbers of all entries, in order.
    pub fn numbers(&self) -> impl Iterator<Item = u64> {
        self.entries.keys().copied()
    }

    /// The number that the next entry gets.
    pub fn next_number(&self) -> u64 {
        self.last + 1
    }

    /// An entry's head.
    pub fn head<'p>(&self, pages: &'p Pages, number: u64) -> Option<&'p [u8]> {
        let place = self.entries.get(&number)?;
        let at = place.at + head_at(place.pieces.len()) as u64;
        Some(pages.slice(at, place.head as usize))
    }

    /// The pieces of an entry's data, in order; none of an entry without data, or of none.
    pub fn data(&self, number: u64) -> &[DataPiece] {
        self.entries.get(&number).map_or(&[], |place| &place.pieces)
    }

    /// Bytes that live entries take up, heads and data.
    pub fn live_bytes(&self) -> u64 {
        self.segments.live()
    }

    /// Extents that the bucket has, the one with the table among them.
    pub fn extents(&self) -> u32 {
        u32::from(self.exists) + self.segments.used()
    }

    /// Checks that it is what a scan of the pages finds, for the simulator and tests.
    ///
    /// # Errors
    /// It is not; the text says where.
    pub fn check(&self, pages: &Pages) -> Result<(), String> {
        let found = EntryLog::scan(pages).map_err(|why| why.to_string())?;
        let mut live: BTreeMap<u32, u32> = BTreeMap::new();
        let mut data: Vec<(u64, u64)> = Vec::new();
        for (number, place) in &self.entries {
            if found.entries.get(number) != Some(place) {
                let there = found.entries.get(number);
                return Err(format!(
                    "entry {number} is {place:?}, and in the pages {there:?}"
                ));
            }
            *live.entry(segment_of(place.at)).or_default() += place.frame_bytes() as u32;
            for piece in &place.pieces {
                *live.entry(piece.segment()).or_default() += piece.taken();
                data.push((piece.at, piece.at + u64::from(piece.taken())));
            }
        }
        data.sort_unstable();
        if let Some(pair) = data.windows(2).find(|pair| pair[0].1 > pair[1].0) {
            return Err(format!("two entries have the bytes at {}", pair[1].0));
        }
        for segment in 1..UNIT_SEGMENTS_MAX.min(pages.end_page() / EXTENT_PAGES + 1) {
            let (here, there) = (self.segments.get(segment), found.segments.get(segment));
            let fills = here.contents != Contents::Entries || here.fill == there.fill;
            let lives = live.get(&segment).copied().unwrap_or(0);
            if here.contents != there.contents || !fills || here.live != lives {
                return Err(format!(
                    "segment {segment} is {here:?} with {lives} bytes that live, and in the pages {there:?}"
                ));
            }
        }
        Ok(())
    }
}
