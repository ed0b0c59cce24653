//! The names and values of the log: ids, terms, projections, records of logs, slots.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::retention::{LogCursors, LogRetention};
use staves_model::{GroupId, Incarnation, NodeId};

pub use session::{AppendId, Low, SESSION_WINDOW, SessionId};

mod session;

/// Most bytes of a log's name.
pub const NAME_BYTES_MAX: usize = 255;

/// True if a log may have the name: 1 to [`NAME_BYTES_MAX`] bytes, and no character that would end a line or rule a terminal.
pub fn is_name(name: &str) -> bool {
    let ends_line = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(ends_line)
}
/// Most tags of a record, and of a batch.
pub const TAGS_MAX: usize = 8;
/// The earlier positions of a tag that a record names.
pub const BACK_POINTERS: usize = 4;
/// Most records of a batch.
pub const BATCH_RECORDS_MAX: u32 = 1024;
/// Most bytes of a record.
pub const RECORD_BYTES_MAX: u32 = 16 << 20;
/// Most segments of a projection.
pub const SEGMENTS_MAX: usize = 256;
/// Most units of a segment.
pub const SEGMENT_UNITS_MAX: usize = 1024;
/// Most positions of a map page: even if each is a run of its own, one delta takes the page.
pub const PAGE_POSITIONS_MAX: u32 = 24 << 10;
/// Most groups of a pool that can be the home of logs, as many as a log's number has room for.
pub const HOMES_MAX: u32 = 1 << 24;

/// The bits of a log's number that count the logs of one home.
const COUNTER_BITS: u32 = 40;

/// A position of a log, from 0.
pub type Position = u64;

/// A unit: the data bucket of one group of the pool, named by the group.
pub type UnitId = GroupId;

/// The number of a log, never used again: the group of its home unit and a counter of that unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LogId(pub u64);

impl LogId {
    /// The number of the log that is the `count`-th of a home. None if one of both is past its bits.
    pub fn new(home: UnitId, count: u64) -> Option<LogId> {
        let fits = home.0 < HOMES_MAX && count < 1 << COUNTER_BITS;
        fits.then(|| LogId(u64::from(home.0) << COUNTER_BITS | count))
    }

    /// The unit that gave the number out.
    pub fn home(self) -> UnitId {
        GroupId((self.0 >> COUNTER_BITS) as u32)
    }
}

impl fmt::Debug for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0 & ((1 << COUNTER_BITS) - 1);
        write!(f, "l{}.{count}", self.home().0)
    }
}

/// A log's version of sequencer and projection. It fences everything older. 0 before the first sequencer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Term(pub u64);

impl Term {
    /// The next one.
    pub fn next(self) -> Term {
        Term(self.0 + 1)
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}", self.0)
    }
}

/// One life of a sequencer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SequencerId {
    /// The node.
    pub node: NodeId,
    /// The node's life.
    pub incarnation: Incarnation,
}

/// The way of an append.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AppendMode {
    /// The client picks a unit, the sequencer binds the next position to it. One round trip, no wrong guess.
    #[default]
    Bind,
    /// Positions belong to units in turn. The client guesses the unit of its token (row L2). One round trip.
    Predict,
    /// Positions belong to units in turn. Token first, data second: two round trips.
    Corfu,
}

/// The options of one log, fixed at its creation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogOptions {
    /// The way of its appends.
    pub mode: AppendMode,
    /// Positions of a map page (bind).
    pub page_positions: u32,
    /// A binding without data becomes junk after so many microseconds: they bound the *difference* of two paths, in
    /// [`AppendMode::Corfu`] a client's round trip.
    pub hole_us: u32,
    /// The same where a reader waits for the position.
    pub read_hole_us: u32,
}

impl LogOptions {
    /// The defaults of a mode.
    pub fn of(mode: AppendMode) -> LogOptions {
        let (hole_us, read_hole_us) = match mode {
            AppendMode::Bind | AppendMode::Predict => (8_000, 2_000),
            AppendMode::Corfu => (400_000, 300_000),
        };
        LogOptions {
            mode,
            page_positions: 1024,
            hole_us,
            read_hole_us,
        }
    }

    /// True if all of it is within its bounds.
    pub fn is_valid(&self) -> bool {
        (1..=PAGE_POSITIONS_MAX).contains(&self.page_positions) && self.read_hole_us <= self.hole_us
    }
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions::of(AppendMode::Bind)
    }
}

/// A run of positions up to the next segment, and the units that they are spread over in turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProjectionSegment {
    /// Its first position.
    pub first: Position,
    /// Its units: at least one.
    pub units: Vec<UnitId>,
}

impl ProjectionSegment {
    fn owner(&self, position: Position) -> Option<UnitId> {
        let turn = position
            .saturating_sub(self.first)
            .checked_rem(self.units.len() as u64)?;
        self.units.get(turn as usize).copied()
    }
}

/// The units of a log, by position: round-robin inside a segment, linear between segments (row L1). It never changes within a term.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Projection {
    /// Its segments, by first position.
    pub segments: Vec<ProjectionSegment>,
}

