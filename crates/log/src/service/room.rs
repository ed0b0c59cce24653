//! Room for what the machine makes: reserved before it makes it; and given back.

use std::time::Duration;

use staves_model::{PAGE_BYTES, Time};
use staves_service::{BucketContext, BucketEffects, Growth, Outcome};
use staves_store::EXTENT_BYTES;
use staves_wire::ErrorCode;
use staves_wire::group::{Run, RunKind};
use staves_wire::service::Answer;

use super::{LogUnit, UnitCall, UnitRole};
use crate::codec::BucketRequest;
use crate::message::{RecordRequest, UnitOp};
use crate::store::{
    CheckpointParts, INLINE_BYTES_MAX, Need, NewData, PART_BYTES, PageEdit, StoredEntry, UnitPages,
};

/// Segments that are kept spare for what gives room back, and for seals: a full disk never keeps a unit from them.
pub(super) const RESERVED_EXTENTS: u32 = 2;
/// A map page of so many bytes at most is one of the step's frames: it needs less than an append does, so that a unit which is full for those takes
/// pages while the log goes on at others.
const SMALL_PAGE_BYTES: usize = 16 << 10;
/// Bytes of frames that one step of the machine makes at most, beside those of held data.
const STEP_FRAMES_BYTES: u64 = 64 << 10;
/// After a refusal for want of memory, appends that need more are refused at once for so long, rather than kept until it is refused again.
const SHORT_FOR: Duration = Duration::from_secs(10);
/// Most extents that are requested beyond those needed now.
const AHEAD_MAX: u32 = 16;
/// The time after an append for which a unit keeps what it has reserved for others.
const BUSY_FOR: Duration = Duration::from_secs(2);
/// Most spare segments that one delta makes.
const SPARES_AT_ONCE: u32 = 64;
/// Most checkpoints of one tick.
const CHECKPOINTS_MAX: usize = 8;

/// The room that an operation needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RoomFor {
    /// It changes nothing.
    Nothing,
    /// A few entries, from what is kept for them.
    Little,
    /// Entries, and data of so many bytes.
    Data(usize),
    /// A part of data that are staged.
    Part(usize),
    /// A small map page: without it the log stands still, also at units that have room.
    Page,
}

impl RoomFor {
    pub(super) fn of(op: &UnitCall) -> RoomFor {
        let request = match op {
            UnitCall::Request(request) => request,
            UnitCall::Asked(_) => return RoomFor::Little,
        };
        match request {
            BucketRequest::Unit(request) => match request.op {
                UnitOp::Read { word: None, .. }
                | UnitOp::ReadPage { .. }
                | UnitOp::Confirm { .. }
                | UnitOp::Sealed { .. } => RoomFor::Nothing,
                UnitOp::Park(_) | UnitOp::Write { .. } => {
                    RoomFor::Data(op.records().map_or(0, |records| records.bytes.len()))
                }
                UnitOp::WritePage { ref runs, .. } => match runs.len() * 16 {
                    0..=SMALL_PAGE_BYTES => RoomFor::Page,
                    bytes => RoomFor::Data(bytes),
                },
                // What is held has its room already. A trim, a seal and a deletion give room back.
                _ => RoomFor::Little,
            },
            BucketRequest::Record(RecordRequest::View { .. } | RecordRequest::List { .. }) => {
                RoomFor::Nothing
            }
            BucketRequest::Record(RecordRequest::Create { .. }) => RoomFor::Data(0),
            BucketRequest::Record(_) => RoomFor::Little,
        }
    }

    fn bytes(self) -> u64 {
        match self {
            RoomFor::Data(bytes) | RoomFor::Part(bytes) => bytes as u64,
            RoomFor::Nothing | RoomFor::Little | RoomFor::Page => 0,
        }
    }
}

fn extents(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(EXTENT_BYTES as u64)).unwrap_or(u32::MAX)
}

/// An eighth more, so that not every new segment is waited for.
fn with_ahead(extents: u32) -> u32 {
    extents + (extents / 8).clamp(1, AHEAD_MAX)
}

fn out_of_room() -> Answer {
    let text = "there is no room for the append in its unit: trim logs, or give the pool more room";
    Answer::error(ErrorCode::OutOfMemory, text)
}

impl LogUnit {
    /// True if it is an append that the unit knows or holds, or whose session is over.
    pub(super) fn has_answer(&self, op: &UnitCall) -> bool {
        let UnitCall::Request(BucketRequest::Unit(request)) = op else {
            return false;
        };
        // Of what is held a second copy takes no room.
        if let (UnitRole::Serving(unit), UnitOp::Park(park)) = (&self.role, &request.op)
            && unit.has_parked(request.log, &park.id, park.count)
        {
            return true;
        }
        let id = match &request.op {
            UnitOp::Park(park) => Some(park.id),
            UnitOp::Write { binding, .. } => binding.id,
            _ => None,
        };
        let share = self.role.state().share(request.log);
        share.zip(id).is_some_and(|(share, id)| {
            share.sessions.get(&id).is_some() || share.sessions.is_over(id.session)
        })
    }

