//! The segments of a unit's bucket, in numbers.

use staves_store::{BUCKET_EXTENTS_MAX, EXTENT_BYTES};

use super::frame::DataPiece;

/// The number of segments that a bucket can have, the one with the table among them.
pub(crate) const UNIT_SEGMENTS_MAX: u32 = BUCKET_EXTENTS_MAX;

/// The contents of a segment, as its byte in the table has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Contents {
    /// Nothing: its extent does not exist.
    #[default]
    Free,
    /// Frames of entries.
    Entries,
    /// Data of entries.
    Data,
    /// Room that is kept for what gives room back: its extent exists, so that it is there after a start on a full disk as well.
    Spare,
}

impl Contents {
    pub(crate) fn to_byte(self) -> u8 {
        match self {
            Contents::Free => 0,
            Contents::Entries => 1,
            Contents::Data => 2,
            Contents::Spare => 3,
        }
    }

    pub(crate) fn from_byte(byte: u8) -> Option<Contents> {
        use Contents::{Data, Entries, Free, Spare};
        [Free, Entries, Data, Spare]
            .into_iter()
            .find(|contents| contents.to_byte() == byte)
    }
}

/// One segment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct UnitSegment {
    pub contents: Contents,
    /// The end of what was written; in one of data, of what is known to be named, at least.
    pub fill: u32,
    /// Bytes that live entries take up.
    pub live: u32,
    /// Bytes of data that no entry names yet.
    pub staged: u32,
    /// Entries with data here, perhaps dead ones among them.
    pub users: Vec<u64>,
}

impl UnitSegment {
    /// Returns whether nothing in it is needed.
    pub(crate) fn is_empty(&self) -> bool {
        self.is_used() && self.live == 0 && self.staged == 0
    }

    /// Returns whether it has entries or data.
    pub(crate) fn is_used(&self) -> bool {
        matches!(self.contents, Contents::Entries | Contents::Data)
    }

    /// Bytes behind the last that was written.
    pub(crate) fn room(&self) -> usize {
        EXTENT_BYTES - (self.fill as usize).min(EXTENT_BYTES)
    }
}

/// All segments of a bucket. That with the number 0 has the table, and is none of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogSegments {
    all: Vec<UnitSegment>,
    /// No segment below is free.
    free_from: u32,
    /// Segments that are not free, those that are spare among them.
    used: u32,
    spare: u32,
    /// Bytes of all that live entries take up.
    live: u64,
}

impl LogSegments {
    /// One segment; a free one if it never was.
    pub(crate) fn get(&self, segment: u32) -> &UnitSegment {
        static FREE: UnitSegment = UnitSegment {
            contents: Contents::Free,
            fill: 0,
            live: 0,
            staged: 0,
            users: Vec::new(),
        };
        self.all.get(segment as usize).unwrap_or(&FREE)
    }

    fn get_mut(&mut self, segment: u32) -> Option<&mut UnitSegment> {
        self.all.get_mut(segment as usize)
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &UnitSegment)> {
        (0..).zip(&self.all).skip(1)
    }

    /// Segments that are not free.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// Segments that are spare.
    pub(crate) fn spares(&self) -> u32 {
        self.spare
    }

    /// Bytes that live entries take up.
    pub(crate) fn live(&self) -> u64 {
        self.live
    }

    /// Begins a free segment, or a spare one. False if it is neither.
    pub(crate) fn begin(&mut self, segment: u32, contents: Contents) -> bool {
        let was = self.get(segment).contents;
        let is_spare = was == Contents::Spare && contents != Contents::Spare;
        let is_free = was == Contents::Free || is_spare;
        if !is_free || contents == Contents::Free || !(1..UNIT_SEGMENTS_MAX).contains(&segment) {
            return false;
        }
        if self.all.len() <= segment as usize {
            self.all
                .resize_with(segment as usize + 1, UnitSegment::default);
        }
        self.all[segment as usize].contents = contents;
        self.used += u32::from(!is_spare);
        self.spare -= u32::from(is_spare);
        self.spare += u32::from(contents == Contents::Spare);
        true
    }

