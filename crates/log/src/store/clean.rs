//! Room that comes back: segments in which nothing lives are freed, and of those in which little does it is moved.

use staves_store::Pages;

use super::append::Placement;
use super::edit::PageEdit;
use super::entry_log::{EntryLog, EntryPlace};
use super::frame::{DataPiece, Frames, put_frame, segment_of, start_of};
use super::segments::{Contents, UnitSegment};
use super::{PageDamage, segments::UNIT_SEGMENTS_MAX};
use staves_store::EXTENT_BYTES;

/// Most segments that one delta frees.
const FREED_MAX: usize = 64;
/// Most bytes that one delta moves, frames and data.
const MOVED_BYTES_MAX: usize = 256 << 10;

/// The urgency of cleaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// Room is spared where that is cheap: segments of which half is dead.
    Some,
    /// A write finds no room: segments of which an eighth is dead.
    Much,
}

impl Need {
    fn live_max(self) -> usize {
        match self {
            Need::Some => EXTENT_BYTES / 2,
            Need::Much => EXTENT_BYTES - EXTENT_BYTES / 8,
        }
    }
}

impl EntryLog {
    fn is_open(&self, segment: u32) -> bool {
        self.open.0 == Some(segment) || self.open.1 == Some(segment)
    }

    /// The change that frees segments in which nothing lives, up to 64 of them; `None` if there are none. The cost is a look at each segment's numbers.
    pub fn free(&self) -> Option<PageEdit> {
        let empty =
            |(segment, one): &(u32, &UnitSegment)| one.is_empty() && !self.is_open(*segment);
        let all = self.segments.iter().filter(empty);
        let freed: Vec<u32> = all.map(|(segment, _)| segment).take(FREED_MAX).collect();
        (!freed.is_empty()).then(|| Placement::new(self).finish(&freed))
    }

    /// The segment whose cleaning costs the least, if one is worth it.
    pub fn victim(&self, need: Need) -> Option<u32> {
        let worth = |(segment, one): &(u32, &UnitSegment)| {
            let is_full = !self.is_open(*segment) && one.is_used();
            is_full && one.staged == 0 && one.live as usize <= need.live_max()
        };
        let all = self.segments.iter().filter(worth);
        let least = all.min_by_key(|(segment, one)| (one.live, *segment));
        least.map(|(segment, _)| segment)
    }

    /// The bytes of a segment that cleaning it reads: offset and length.
    pub fn reads_to_clean(&self, segment: u32) -> (u64, u32) {
        (start_of(segment), self.segments.get(segment).fill)
    }

    /// The change that moves what lives in a segment, or 256 KiB of it, to where entries are appended; if it moves all, it frees the segment. It is small
    /// for its worth, and takes at most a new segment of each kind. `None` if there is no place for it.
    ///
    /// # Errors
    /// The pages are damaged.
    pub fn clean(&self, pages: &Pages, segment: u32) -> Result<Option<PageEdit>, PageDamage> {
        if segment == 0 || segment >= UNIT_SEGMENTS_MAX || self.is_open(segment) {
            return Ok(None);
        }
        match self.segments.get(segment).contents {
            Contents::Free | Contents::Spare => Ok(None),
            Contents::Entries => self.clean_entries(pages, segment),
            Contents::Data => self.clean_data(pages, segment),
        }
    }

    /// All of a segment's frames at once: none is ever in two places.
    fn clean_entries(&self, pages: &Pages, segment: u32) -> Result<Option<PageEdit>, PageDamage> {
        let mut place = Placement::new(self);
        let start = start_of(segment);
        for frame in Frames::new(start, pages.slice(start, EXTENT_BYTES)) {
            let (at, frame) = frame?;
            let known = self.entries.get(&frame.number);
            let Some(known) = known.filter(|known| known.at == at) else {
                continue;
            };
            if place.frame(pages.slice(at, known.frame_bytes())).is_err() {
                return Ok(None);
            }
        }
        Ok(Some(place.finish(&[segment])))
    }

    /// Data move piece by piece, and the frames that name them are written over with ones of the same length.
    fn clean_data(&self, pages: &Pages, segment: u32) -> Result<Option<PageEdit>, PageDamage> {
        let mut place = Placement::new(self);
        let users = &self.segments.get(segment).users;
        let (mut moved, mut is_all) = (0, true);
        let mut numbers: Vec<u64> = users.clone();
        numbers.sort_unstable();
        numbers.dedup();
        for number in numbers {
            let Some(known) = self.entries.get(&number).filter(|e| names(e, segment)) else {
                continue;
            };
            let bytes = known.frame_bytes();
            let here = known.pieces.iter().filter(|p| p.segment() == segment);
            moved += bytes + here.map(|p| p.taken() as usize).sum::<usize>();
            if moved > MOVED_BYTES_MAX + bytes {
                is_all = false;
                break;
            }
            if self
                .move_data(pages, segment, (number, known), &mut place)
                .is_none()
            {
                return Ok(None);
            }
        }
        let freed: &[u32] = if is_all { &[segment] } else { &[] };
        Ok(Some(place.finish(freed)))
    }

    fn move_data(
        &self,
        pages: &Pages,
        segment: u32,
        (number, known): (u64, &EntryPlace),
        place: &mut Placement<'_>,
    ) -> Option<()> {
        let mut pieces: Vec<DataPiece> = Vec::with_capacity(known.pieces.len());
        for piece in &known.pieces {
            pieces.push(match piece.segment() == segment {
                true => place
                    .one_piece(pages.slice(piece.at, piece.len as usize))
                    .ok()?,
                false => *piece,
            });
        }
        let mut frame = Vec::with_capacity(known.frame_bytes());
        put_frame(&mut frame, number, &pieces, self.head(pages, number)?);
        place.of_frames.put(known.at, &frame);
        Some(())
    }

    /// Forgets the dead entries that had data in a segment.
    pub fn tidy_users(&mut self, segment: u32) {
        let EntryLog {
            entries, segments, ..
        } = self;
        let lives = |number: u64| entries.get(&number).is_some_and(|e| names(e, segment));
        segments.retain_users(segment, lives);
    }

    /// Returns whether so much of the bucket is dead that cleaning is due.
    pub fn is_untidy(&self) -> bool {
        let used = self.segments.used() - self.segments.spares();
        let used = u64::from(used) * EXTENT_BYTES as u64;
        let dead = used.saturating_sub(self.segments.live());
        dead > used / 4 && dead > 4 * EXTENT_BYTES as u64
    }
}

fn names(entry: &EntryPlace, segment: u32) -> bool {
    entry
        .pieces
        .iter()
        .any(|piece| segment_of(piece.at) == segment)
}
