//! Operations on the bytes, and the deltas that they become.

use bytes::BytesMut;
use staves_group::Effects;
use staves_model::mutant::{Mutant, planted};
use staves_model::{CHUNK_BYTES, REGION_BUCKET_BYTES_MAX, Time};
use staves_service::{BucketContext, Growth, OpHeader, Outcome};
use staves_store::EXTENT_BYTES;
use staves_wire::ErrorCode;
use staves_wire::group::{Run, RunKind};
use staves_wire::memory::Action;
use staves_wire::service::Answer;

use crate::chunks::run;
use crate::memory::Memory;
use crate::places::{PagesState, Places};
use crate::{chunks, reads};

/// Most extents that are requested beyond those needed now.
const AHEAD_MAX: u32 = 16;

/// The error of an operation that no bucket would take.
pub(crate) fn malformed(action: &Action) -> Option<Answer> {
    let (offset, len) = action.range();
    let word = matches!(action, Action::CompareSwap { .. } | Action::FetchAdd { .. });
    let wrong = if len == 0 {
        "it touches 0 bytes"
    } else if offset
        .checked_add(len)
        .is_none_or(|end| end > REGION_BUCKET_BYTES_MAX)
    {
        "it lies beyond the data bucket's end"
    } else if action.chunks() > 1 && !matches!(action, Action::Allocated { .. }) {
        "it leaves its chunk"
    } else if word && !offset.is_multiple_of(8) {
        "its word does not begin at a multiple of 8"
    } else {
        return None;
    };
    let text = format!("an operation on {len} bytes at offset {offset} of a data bucket: {wrong}");
    Some(Answer::error(ErrorCode::Malformed, text))
}

impl Memory {
    /// Executes an operation that is well formed, at a bucket that serves.
    pub(crate) fn execute_action(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        header: &OpHeader,
        action: &Action,
        effects: &mut Effects,
    ) -> Outcome {
        if action.is_write()
            && let Some(again) = context.recall(header)
        {
            return again;
        }
        let is_lost = context.member().is_lost();
        if action.is_write() && is_lost {
            return Outcome::at_once(lost());
        }
        if let Some(lacking) = lacks(context, now, chunks::table_of(0, 0), effects) {
            return lacking;
        }
        let before = PagesState::of(context.member());
        let session = session(context);
        let outcome = match action {
            _ if action.is_write()
                && action.session() < session
                && !planted(Mutant::OldSessionWrites) =>
            {
                context.record(header, fenced(action, session), context.member().last())
            }
            Action::Fence { .. } => update(context, now, header, action, Edit::default(), effects),
            _ => self.at_chunks(context, now, header, action, effects),
        };
        self.places.keep_up(before, context.member());
        outcome
    }

    /// Executes an operation on chunks. The head of their table is here.
    fn at_chunks(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        header: &OpHeader,
        action: &Action,
        effects: &mut Effects,
    ) -> Outcome {
        let (offset, len) = action.range();
        let chunk = chunks::chunk_of(offset);
        let entries = chunks::table_of(chunk, chunks::chunk_of(offset + len - 1));
        if let Some(lacking) = lacks(context, now, entries, effects) {
            return lacking;
        }
        if let Action::Allocated { .. } = action {
            return self.allocated(context, now, action);
        }
        let place = place_of(context, chunk);
        let bytes = place.map(|place| run(chunks::at(place, offset), len));
        if let Some(lacking) = bytes.and_then(|run| lacks(context, now, run, effects)) {
            return lacking;
        }
        if bytes.is_some_and(|run| context.fetches(run, overwrites(action), effects)) {
            return Outcome::Blocked { starved: false };
        }
        match action {
            Action::Read { .. } => return self.read(context, now, place, offset, len),
            Action::CompareSwap { expected, .. } if word(context, place, offset) != *expected => {
                let answer = Answer::Int(word(context, place, offset) as i64);
                return context.record(header, answer, context.member().last());
            }
            _ => {}
        }
        if may_move(action, place) {
            // Which places are free is in all of the table.
            if let Some(lacking) = lacks(context, now, chunks::whole_table(), effects) {
                return lacking;
            }
            self.places.follow(context.member());
        }
        let edit = edit(context, &self.places, place, action);
        self.freed |= matches!(action, Action::Zero { .. }) && place.is_some();
        let moves = edit.moves;
        let outcome = update(context, now, header, action, edit, effects);
        if let (true, Outcome::Answer { seq, .. }) = (moves, &outcome) {
            context.wrote(reads::of_chunk(chunk), *seq);
            self.places.moved(place, place_of(context, chunk));
        }
        self.stats.writes += u64::from(matches!(outcome, Outcome::Answer { .. }));
        outcome
    }
}

