//! Appends: the places of new entries and of their data.

use staves_model::PAGE_BYTES;
use staves_store::EXTENT_BYTES;

use super::edit::PageEdit;
use super::entry_log::EntryLog;
use super::frame::{
    DataPiece, HEAD_BYTES_MAX, PIECES_MAX, frame_bytes, put_frame, segment_of, start_of, within,
};
use super::segments::Contents;
use super::{DATA_BYTES_MAX, ENTRIES_MAX, FRAMES_BYTES_MAX, INLINE_BYTES_MAX, NoPlace};

/// Data of so many bytes begin with a page.
const ALIGNED_BYTES_MIN: usize = 64 << 10;
/// The first bytes of a spare segment: by them its extent exists. The first frame is longer.
const SPARE_MARK: [u8; 8] = [0xFF; 8];
/// Data are not broken for a place of fewer bytes.
const PIECE_BYTES_MIN: usize = 2048;

/// An entry to be appended.
#[derive(Clone, Copy, Debug)]
pub struct AppendedEntry<'a> {
    /// Its head, of at most [`HEAD_BYTES_MAX`] bytes.
    pub head: &'a [u8],
    /// Its data.
    pub data: NewData<'a>,
}

/// The data of an entry to be appended.
#[derive(Clone, Copy, Debug)]
pub enum NewData<'a> {
    /// None.
    Nothing,
    /// These bytes.
    Bytes(&'a [u8]),
    /// Staged data, in order.
    Staged(&'a [DataPiece]),
}

/// A place that is appended to.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    contents: Contents,
    segment: Option<u32>,
    fill: usize,
}

impl Cursor {
    fn room(&self) -> usize {
        self.segment.map_or(0, |_| EXTENT_BYTES - self.fill)
    }

    fn at(&self) -> u64 {
        start_of(self.segment.unwrap_or(0)) + self.fill as u64
    }
}

/// A change of the pages that takes places one after another.
pub(crate) struct Placement<'l> {
    log: &'l EntryLog,
    frames: Cursor,
    data: Cursor,
    /// The segments that it begins.
    begun: Vec<(u32, Contents)>,
    /// Those of them that were spare.
    spares: u32,
    /// The changes of each kind of segment.
    pub(crate) of_frames: PageEdit,
    pub(crate) of_data: PageEdit,
}