    /// The outcome of what finds no room.
    pub(super) fn full(&mut self) -> Outcome {
        self.stats.refused += 1;
        Outcome::at_once(out_of_room())
    }

    /// The extents that the bucket has once all that is held has its entries, and the operation is done; those that are kept included.
    fn needed(&self, context: &BucketContext, room: RoomFor) -> u32 {
        let (data, frames) = self.held.to_come();
        let (used, spares) = (context.used_extents().max(1), self.pages.log.spares());
        let base = used + extents(frames + STEP_FRAMES_BYTES);
        let held = if data > 0 { extents(data) + 1 } else { 0 };
        match room {
            RoomFor::Nothing => 0,
            // The first entry of a unit makes room for those that it keeps.
            RoomFor::Little if used == 1 => base + 1 + RESERVED_EXTENTS,
            RoomFor::Little => used + (base - used + held).saturating_sub(spares),
            RoomFor::Page => base + held + self.lacks_spares(),
            RoomFor::Data(_) | RoomFor::Part(_) => {
                let data = data + room.bytes() + room.bytes() / 8 + PAGE_BYTES as u64;
                base + extents(data) + 1 + self.lacks_spares()
            }
        }
    }

    /// Spare segments that are to be made: for the parts of the largest checkpoint, and some more.
    fn lacks_spares(&self) -> u32 {
        let large = self.pages.ledger.large_bytes() as u64;
        let parts = extents(large + large / 2) + u32::from(large > 0);
        (RESERVED_EXTENTS + parts).saturating_sub(self.pages.log.spares())
    }

    /// Keeps segments spare, of those that are reserved and not in use: operations have reserved them. True if it made some.
    fn keep_spares(&mut self, context: &mut BucketContext) -> bool {
        let reserved = self.reserved(context);
        let unused = reserved.saturating_sub(context.used_extents());
        let count = self.lacks_spares().min(unused).min(SPARES_AT_ONCE);
        if count == 0 || self.pages.log.extents() == 0 {
            return false;
        }
        let edit = self.pages.log.make_spares(count);
        edit.is_ok_and(|edit| self.commit(context, edit, (&[], None)).is_ok())
    }

    /// Has the next appends go to spare segments, if no more extents are reserved.
    pub(super) fn weigh_room(&mut self, context: &BucketContext) {
        let reserved = self.reserved(context);
        let lean = reserved < context.used_extents() + 2;
        self.pages.log.set_lean(lean);
    }

    /// Extents that every member has reserved.
    fn reserved(&self, context: &BucketContext) -> u32 {
        let reserved = context.member().usable_extents();
        #[cfg(test)]
        let reserved = reserved.min(self.reserved_max.get());
        reserved
    }

    fn grow(&self, context: &mut BucketContext, now: Time, need: u32) -> Growth {
        #[cfg(test)]
        if need > self.reserved_max.get() {
            return Growth::Refused;
        }
        // No more than is needed: were more refused, this would be requested next, and whoever waits have given up by then.
        context.grow(now, need, need, with_ahead(need))
    }

    /// Sees to it that an operation finds room for all that it can make.
    pub(super) fn make_room(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        room: RoomFor,
        out: &mut BucketEffects,
    ) -> Result<(), Outcome> {
        if room == RoomFor::Nothing {
            return Ok(());
        }
        let bytes = room.bytes() as usize + STEP_FRAMES_BYTES as usize / 8;
        if let Err(stop) = context.admit(16, bytes, 0) {
            return Err(stop.outcome(out_of_room));
        }
        if self.fetches_ends(context, out) {
            return Err(Outcome::Blocked { starved: false });
        }
        let need = self.needed(context, room);
        if room == RoomFor::Little && self.reserved(context) >= need {
            return Ok(());
        }
        let brings_data = matches!(room, RoomFor::Data(_) | RoomFor::Part(_));
        if brings_data {
            self.appended = now;
        }
        let is_short = self.short_until.is_some_and(|until| now < until);
        match self.grow(context, now, need) {
            Growth::Granted => {
                self.short_until = None;
                Ok(())
            }
            Growth::Pending if !brings_data || !is_short => Err(Outcome::Blocked { starved: true }),
            Growth::Pending => self.room_by_cleaning(context, room),
            Growth::Refused => {
                self.short_until = Some(now + SHORT_FOR);
                self.room_by_cleaning(context, room)
            }
        }
    }

    /// No member has more: what is dead gives room, a bounded part of it at once.
    fn room_by_cleaning(
        &mut self,
        context: &mut BucketContext,
        room: RoomFor,
    ) -> Result<(), Outcome> {
        self.checkpoint(context);
        self.free(context);
        let lacks = |unit: &LogUnit, context: &BucketContext| {
            unit.reserved(context) < unit.needed(context, room)
        };
        if lacks(self, context) {
            self.clean(context, Need::Much);
            self.free(context);
        }
        match lacks(self, context) {
            true => Err(self.full()),
            false => Ok(()),
        }
    }

