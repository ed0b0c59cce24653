//! Operations on the bytes, and the deltas that they become.

use staves_group::Effects;
use staves_model::mutant::{Mutant, planted};
use staves_model::{CHUNK_BYTES, REGION_BUCKET_BYTES_MAX, Time};
use staves_service::{BucketContext, Growth, OpHeader, Outcome};
use staves_wire::ErrorCode;
use staves_wire::group::Run;
use staves_wire::memory::Action;
use staves_wire::service::Answer;

use crate::chunks::{Table, run};
use crate::edit::{Edit, WrittenChunk, edit, word};
use crate::extents::{extents_for, grow, with_ahead};
use crate::memory::Memory;
use crate::places::{PagesState, Places};
use crate::refusals::{self, fenced, lost, no_image, out_of_memory, out_of_places};
use crate::{chunks, reads};

/// The error of an operation that no bucket would take.
pub(crate) fn malformed(action: &Action) -> Option<Answer> {
    let (offset, len) = action.range();
    let word = matches!(action, Action::CompareSwap { .. } | Action::FetchAdd { .. });
    let is_wide = matches!(action, Action::Allocated { .. } | Action::Changed { .. });
    let wrong = if len == 0 {
        "it touches 0 bytes"
    } else if offset
        .checked_add(len)
        .is_none_or(|end| end > REGION_BUCKET_BYTES_MAX)
    {
        "it lies beyond the data bucket's end"
    } else if action.chunks() > 1 && !is_wide {
        "it leaves its chunk"
    } else if word && !offset.is_multiple_of(8) {
        "its word does not begin at a multiple of 8"
    } else if matches!(action, Action::Copy { of, image, .. } if *image == 0 || of == image) {
        "a copy has a number of its own, which is not 0"
    } else {
        return None;
    };
    let text = format!("an operation on {len} bytes at offset {offset} of a data bucket: {wrong}");
    Some(Answer::error(ErrorCode::Malformed, text))
}

impl Memory {
    /// Executes an operation other than a flush. Its answer waits for no disk.
    pub(crate) fn change_or_read(
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
        if let Some(over) = refusals::of_session(context, action).filter(|_| action.is_write()) {
            return context.record(header, over, context.member().last());
        }
        if let Some(lacking) = lacks(context, now, chunks::FIRST.run(0, 0), effects) {
            return lacking;
        }
        let table = table_of(context, action.image());
        let copy = table.filter(|table| *table != chunks::FIRST);
        if let Some(lacking) = copy.and_then(|t| lacks(context, now, t.run(0, 0), effects)) {
            return lacking;
        }
        let before = PagesState::of(context.member());
        let session = session(context, table);
        let outcome = match action {
            Action::Drop { image } => self.drop_image(context, now, header, *image, effects),
            _ if action.is_write()
                && action.session() < session
                && !planted(Mutant::OldSessionWrites) =>
            {
                context.record(header, fenced(action, session), context.member().last())
            }
            Action::Copy { image, .. } => {
                self.copy_image(context, now, header, (action, table), *image, effects)
            }
            Action::Fence { .. } => self.fence(context, now, header, (action, table), effects),
            _ => self.at_chunks(context, now, header, (action, table), effects),
        };
        self.places.keep_up(before, context.member());
        outcome
    }

    /// Lets a session of an image write, and no earlier one. An image that has nothing here yet gets its table.
    fn fence(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        header: &OpHeader,
        (action, table): (&Action, Option<Table>),
        effects: &mut Effects,
    ) -> Outcome {
        match table {
            Some(table) => {
                let edit = Edit::default();
                update(context, now, header, (action, table), edit, effects)
            }
            None => self.begin_image(context, now, header, (action, action.image()), effects),
        }
    }

    /// Executes an operation on chunks. The heads of the first table and of the image's are here.
    fn at_chunks(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        header: &OpHeader,
        (action, table): (&Action, Option<Table>),
        effects: &mut Effects,
    ) -> Outcome {
        let (offset, len) = action.range();
        let chunk = chunks::chunk_of(offset);
        let last = chunks::chunk_of(offset + len - 1);
        let entries = |table: Table| table.run(chunk, last);
        if let Some(lacking) = table.and_then(|t| lacks(context, now, entries(t), effects)) {
            return lacking;
        }
        let table = match (action, table) {
            (Action::Allocated { .. }, _) => return self.allocated(context, now, action, table),
            (Action::Changed { since, .. }, _) => {
                let since = table_of(context, *since);
                if let Some(lacking) = since.and_then(|t| lacks(context, now, entries(t), effects))
                {
                    return lacking;
                }
                return self.changed(context, now, action, (table, since));
            }
            (Action::Read { .. }, None) => return self.read(context, now, None, offset, len),
            (_, None) => {
                let gone = no_image(action.image());
                return context.record(header, gone, context.member().last());
            }
            (_, Some(table)) => table,
        };
        self.at_chunk(context, now, header, (action, table), effects)
    }

