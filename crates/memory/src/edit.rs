//! The changes of pages that writes become.

use bytes::BytesMut;
use staves_model::mutant::{Mutant, planted};
use staves_model::{CHUNK_BYTES, PAGE_BYTES};
use staves_service::BucketContext;
use staves_store::EXTENT_BYTES;
use staves_wire::group::{Run, RunKind};
use staves_wire::memory::Action;
use staves_wire::service::Answer;

use crate::chunks::{self, Table, run};
use crate::places::Places;

static ZEROES: [u8; CHUNK_BYTES as usize] = [0; CHUNK_BYTES as usize];

/// The change that an operation makes of the pages.
pub(crate) struct Edit {
    pub(crate) runs: Vec<Run>,
    pub(crate) bytes: BytesMut,
    /// The highest place that it writes to.
    pub(crate) place: u16,
    /// That place was free.
    pub(crate) is_new: bool,
    /// The chunk has another place then, or none.
    pub(crate) moves: bool,
    pub(crate) answer: Answer,
}

impl Default for Edit {
    /// Nothing, answered with `Ok`.
    fn default() -> Edit {
        Edit {
            runs: Vec::with_capacity(3),
            bytes: BytesMut::new(),
            place: 0,
            is_new: false,
            moves: false,
            answer: Answer::Ok,
        }
    }
}

impl Edit {
    pub(crate) fn push(&mut self, run: Run, bytes: &[u8]) {
        self.runs.push(run);
        self.bytes.extend_from_slice(bytes);
    }
}

/// The chunk that a write is about.
pub(crate) struct WrittenChunk {
    pub(crate) table: Table,
    pub(crate) place: Option<u16>,
    /// Other images have the place, too.
    pub(crate) is_shared: bool,
}

/// The change that a write makes, where nothing hinders it; `None` if it needs a place and there is none.
pub(crate) fn edit(
    context: &BucketContext,
    places: &Places,
    at: WrittenChunk,
    action: &Action,
) -> Option<Edit> {
    let (offset, len) = action.range();
    let of_word = |new: u64| {
        let old = Answer::Int(word(context, at.place, offset) as i64);
        put(context, places, &at, (offset, &new.to_le_bytes()), old)
    };
    match action {
        Action::Write { bytes, .. } | Action::Load { bytes, .. } | Action::Put { bytes, .. } => {
            put(context, places, &at, (offset, bytes), Answer::Ok)
        }
        Action::Zero { .. } if at.is_shared && len < CHUNK_BYTES => {
            let zeroes = &ZEROES[..len as usize];
            put(context, places, &at, (offset, zeroes), Answer::Ok)
        }
        Action::Zero { .. } => Some(zero(places, &at, offset, len)),
        Action::CompareSwap { new, .. } => of_word(*new),
        Action::FetchAdd { by, .. } => of_word(word(context, at.place, offset).wrapping_add(*by)),
        _ => Some(Edit::default()),
    }
}

/// The bytes, and the chunk's place if it has none yet, or one that is not its own.
fn put(
    context: &BucketContext,
    places: &Places,
    at: &WrittenChunk,
    (offset, bytes): (u64, &[u8]),
    answer: Answer,
) -> Option<Edit> {
    let own = at.place.filter(|_| !at.is_shared);
    let mut edit = Edit {
        bytes: BytesMut::with_capacity(bytes.len() + 16),
        place: own.or_else(|| places.lowest_free(0))?,
        is_new: own.is_none(),
        moves: own.is_none(),
        answer,
        ..Edit::default()
    };
    if edit.is_new {
        let (run, entry) = at.table.entry(chunks::chunk_of(offset), edit.place);
        edit.push(run, &entry);
    }
    match at.place.filter(|_| at.is_shared) {
        Some(shared) => copy_changed(context, &mut edit, shared, (offset, bytes)),
        None => edit.push(
            run(chunks::at(edit.place, offset), bytes.len() as u64),
            bytes,
        ),
    }
    Some(edit)
}

/// Puts bytes to the edit's place, which is free, and around them those of another place.
fn copy_changed(
    context: &BucketContext,
    edit: &mut Edit,
    from: u16,
    (offset, bytes): (u64, &[u8]),
) {
    const CHUNK: usize = CHUNK_BYTES as usize;
    let mut whole = match context.member().pages() {
        Some(pages) if bytes.len() < CHUNK => pages.slice(chunks::at(from, 0), CHUNK).to_vec(),
        _ => vec![0; CHUNK],
    };
    let within = (offset % CHUNK_BYTES) as usize;
    whole[within..within + bytes.len()].copy_from_slice(bytes);
    // Pages of zeroes are so already; neighbours go in one run.
    let pages = whole.chunks(PAGE_BYTES).enumerate();
    let written = pages.filter(|(_, page)| page.iter().any(|byte| *byte != 0));
    for (index, page) in written {
        let at = chunks::at(edit.place, (index * PAGE_BYTES) as u64);
        match edit.runs.last_mut() {
            Some(run) if run.offset + u64::from(run.len) == at => run.len += PAGE_BYTES as u32,
            _ => edit.runs.push(run(at, PAGE_BYTES as u64)),
        }
        edit.bytes.extend_from_slice(page);
    }
}

/// Zeroes in the place of a chunk. Of a whole chunk the place is free then if no other image has it, and with the last one its extent.
fn zero(places: &Places, at: &WrittenChunk, offset: u64, len: u64) -> Edit {
    let mut edit = Edit::default();
    let Some(place) = at.place else {
        return edit;
    };
    if len == CHUNK_BYTES {
        let (run, entry) = at.table.entry(chunks::chunk_of(offset), 0);
        edit.push(run, &entry);
        edit.moves = true;
        if at.is_shared || planted(Mutant::FreedNotZeroed) {
            return edit;
        }
    }
    edit.place = place;
    let target = match places.extent_of_last(place).filter(|_| len == CHUNK_BYTES) {
        Some(extent) => whole_extent(extent),
        None => run(chunks::at(place, offset), len),
    };
    if target.kind == RunKind::Bytes {
        edit.bytes.resize(edit.bytes.len() + len as usize, 0);
    }
    edit.runs.push(target);
    edit
}

/// An extent that becomes free.
pub(crate) fn whole_extent(offset: u64) -> Run {
    Run {
        offset,
        len: EXTENT_BYTES as u32,
        kind: RunKind::Zero,
    }
}

/// The word at an offset in a place; 0 where there is none.
pub(crate) fn word(context: &BucketContext, place: Option<u16>, offset: u64) -> u64 {
    let (Some(place), Some(pages)) = (place, context.member().pages()) else {
        return 0;
    };
    let word = pages.slice(chunks::at(place, offset), 8);
    u64::from_le_bytes(word.try_into().expect("a slice of eight"))
}