    /// True if the pages that are appended to have to be read from the disk first.
    fn fetches_ends(&self, context: &BucketContext, out: &mut BucketEffects) -> bool {
        let mut waits = false;
        for offset in self.pages.log.ends() {
            let run = Run {
                offset,
                len: 1,
                kind: RunKind::Bytes,
            };
            waits |= context.fetches(run, true, &mut out.effects);
        }
        waits
    }

    /// Returns whether every member has reserved what a change needs.
    pub(super) fn fits(&self, context: &BucketContext, edit: &PageEdit) -> bool {
        let then = (context.used_extents() + edit.begun).saturating_sub(edit.freed);
        then <= self.reserved(context)
    }

    /// A bounded part of what there is to tidy up. True if there is more, now or later.
    pub(super) fn tidy(&mut self, context: &mut BucketContext, now: Time) -> bool {
        let bytes = EXTENT_BYTES + EXTENT_BYTES / 4;
        if context.admit(16, bytes, 0).is_err() {
            return true;
        }
        for _ in 0..CHECKPOINTS_MAX {
            if !self.checkpoint(context) {
                break;
            }
        }
        let freed = self.free(context);
        let cleaned = self.pages.log.is_untidy() && self.clean(context, Need::Some);
        let kept = self.keep_spares(context);
        let gives = self.give_back(context, now);
        gives || kept || freed || cleaned || self.parts.is_some() || self.pages.ledger.has_due()
    }

    /// One checkpoint that is due, or the next part of one. False if none was made.
    fn checkpoint(&mut self, context: &mut BucketContext) -> bool {
        if self.parts.is_some() {
            return self.checkpoint_part(context);
        }
        let Some(of) = self.pages.ledger.take_due() else {
            return false;
        };
        let Some(entry) = UnitPages::checkpoint(&of, self.role.state()) else {
            return true;
        };
        let bytes = entry.to_bytes();
        if bytes.len() > INLINE_BYTES_MAX {
            let base = self.pages.log.next_number() - 1;
            self.parts = Some(CheckpointParts::new(of, base, bytes, PART_BYTES));
            return self.checkpoint_part(context);
        }
        let made = self.make_checkpoint(context, entry);
        self.stats.checkpoints += u64::from(made);
        made
    }

    /// The next part. Where there is no room for it now, it is made later: the parts so far stay.
    fn checkpoint_part(&mut self, context: &mut BucketContext) -> bool {
        self.parts
            .take_if(|parts| parts.is_void(&self.pages.ledger));
        let Some(entry) = self.parts.as_ref().map(CheckpointParts::next_entry) else {
            return true;
        };
        if context.admit(16, INLINE_BYTES_MAX, 0).is_err() || !self.make_checkpoint(context, entry)
        {
            return false;
        }
        let number = self.pages.log.next_number() - 1;
        let is_last = self.parts.as_mut().is_some_and(|parts| parts.made(number));
        if is_last {
            self.parts = None;
            self.stats.checkpoints += 1;
        }
        true
    }

    fn make_checkpoint(&mut self, context: &mut BucketContext, entry: StoredEntry) -> bool {
        self.weigh_room(context);
        let all = [(entry, NewData::Nothing)];
        let Ok(edit) = self.pages.append(&all) else {
            return false;
        };
        let [(entry, _)] = all;
        let made = (&[(entry, Vec::new())][..], None);
        self.fits(context, &edit) && self.commit(context, edit, made).is_ok()
    }

    fn free(&mut self, context: &mut BucketContext) -> bool {
        let edit = self.pages.log.free();
        let made = edit.is_some_and(|edit| self.commit(context, edit, (&[], None)).is_ok());
        self.stats.cleanings += u64::from(made);
        made
    }

    fn clean(&mut self, context: &mut BucketContext, need: Need) -> bool {
        let Some(victim) = self.pages.log.victim(need) else {
            return false;
        };
        self.weigh_room(context);
        let cleaned = context
            .member()
            .pages()
            .map(|pages| self.pages.log.clean(pages, victim));
        let edit = match cleaned {
            Some(Ok(Some(edit))) => edit,
            Some(Err(damage)) => {
                self.damage = Some(damage);
                return false;
            }
            Some(Ok(None)) | None => return false,
        };
        if edit.is_empty()
            || !self.fits(context, &edit)
            || self.commit(context, edit, (&[], None)).is_err()
        {
            return false;
        }
        self.pages.log.tidy_users(victim);
        self.stats.cleanings += 1;
        true
    }

    /// Extents that are reserved and not needed go back to the pool. While appends come, only where there are many: the next ones would take them
    /// again. True if some are left to give back.
    fn give_back(&mut self, context: &mut BucketContext, now: Time) -> bool {
        let keep = with_ahead(self.needed(context, RoomFor::Data(0)));
        let is_busy = now.since(self.appended) < BUSY_FOR;
        let slack = if is_busy { AHEAD_MAX } else { 0 };
        let member = context.member();
        let wanted = member.wanted_extents();
        if member.stable() == member.last() && wanted > keep + slack {
            context.want(keep);
        }
        context.member().wanted_extents() > keep
    }
}