    /// Executes an operation on a chunk whose entry in its table is here.
    fn at_chunk(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        header: &OpHeader,
        (action, table): (&Action, Table),
        effects: &mut Effects,
    ) -> Outcome {
        let (offset, len) = action.range();
        let chunk = chunks::chunk_of(offset);
        let place = place_of(context, table, chunk);
        let is_shared = match self.shares(context, now, (action, place), effects) {
            Ok(is_shared) => is_shared,
            Err(lacking) => return lacking,
        };
        if let Some(waits) = waits_for(context, now, (action, place, is_shared), effects) {
            return waits;
        }
        match action {
            Action::Read { .. } => return self.read(context, now, place, offset, len),
            Action::CompareSwap { expected, .. } if word(context, place, offset) != *expected => {
                let answer = Answer::Int(word(context, place, offset) as i64);
                return context.record(header, answer, context.member().last());
            }
            _ => {}
        }
        if is_shared || may_move(action, place) {
            // Which places are free is in all of the tables.
            if let Some(lacking) = lacks_tables(context, now, effects) {
                return lacking;
            }
            self.places.follow(context.member());
        }
        let at = WrittenChunk {
            table,
            place,
            is_shared,
        };
        let edit = edit(context, &self.places, at, action);
        let Some(edit) = edit else {
            return context.record(header, out_of_places(), context.member().last());
        };
        self.freed |= matches!(action, Action::Zero { .. }) && place.is_some();
        let moves = edit.moves;
        let outcome = update(context, now, header, (action, table), edit, effects);
        if let (true, Outcome::Answer { seq, .. }) = (moves, &outcome) {
            context.wrote(reads::of_chunk(chunk), *seq);
            self.places.moved(place, place_of(context, table, chunk));
        }
        self.stats.writes += u64::from(matches!(outcome, Outcome::Answer { .. }));
        outcome
    }

    /// True if a write finds its chunk in a place that other images have, too.
    fn shares(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        (action, place): (&Action, Option<u16>),
        effects: &mut Effects,
    ) -> Result<bool, Outcome> {
        let Some(place) = place.filter(|_| action.is_write()) else {
            return Ok(false);
        };
        let pages = context.member().table();
        if pages.is_none_or(|pages| chunks::images(pages).next().is_none()) {
            return Ok(false);
        }
        if let Some(lacking) = lacks_tables(context, now, effects) {
            return Err(lacking);
        }
        self.places.follow(context.member());
        Ok(self.places.is_shared(place) && !planted(Mutant::SharedPlaceOverwritten))
    }
}

/// The outcome where bytes are still to come that an operation reads or keeps.
fn waits_for(
    context: &mut BucketContext,
    now: Time,
    (action, place, is_shared): (&Action, Option<u16>, bool),
    effects: &mut Effects,
) -> Option<Outcome> {
    let ((offset, len), place) = (action.range(), place?);
    let overwrites = overwrites(action);
    // Of a place that others have, all is copied that is not overwritten.
    let (run, overwrites) = match is_shared {
        true if overwrites && len == CHUNK_BYTES => return None,
        true => (chunks::of_place(place), false),
        false => (run(chunks::at(place, offset), len), overwrites),
    };
    if let Some(lacking) = lacks(context, now, run, effects) {
        return Some(lacking);
    }
    let fetches = context.fetches(run, overwrites, effects);
    fetches.then_some(Outcome::Blocked { starved: false })
}

/// True if nothing of the bytes that it touches matters to it.
fn overwrites(action: &Action) -> bool {
    matches!(
        action,
        Action::Write { .. } | Action::Load { .. } | Action::Put { .. } | Action::Zero { .. }
    )
}

/// The outcome where pages of a run are still to be rebuilt; they are requested then.
pub(crate) fn lacks(
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

/// As [`lacks`], for all tables of the bucket. The head of the first is here.
pub(crate) fn lacks_tables(
    context: &mut BucketContext,
    now: Time,
    effects: &mut Effects,
) -> Option<Outcome> {
    let pages = context.member().table()?;
    let tables: Vec<Table> = chunks::tables(pages).collect();
    let mut lacking = None;
    for table in tables {
        lacking = lacks(context, now, table.whole(), effects).or(lacking);
    }
    lacking
}

/// The table of an image. The head of the first is here.
fn table_of(context: &BucketContext, image: u32) -> Option<Table> {
    Table::of(context.member().table()?, image)
}

/// The place of a chunk. Its page of the table is here.
fn place_of(context: &BucketContext, table: Table, chunk: u32) -> Option<u16> {
    table.place_of(context.member().table()?, chunk)
}

/// True if an operation gives its chunk a place, or takes it away.
fn may_move(action: &Action, place: Option<u16>) -> bool {
    match action {
        Action::Zero { len, .. } => place.is_some() && u64::from(*len) == CHUNK_BYTES,
        _ => place.is_none(),
    }
}

/// Gives back what a bucket has reserved beyond its last place, once bytes were zeroed.
pub(crate) fn give_back(context: &mut BucketContext, places: &mut Places) {
    let member = context.member();
    let Some(pages) = member
        .pages()
        .filter(|_| member.table().is_some_and(chunks::are_here))
    else {
        return;
    };
    places.follow(member);
    let keep = with_ahead(chunks::extents_upto(places.highest()).max(pages.used()));
    if context.member().wanted_extents() > keep {
        context.want(keep);
    }
}

/// Makes one delta of an edit, and of the operation's session if that is newer than what the image knows. Nothing has
/// changed if it stops.
pub(crate) fn update(
    context: &mut BucketContext,
    now: Time,
    header: &OpHeader,
    (action, table): (&Action, Table),
    mut edit: Edit,
    effects: &mut Effects,
) -> Outcome {
    if action.session() > session(context, Some(table)) {
        let (run, entry) = table.session_entry(action.session());
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
    match grow(context, now, extents_for(context, &edit)) {
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

/// The session that may write to an image; 0 if it has nothing here.
fn session(context: &BucketContext, table: Option<Table>) -> u64 {
    let pages = context.member().table();
    table
        .zip(pages)
        .map_or(0, |(table, pages)| table.session(pages))
}