/// True if nothing of the bytes that it touches matters to it.
fn overwrites(action: &Action) -> bool {
    matches!(
        action,
        Action::Write { .. } | Action::Load { .. } | Action::Put { .. } | Action::Zero { .. }
    )
}

/// The outcome where pages of a run are still to be rebuilt; they are requested then.
fn lacks(
    context: &mut BucketContext,
    now: Time,
    run: Run,
    effects: &mut Effects,
) -> Option<Outcome> {
    if !context.lacks(now, run, effects) {
        return None;
    }
    // Those that a lost group lacks may never come: that is answered at once.
    Some(
        match context.member().is_lost() && !planted(Mutant::LostReadWaits) {
            true => Outcome::at_once(lost()),
            false => Outcome::Blocked { starved: false },
        },
    )
}

/// The place of a chunk. Its page of the table is here.
fn place_of(context: &BucketContext, chunk: u32) -> Option<u16> {
    let table = context.member().table()?;
    chunks::place_of(table, chunk)
}

/// True if an operation gives its chunk a place, or takes it away.
fn may_move(action: &Action, place: Option<u16>) -> bool {
    match action {
        Action::Zero { len, .. } => place.is_some() && u64::from(*len) == CHUNK_BYTES,
        _ => place.is_none(),
    }
}

fn word(context: &BucketContext, place: Option<u16>, offset: u64) -> u64 {
    let (Some(place), Some(pages)) = (place, context.member().pages()) else {
        return 0;
    };
    let word = pages.slice(chunks::at(place, offset), 8);
    u64::from_le_bytes(word.try_into().expect("a slice of eight"))
}

/// Gives back what a bucket has reserved beyond its last place, once bytes were zeroed.
pub(crate) fn give_back(context: &mut BucketContext, places: &mut Places) {
    let member = context.member();
    let Some(pages) = member
        .pages()
        .filter(|_| member.table().is_some_and(chunks::is_here))
    else {
        return;
    };
    places.follow(member);
    let keep = with_ahead(chunks::extents_upto(places.highest()).max(pages.used()));
    if context.member().wanted_extents() > keep {
        context.want(keep);
    }
}

/// The change that an operation makes of the pages.
struct Edit {
    runs: Vec<Run>,
    bytes: BytesMut,
    /// The highest place that it writes to.
    place: u16,
    /// That place was free.
    is_new: bool,
    /// The chunk has another place then, or none.
    moves: bool,
    answer: Answer,
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
    fn push(&mut self, run: Run, bytes: &[u8]) {
        self.runs.push(run);
        self.bytes.extend_from_slice(bytes);
    }
}

/// The change that a write makes, where nothing hinders it.
fn edit(context: &BucketContext, places: &Places, place: Option<u16>, action: &Action) -> Edit {
    let (offset, len) = action.range();
    let of_word = |new: u64| {
        let old = Answer::Int(word(context, place, offset) as i64);
        put(places, place, offset, &new.to_le_bytes(), old)
    };
    match action {
        Action::Read { .. } | Action::Allocated { .. } | Action::Fence { .. } => Edit::default(),
        Action::Write { bytes, .. } | Action::Load { bytes, .. } | Action::Put { bytes, .. } => {
            put(places, place, offset, bytes, Answer::Ok)
        }
        Action::Zero { .. } => zero(places, place, offset, len),
        Action::CompareSwap { new, .. } => of_word(*new),
        Action::FetchAdd { by, .. } => of_word(word(context, place, offset).wrapping_add(*by)),
    }
}

