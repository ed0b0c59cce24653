//! Images: copies of a volume as it was, which share its places until one of them is written to.

use staves_group::{Effects, PageTable};
use staves_model::mutant::{Mutant, planted};
use staves_model::{BUCKET_CHUNKS_MAX, CHUNK_BYTES, PAGE_BYTES, Time};
use staves_service::{BucketContext, OpHeader, Outcome};
use staves_store::EXTENT_BYTES;
use staves_wire::ErrorCode;
use staves_wire::memory::Action;
use staves_wire::service::Answer;

use crate::chunks::{self, Table};
use crate::edit::{Edit, whole_extent};
use crate::execute::{lacks, lacks_tables, update};
use crate::memory::Memory;
use crate::refusals::out_of_places;

/// Most bytes that one step of a deletion makes zero, but for the last chunk that it looks at.
const DROP_BYTES: u64 = EXTENT_BYTES as u64;
/// Most entries that one step of a deletion takes away.
const DROP_CHUNKS: usize = 512;

impl Memory {
    /// Makes an image a copy of another one, and lets only a later session write to that. The heads of both tables are here.
    pub(crate) fn copy_image(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        header: &OpHeader,
        (action, table): (&Action, Option<Table>),
        image: u32,
        effects: &mut Effects,
    ) -> Outcome {
        let Some(of) = table else {
            // What is copied has nothing here: its copy neither. But nobody is to write to it in an old session after that.
            return match action.session() {
                0 => context.record(header, Answer::Ok, context.member().last()),
                _ => self.begin_image(context, now, header, (action, action.image()), effects),
            };
        };
        if let Some(lacking) = lacks_tables(context, now, effects) {
            return lacking;
        }
        let Some(pages) = context.member().table() else {
            return Outcome::Blocked { starved: false };
        };
        if Table::of(pages, image).is_some() {
            return context.record(header, Answer::Ok, context.member().last());
        }
        let mut edit = Edit::default();
        self.places.follow(context.member());
        let copy = match self.list(context, &mut edit, image) {
            Ok(copy) => copy,
            Err(answer) => return context.record(header, answer, context.member().last()),
        };
        if let Some(pages) = context.member().table() {
            for (run, entries) in of.copied_to(pages, copy) {
                edit.push(run, entries);
            }
        }
        if planted(Mutant::CopyFencesNothing) {
            let action = Action::Drop { image };
            let done = update(context, now, header, (&action, of), edit, effects);
            self.places.forget();
            return done;
        }
        let done = update(context, now, header, (action, of), edit, effects);
        self.places.forget();
        done
    }

    /// Gives an image that has nothing here an empty table, in which the operation's session may write. The head of the first table is here.
    pub(crate) fn begin_image(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        header: &OpHeader,
        (action, image): (&Action, u32),
        effects: &mut Effects,
    ) -> Outcome {
        if let Some(lacking) = lacks_tables(context, now, effects) {
            return lacking;
        }
        self.places.follow(context.member());
        let mut edit = Edit::default();
        let table = match self.list(context, &mut edit, image) {
            Ok(table) => table,
            Err(answer) => return context.record(header, answer, context.member().last()),
        };
        let done = update(context, now, header, (action, table), edit, effects);
        self.places.forget();
        done
    }

    /// Adds an image to the list, with a place for its table. The places are those of the present pages.
    fn list(&self, context: &BucketContext, edit: &mut Edit, image: u32) -> Result<Table, Answer> {
        let count = match context.member().table() {
            Some(pages) => chunks::images(pages).count(),
            None => 0,
        };
        if count >= chunks::IMAGES_MAX {
            let most = chunks::IMAGES_MAX;
            let text = format!(
                "the bucket has {most} snapshots and clones, which is the most: delete some of them"
            );
            return Err(Answer::error(ErrorCode::OutOfMemory, text));
        }
        let place = self.places.lowest_free(0).ok_or_else(out_of_places)?;
        let table = Table::at_place(place);
        let (run, entry) = chunks::listed(count, Some((image, table)));
        edit.push(run, &entry);
        (edit.place, edit.is_new) = (place, true);
        Ok(table)
    }