impl Projection {
    /// The unit that a position, or a map page that begins there, belongs to. None if there is no segment.
    pub fn owner(&self, position: Position) -> Option<UnitId> {
        let after = self.segments.partition_point(|s| s.first <= position);
        let segment = self.segments.get(after.checked_sub(1)?)?;
        segment.owner(position)
    }

    /// The units of all segments.
    pub fn units(&self) -> BTreeSet<UnitId> {
        let units = self.segments.iter().flat_map(|s| s.units.iter());
        units.copied().collect()
    }

    /// The units of the last segment: those that new positions go to.
    pub fn last(&self) -> &[UnitId] {
        self.segments.last().map_or(&[], |s| &s.units)
    }

    /// The same with more units from `start` on. No change if there are none to add.
    pub fn grown(&self, start: Position, added: &[UnitId]) -> Projection {
        let mut grown = self.clone();
        let new: Vec<UnitId> = added
            .iter()
            .filter(|unit| !self.last().contains(unit))
            .copied()
            .collect();
        if !new.is_empty() {
            let units = [self.last(), &new].concat();
            // A segment that begins where the last one does has no position of its own.
            grown.segments.retain(|s| s.first < start);
            let first = start;
            grown.segments.push(ProjectionSegment { first, units });
        }
        grown
    }
}

/// The open term of a log, as clients and sequencers act on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogView {
    /// The log.
    pub log: LogId,
    /// The options.
    pub options: LogOptions,
    /// The term that was opened last; 0 if none was.
    pub term: Term,
    /// Its sequencer; none before the first term.
    pub sequencer: Option<SequencerId>,
    /// The first position that it could give out.
    pub start: Position,
    /// The units.
    pub projection: Arc<Projection>,
    /// Positions below are trimmed.
    pub trim: Position,
}

/// A term that is committed and not yet open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leadership {
    /// The term.
    pub term: Term,
    /// Its sequencer.
    pub sequencer: SequencerId,
    /// Units that the term adds.
    pub added: Vec<UnitId>,
}

/// The record of a log, which its home unit keeps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogRecord {
    /// The name.
    pub name: String,
    /// The open term.
    pub view: LogView,
    /// A newer term, if one is committed. Abandoned unopened, it changes nothing.
    pub lead: Option<Leadership>,
    /// The cursors of readers.
    pub cursors: LogCursors,
    /// The records that are kept.
    pub retention: LogRetention,
}

impl LogRecord {
    /// The highest term that was committed.
    pub fn term(&self) -> Term {
        self.lead.as_ref().map_or(self.view.term, |lead| lead.term)
    }

    /// The units that the next term has to seal: every one of the last open projection, and every new one.
    pub fn to_seal(&self) -> BTreeSet<UnitId> {
        let mut units = self.view.projection.units();
        let added = self.lead.iter().flat_map(|lead| lead.added.iter());
        units.extend(added);
        units
    }
}

/// A tag of a record, and the positions before it that bear the tag: the last [`BACK_POINTERS`], ascending. Fewer: there are no others.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TagLink {
    /// The tag.
    pub tag: u64,
    /// Earlier positions that were bound with it. Some may have become junk.
    pub back: Vec<Position>,
}

/// A position, or a run of them for a batch, that the sequencer gave to an append; or to nobody, so that it becomes junk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Binding {
    /// The first position.
    pub position: Position,
    /// The number of positions: at least 1.
    pub count: u32,
    /// The append; none for a position that was skipped.
    pub id: Option<AppendId>,
    /// The tags.
    pub links: Vec<TagLink>,
}

impl Binding {
    /// The position past the last; the highest there is, where it would be past that.
    pub fn end(&self) -> Position {
        self.position.saturating_add(u64::from(self.count))
    }
}

/// The place of a record's bytes, given by the unit's layout. A pure simulator takes an index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DataPlace {
    /// The layout's own number of it.
    pub at: u64,
    /// Bytes of the record.
    pub bytes: u32,
}

/// The head of a record, returned with its bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordHead {
    /// The append that it is of.
    pub id: AppendId,
    /// Its place in the batch, from 0.
    pub index: u32,
    /// The records of the batch.
    pub count: u32,
    /// Its tags.
    pub links: Vec<TagLink>,
}

/// The content of a position in a map page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageEntry {
    /// The unit that has it.
    Unit(UnitId),
    /// Junk, for ever.
    Junk,
    /// It was trimmed before the page was written.
    Trimmed,
}

/// Positions in a row of one content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageRun {
    /// Their number.
    pub count: u32,
    /// The content.
    pub entry: PageEntry,
}

/// The content of a position of a map page; none past its end.
pub fn page_entry(runs: &[PageRun], index: u64) -> Option<PageEntry> {
    let mut end = 0;
    let covers = |run: &&PageRun| {
        end += u64::from(run.count);
        index < end
    };
    runs.iter().find(covers).map(|run| run.entry)
}

#[cfg(test)]
mod tests;