/// The bytes, and the chunk's place if it has none yet.
fn put(places: &Places, place: Option<u16>, offset: u64, bytes: &[u8], answer: Answer) -> Edit {
    let mut edit = Edit {
        bytes: BytesMut::with_capacity(bytes.len() + 16),
        place: place.unwrap_or_else(|| places.lowest_free()),
        is_new: place.is_none(),
        moves: place.is_none(),
        answer,
        ..Edit::default()
    };
    if edit.is_new {
        let (run, entry) = chunks::entry(chunks::chunk_of(offset), edit.place);
        edit.push(run, &entry);
    }
    let target = run(chunks::at(edit.place, offset), bytes.len() as u64);
    edit.push(target, bytes);
    edit
}

/// Zeroes in the place of a chunk. Of a whole chunk the place is free then, and with the last one its extent.
fn zero(places: &Places, place: Option<u16>, offset: u64, len: u64) -> Edit {
    let mut edit = Edit::default();
    let Some(place) = place else {
        return edit;
    };
    edit.place = place;
    let mut target = run(chunks::at(place, offset), len);
    if len == CHUNK_BYTES {
        let (run, entry) = chunks::entry(chunks::chunk_of(offset), 0);
        edit.push(run, &entry);
        edit.moves = true;
        if let Some(extent) = places.extent_of_last(place) {
            target = Run {
                offset: extent,
                len: EXTENT_BYTES as u32,
                kind: RunKind::Zero,
            };
        }
    }
    if len == CHUNK_BYTES && planted(Mutant::FreedNotZeroed) {
        return edit;
    }
    if target.kind == RunKind::Bytes {
        edit.bytes.resize(edit.bytes.len() + len as usize, 0);
    }
    edit.runs.push(target);
    edit
}

/// Makes one delta of an edit, and of the operation's session if that is newer than what the bucket knows. Nothing has
/// changed if it stops.
fn update(
    context: &mut BucketContext,
    now: Time,
    header: &OpHeader,
    action: &Action,
    mut edit: Edit,
    effects: &mut Effects,
) -> Outcome {
    if action.session() > session(context) {
        let (run, entry) = chunks::session_entry(action.session());
        edit.push(run, &entry);
    }
    if edit.runs.is_empty() {
        return context.record(header, edit.answer, context.member().last());
    }
    // A new place was never written here, but perhaps at another data bucket of the group.
    if edit
        .runs
        .iter()
        .any(|run| context.lacks(now, *run, effects))
    {
        return Outcome::Blocked { starved: true };
    }
    // A new member reports first what it has reserved: until then the memory of a place that is taken counts
    // as lacking too.
    match grow(context, now, chunks::extents_upto(edit.place)) {
        Growth::Granted => {}
        Growth::Refused if edit.is_new || edit.place == 0 => {
            return context.record(header, out_of_memory(), context.member().last());
        }
        Growth::Pending | Growth::Refused
            if !edit.is_new && planted(Mutant::OldPlaceNeedsNoMemory) => {}
        Growth::Pending | Growth::Refused => return Outcome::Blocked { starved: true },
    }
    match context.make(header, &edit.answer, edit.runs, edit.bytes.freeze()) {
        Ok(seq) => Outcome::write(seq, edit.answer),
        Err(stop) => stop.outcome(out_of_memory),
    }
}

/// The session that may write to the bucket.
fn session(context: &BucketContext) -> u64 {
    context.member().pages().map_or(0, chunks::session)
}

/// Requests so many extents in all, and some more.
fn grow(context: &mut BucketContext, now: Time, need: u32) -> Growth {
    let ahead = with_ahead(need);
    context.grow(now, need, ahead, ahead)
}

/// An eighth more, so that a long write need not wait for each.
fn with_ahead(extents: u32) -> u32 {
    extents + (extents / 8).clamp(1, AHEAD_MAX)
}

pub(crate) fn lost() -> Answer {
    Answer::error(
        ErrorCode::Lost,
        "the group is lost: more of its nodes failed than its scheme bears",
    )
}

fn fenced(action: &Action, session: u64) -> Answer {
    let text = match action.session() {
        0 => "these bytes are a volume's: they are written through NBD".to_owned(),
        old => format!(
            "session {old} of the volume has ended: session {session} writes to it now, and this was not done; connect again"
        ),
    };
    Answer::error(ErrorCode::Fenced, text)
}

fn out_of_memory() -> Answer {
    Answer::error(
        ErrorCode::OutOfMemory,
        "the pool's memory is used up on a node that holds these bytes: delete a region, or give the pool more with 'staves pool set NAME --memory SIZE'",
    )
}