impl<'l> Placement<'l> {
    pub(crate) fn new(log: &'l EntryLog) -> Placement<'l> {
        let cursor = |contents, open: Option<u32>| Cursor {
            contents,
            segment: open,
            fill: open.map_or(0, |s| log.segments.get(s).fill as usize),
        };
        Placement {
            log,
            frames: cursor(Contents::Entries, log.open.0),
            data: cursor(Contents::Data, log.open.1),
            begun: Vec::new(),
            spares: 0,
            of_frames: PageEdit::default(),
            of_data: PageEdit::default(),
        }
    }

    fn begin(&mut self, contents: Contents) -> Result<Cursor, NoPlace> {
        let taken: Vec<u32> = self.begun.iter().map(|(segment, _)| *segment).collect();
        let segments = &self.log.segments;
        let takes_spares = self.log.lean && contents != Contents::Spare;
        let spare = segments.spare(&taken).filter(|_| takes_spares);
        self.spares += u32::from(spare.is_some());
        let segment = spare.or_else(|| segments.fresh(&taken));
        let segment = segment.ok_or(NoPlace::Segments)?;
        self.begun.push((segment, contents));
        Ok(Cursor {
            contents,
            segment: Some(segment),
            fill: 0,
        })
    }

    /// Puts a frame.
    pub(crate) fn frame(&mut self, frame: &[u8]) -> Result<(), NoPlace> {
        if self.frames.room() < frame.len() {
            self.frames = self.begin(self.frames.contents)?;
        }
        self.of_frames.put(self.frames.at(), frame);
        self.frames.fill += frame.len();
        Ok(())
    }

    /// Puts data in as few pieces as there is room for.
    pub(crate) fn data(&mut self, bytes: &[u8]) -> Result<Vec<DataPiece>, NoPlace> {
        if bytes.len() >= ALIGNED_BYTES_MIN {
            self.data.fill = self.data.fill.next_multiple_of(PAGE_BYTES);
        }
        let (mut pieces, mut rest) = (Vec::new(), bytes);
        while !rest.is_empty() {
            let room = self.data.room();
            if room < rest.len() && room < PIECE_BYTES_MIN {
                self.data = self.begin(self.data.contents)?;
            }
            let (part, tail) = rest.split_at(rest.len().min(self.data.room()));
            pieces.push(self.piece(part));
            rest = tail;
        }
        Ok(pieces)
    }

    /// Puts data in one piece.
    pub(crate) fn one_piece(&mut self, bytes: &[u8]) -> Result<DataPiece, NoPlace> {
        if self.data.room() < bytes.len() {
            self.data = self.begin(self.data.contents)?;
        }
        Ok(self.piece(bytes))
    }

    fn piece(&mut self, bytes: &[u8]) -> DataPiece {
        let piece = DataPiece {
            at: self.data.at(),
            len: bytes.len() as u32,
        };
        self.of_data.put(piece.at, bytes);
        self.data.fill += piece.taken() as usize;
        piece
    }

    /// The change as a whole; it frees these segments besides.
    pub(crate) fn finish(self, freed: &[u32]) -> PageEdit {
        let mut edit = PageEdit::default();
        let is_new = !self.log.exists && !self.begun.is_empty();
        edit.begun = self.begun.len() as u32 - self.spares + u32::from(is_new);
        let mut changed = self.begun;
        changed.extend(freed.iter().map(|segment| (*segment, Contents::Free)));
        edit.put_table(changed, is_new);
        edit.zero(freed);
        edit.join(self.of_data);
        edit.join(self.of_frames);
        edit.open = (self.frames.segment, self.data.segment);
        edit
    }
}

impl EntryLog {
    /// The change that appends entries, the first of them with [`EntryLog::next_number`]. Nothing is appended before [`EntryLog::note`] has it.
    ///
    /// # Errors
    /// There is no place for them, or they are too large for one delta.
    pub fn append(&self, entries: &[AppendedEntry<'_>]) -> Result<PageEdit, NoPlace> {
        let mut place = Placement::new(self);
        let (mut frame, mut inline, mut frames) = (Vec::new(), 0, 0);
        if entries.len() > ENTRIES_MAX {
            return Err(NoPlace::TooLarge);
        }
        for (number, entry) in (self.next_number()..).zip(entries) {
            let pieces = match entry.data {
                NewData::Nothing => Vec::new(),
                NewData::Staged(pieces) => pieces.to_vec(),
                NewData::Bytes(bytes) => {
                    inline += bytes.len();
                    if inline > INLINE_BYTES_MAX {
                        return Err(NoPlace::TooLarge);
                    }
                    place.data(bytes)?
                }
            };
            frames += frame_bytes(entry.head.len(), pieces.len());
            let is_large = entry.head.len() > HEAD_BYTES_MAX || pieces.len() > PIECES_MAX;
            if is_large || frames > FRAMES_BYTES_MAX {
                return Err(NoPlace::TooLarge);
            }
            frame.clear();
            put_frame(&mut frame, number, &pieces, entry.head);
            place.frame(&frame)?;
        }
        Ok(place.finish(&[]))
    }

    /// Has what is appended next begin spare segments, if there are some, before free ones.
    pub fn set_lean(&mut self, lean: bool) {
        self.lean = lean;
    }

    /// The change that keeps so many segments spare.
    ///
    /// # Errors
    /// There are not so many.
    pub fn make_spares(&self, count: u32) -> Result<PageEdit, NoPlace> {
        let mut place = Placement::new(self);
        for _ in 0..count {
            let spare = place.begin(Contents::Spare)?;
            place.of_data.put(spare.at(), &SPARE_MARK);
        }
        Ok(place.finish(&[]))
    }

    /// Segments that are spare.
    pub fn spares(&self) -> u32 {
        self.segments.spares()
    }

    /// The change that stages a part of an entry's data, of at most [`INLINE_BYTES_MAX`] bytes, behind those that were staged for it already; and all
    /// pieces then. They are staged once [`EntryLog::has_staged`] has them.
    ///
    /// # Errors
    /// There is no place for it, or the data are too large for one entry.
    pub fn stage(
        &self,
        known: &[DataPiece],
        bytes: &[u8],
    ) -> Result<(PageEdit, Vec<DataPiece>), NoPlace> {
        let staged: usize = known.iter().map(|piece| piece.len as usize).sum();
        if bytes.len() > INLINE_BYTES_MAX || staged + bytes.len() > DATA_BYTES_MAX {
            return Err(NoPlace::TooLarge);
        }
        let mut place = Placement::new(self);
        let mut pieces = known.to_vec();
        for piece in place.data(bytes)? {
            match pieces.last_mut() {
                Some(last) if joins(last, &piece) => last.len += piece.len,
                _ => pieces.push(piece),
            }
        }
        Ok((place.finish(&[]), pieces))
    }

    /// The segments that a change which was made appends to are appended to from now on.
    pub fn keep_open(&mut self, edit: &PageEdit) {
        self.open = edit.open;
    }

    /// Counts the staged data of an entry, which are now these pieces and were `known` before.
    pub fn has_staged(&mut self, known: &[DataPiece], pieces: &[DataPiece]) {
        known.iter().for_each(|piece| self.segments.unstage(piece));
        pieces.iter().for_each(|piece| self.segments.stage(piece));
    }

    /// An entry names it now, or it is given up.
    pub fn unstage(&mut self, pieces: &[DataPiece]) {
        pieces.iter().for_each(|piece| self.segments.unstage(piece));
    }

    /// The offsets that are appended to next.
    pub fn ends(&self) -> impl Iterator<Item = u64> {
        let open = [self.open.0, self.open.1].into_iter().flatten();
        let fill = |segment: u32| self.segments.get(segment).fill as usize;
        let roomy = open.filter(move |segment| fill(*segment) < EXTENT_BYTES);
        roomy.map(move |segment| start_of(segment) + fill(segment) as u64)
    }

    /// Nothing is staged: whoever had staged it has ceased to serve.
    pub fn give_up_staged(&mut self) {
        self.segments.unstage_all();
    }

    /// Begins to append at a member that serves from now on: where there is the most room.
    pub fn start(&mut self) {
        self.give_up_staged();
        let roomiest = |contents: Contents| {
            let all = self.segments.iter();
            let those = all.filter(|(_, s)| s.contents == contents && s.room() > 0);
            those
                .max_by_key(|(_, s)| s.room())
                .map(|(segment, _)| segment)
        };
        self.open = (roomiest(Contents::Entries), roomiest(Contents::Data));
    }
}

/// Returns whether one piece lies right behind another in the same segment, with nothing between them.
fn joins(last: &DataPiece, next: &DataPiece) -> bool {
    let end = last.at + u64::from(last.len);
    end == next.at && segment_of(last.at) == segment_of(next.at) && within(end) > 0
}