    /// A segment in which nothing lives is free again. False if something does.
    pub(crate) fn end(&mut self, segment: u32) -> bool {
        let Some(one) = self.get_mut(segment).filter(|s| s.is_empty()) else {
            return false;
        };
        *one = UnitSegment::default();
        self.used -= 1;
        self.free_from = self.free_from.min(segment);
        true
    }

    /// The lowest free segment beside those that are `taken`.
    pub(crate) fn fresh(&self, taken: &[u32]) -> Option<u32> {
        let is_free = |s: &u32| self.get(*s).contents == Contents::Free && !taken.contains(s);
        (self.free_from.max(1)..UNIT_SEGMENTS_MAX).find(is_free)
    }

    /// A spare segment beside those that are `taken`.
    pub(crate) fn spare(&self, taken: &[u32]) -> Option<u32> {
        let mut all = self.iter().filter(|_| self.spare > 0);
        let is_spare =
            |s: &(u32, &UnitSegment)| s.1.contents == Contents::Spare && !taken.contains(&s.0);
        all.find(is_spare).map(|(segment, _)| segment)
    }

    /// The search for a free segment begins behind those that are not.
    pub(crate) fn skip_used(&mut self) {
        let mut from = self.free_from.max(1);
        while self.get(from).contents != Contents::Free {
            from += 1;
        }
        self.free_from = from;
    }

    /// A frame that ends at `fill` lives.
    pub(crate) fn add_frame(&mut self, segment: u32, fill: usize, bytes: usize) {
        if let Some(one) = self.get_mut(segment) {
            one.fill = one.fill.max(fill as u32);
            one.live = one.live.saturating_add(bytes as u32);
            self.live += bytes as u64;
        }
    }

    /// A frame has died, or has moved.
    pub(crate) fn remove_frame(&mut self, segment: u32, bytes: usize) {
        self.remove(segment, bytes as u32);
    }

    /// Frames reach up to `fill`.
    pub(crate) fn fill(&mut self, segment: u32, fill: usize) {
        if let Some(one) = self.get_mut(segment) {
            one.fill = one.fill.max(fill as u32);
        }
    }

    /// An entry names data.
    pub(crate) fn add_piece(&mut self, number: u64, piece: &DataPiece) {
        if let Some(one) = self.get_mut(piece.segment()) {
            one.fill = one.fill.max(piece.end());
            one.live = one.live.saturating_add(piece.taken());
            if one.users.last() != Some(&number) {
                one.users.push(number);
            }
            self.live += u64::from(piece.taken());
        }
    }

    /// No entry names the data any more.
    pub(crate) fn remove_piece(&mut self, piece: &DataPiece) {
        self.remove(piece.segment(), piece.taken());
    }

    fn remove(&mut self, segment: u32, bytes: u32) {
        if let Some(one) = self.get_mut(segment) {
            let bytes = one.live.min(bytes);
            one.live -= bytes;
            self.live = self.live.saturating_sub(u64::from(bytes));
        }
    }

    /// Data was written that no entry names yet.
    pub(crate) fn stage(&mut self, piece: &DataPiece) {
        if let Some(one) = self.get_mut(piece.segment()) {
            one.fill = one.fill.max(piece.end());
            one.staged = one.staged.saturating_add(piece.taken());
        }
    }

    /// It is named now, or given up.
    pub(crate) fn unstage(&mut self, piece: &DataPiece) {
        if let Some(one) = self.get_mut(piece.segment()) {
            one.staged = one.staged.saturating_sub(piece.taken());
        }
    }

    /// Nothing is staged: whoever had staged it is gone.
    pub(crate) fn unstage_all(&mut self) {
        self.all.iter_mut().for_each(|one| one.staged = 0);
    }

    /// Of the users of a segment of data, only those stay that are wanted, each once.
    pub(crate) fn retain_users(&mut self, segment: u32, wanted: impl Fn(u64) -> bool) {
        if let Some(one) = self.get_mut(segment) {
            one.users.sort_unstable();
            one.users.dedup();
            one.users.retain(|number| wanted(*number));
        }
    }
}