    /// Takes some chunks away from an image, and the image itself once it has none: places that no other image has are free then.
    pub(crate) fn drop_image(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        header: &OpHeader,
        image: u32,
        effects: &mut Effects,
    ) -> Outcome {
        if let Some(lacking) = lacks_tables(context, now, effects) {
            return lacking;
        }
        self.places.follow(context.member());
        let member = context.member();
        let of = |pages| Some((pages, Table::of(pages, image)?));
        let Some((pages, table)) = member.table().and_then(of) else {
            return context.record(header, Answer::Int(0), member.last());
        };
        let mut taken: Vec<(u32, u16)> = table.taken(pages).take(DROP_CHUNKS).collect();
        let is_whole = taken.len() < DROP_CHUNKS;
        let is_free =
            |place: u16| !self.places.is_shared(place) || planted(Mutant::DropFreesShared);
        let count = self.step_of(&taken);
        let is_last = is_whole && count == taken.len() && image != 0;
        taken.truncate(count);
        let places = taken.iter().map(|(_, place)| *place);
        let mut freed: Vec<u16> = places.filter(|place| is_free(*place)).collect();
        let mut edit = Edit::default();
        match (is_last, taken.first(), taken.last()) {
            (true, ..) => {
                strike(pages, &mut edit, (image, table));
                freed.push(table.place());
            }
            (false, Some((first, _)), Some((last, _))) => {
                let entries = table.no_entries(*first, *last);
                entries.for_each(|(run, none)| edit.push(run, &none));
            }
            _ => {}
        }
        if let Some(lacking) = self.free(context, now, &mut edit, freed, effects) {
            return lacking;
        }
        let is_done = is_last || (image == 0 && taken.is_empty());
        edit.answer = Answer::Int(i64::from(!is_done));
        let drop = Action::Drop { image };
        let done = update(context, now, header, (&drop, table), edit, effects);
        // If there is no memory for the change, that is an answer, too.
        if matches!(&done, Outcome::Answer { answer, .. } if matches!(answer, Answer::Int(_))) {
            for (_, place) in &taken {
                self.places.moved(Some(*place), None);
            }
            if is_last {
                self.places.moved(Some(table.place()), None);
            }
            self.freed = true;
        }
        done
    }

    /// The chunks that one step of a deletion takes away.
    fn step_of(&self, taken: &[(u32, u16)]) -> usize {
        let mut zeroed = 0;
        let within = taken.iter().take_while(|(_, place)| {
            let goes_on = zeroed < DROP_BYTES;
            zeroed += if self.places.is_shared(*place) {
                0
            } else {
                CHUNK_BYTES
            };
            goes_on
        });
        within.count()
    }

    /// Makes places zero that nobody has then; whole extents of them are given back. What they hold must be here: pages of which it is not known
    /// yet whether they are zero would come back later as they were. If some are not, the outcome, and nothing is to change.
    fn free(
        &self,
        context: &mut BucketContext,
        now: Time,
        edit: &mut Edit,
        mut freed: Vec<u16>,
        effects: &mut Effects,
    ) -> Option<Outcome> {
        freed.sort_unstable();
        let of = |place: u16| u64::from(place) * CHUNK_BYTES / EXTENT_BYTES as u64;
        let mut lacking = None;
        for places in freed.chunk_by(|a, b| of(*a) == of(*b)) {
            edit.place = edit.place.max(places[places.len() - 1]);
            if let Some(extent) = self.places.extent_of(places[0], places.len()) {
                edit.runs.push(whole_extent(extent));
                continue;
            }
            for place in places {
                let run = chunks::of_place(*place);
                let mut waits = lacks(context, now, run, effects);
                if waits.is_none() && context.fetches(run, false, effects) {
                    waits = Some(Outcome::Blocked { starved: false });
                }
                match waits {
                    None => zero_place(context, edit, *place),
                    waits => lacking = waits,
                }
            }
        }
        lacking
    }
}

/// Strikes an image off the list.
fn strike(pages: &PageTable, edit: &mut Edit, (image, table): (u32, Table)) {
    let all: Vec<(u32, Table)> = chunks::images(pages).collect();
    let index = all.iter().position(|of| *of == (image, table));
    let (Some(index), Some((last, before))) = (index, all.split_last()) else {
        return;
    };
    if index < before.len() {
        let (run, entry) = chunks::listed(index, Some(*last));
        edit.push(run, &entry);
    }
    let (run, none) = chunks::listed(before.len(), None);
    edit.push(run, &none);
}

/// Zeroes the pages of a place that are not zero already.
fn zero_place(context: &BucketContext, edit: &mut Edit, place: u16) {
    let Some(pages) = context.member().pages() else {
        return;
    };
    let within = (0..CHUNK_BYTES).step_by(PAGE_BYTES);
    for at in within.map(|within| chunks::at(place, within)) {
        let page = pages.slice(at, PAGE_BYTES);
        if page.iter().any(|byte| *byte != 0) {
            edit.push(chunks::run(at, PAGE_BYTES as u64), &[0; PAGE_BYTES]);
        }
    }
}

const _: () = assert!(BUCKET_CHUNKS_MAX as usize > DROP_CHUNKS);
