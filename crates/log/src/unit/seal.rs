//! The requests of sequencers beside bindings: seals and what a sealed unit has, confirmations, map pages, trims.

use std::ops::Bound;

use super::{ReplyTo, Unit, UnitEffects};
use crate::entry::Entry;
use crate::message::{SEALED_ITEMS_MAX, SealCursor, SealedItem, UnitAnswer};
use crate::mutant::{LogMutant, planted};
use crate::share::LogShare;
use crate::state::FORGOTTEN_MAX;
use crate::types::{DataPlace, LogId, LogOptions, PageRun, Position, SessionId, Term};

/// Most runs of a map page: one for each position at the worst.
const PAGE_RUNS_MAX: usize = crate::types::PAGE_POSITIONS_MAX as usize;

impl Unit {
    /// Takes a term: a synced update. Bindings that wait are forgotten, parked data is not.
    pub(super) fn seal(
        &mut self,
        to: ReplyTo,
        log: LogId,
        term: Term,
        options: LogOptions,
        out: &mut UnitEffects,
    ) {
        let vt = self.state.term(log);
        if term < vt {
            let answer = UnitAnswer::Stale { term: vt };
            return self.reply(to, log, self.settled(log), answer, out);
        }
        // Its number is never used again: whoever seals it does not know that it was deleted.
        if self.state.was_forgotten(log) || self.forgotten.contains(&log) {
            let term = Term(u64::MAX);
            return self.reply(to, log, self.settled(log), UnitAnswer::Stale { term }, out);
        }
        let known = self.state.share(log).is_some();
        if !options.is_valid() || !known && self.state.shares().len() >= self.limits.logs_max {
            return self.reply(to, log, 0, UnitAnswer::Busy { id: None }, out);
        }
        if term > vt || !known {
            let entry = Entry::Seal { log, term, options };
            let number = self.make(log, entry, 0, out);
            self.forget_pending(log, number, term, out);
        }
        let Some(share) = self.state.share(log) else {
            return;
        };
        let answer = UnitAnswer::Sealed {
            term,
            claimed: share.claimed,
            trim: share.trim,
            pages: share.pages.keys().next_back().map_or(0, |page| page + 1),
            floor: share.sessions.floor(),
        };
        let after = match planted(LogMutant::SealUnsynced) {
            true => 0,
            false => self.settled(log),
        };
        self.reply(to, log, after, answer, out);
    }

    fn forget_pending(&mut self, log: LogId, after: u64, term: Term, out: &mut UnitEffects) {
        if planted(LogMutant::PendingOverSeal) {
            return;
        }
        let Some(soft) = self.soft.get_mut(&log) else {
            return;
        };
        let pending = std::mem::take(&mut soft.pending);
        soft.pending_ids.clear();
        for to in pending.into_values().filter_map(|pending| pending.to) {
            self.reply(to, log, after, UnitAnswer::Stale { term }, out);
        }
    }

    /// The fence of everything that a unit obeys: the answer to a request of another term than its own.
    fn fence(&self, log: LogId, term: Term) -> Option<UnitAnswer<DataPlace>> {
        let vt = self.state.term(log);
        if term < vt {
            return Some(UnitAnswer::Stale { term: vt });
        }
        let sealed = term == vt && self.state.share(log).is_some();
        (!sealed).then_some(UnitAnswer::NotSealed { term: vt })
    }

    pub(super) fn sealed_items(
        &self,
        to: ReplyTo,
        log: LogId,
        term: Term,
        floor: Position,
        cursor: SealCursor,
        out: &mut UnitEffects,
    ) {
        let answer = match (self.fence(log, term), self.state.share(log)) {
            (None, Some(share)) => {
                let mut items = share.sealed_items(cursor, floor);
                let next = items.get(SEALED_ITEMS_MAX).map(cursor_of);
                items.truncate(SEALED_ITEMS_MAX);
                UnitAnswer::SealedItems {
                    term,
                    cursor,
                    items,
                    next,
                }
            }
            (Some(answer), _) => answer,
            (None, None) => UnitAnswer::NotSealed { term },
        };
        self.reply(to, log, self.settled(log), answer, out);
    }

    pub(super) fn confirm(
        &self,
        to: ReplyTo,
        log: LogId,
        term: Term,
        nonce: u64,
        out: &mut UnitEffects,
    ) {
        let confirmed = UnitAnswer::Confirmed { term, nonce };
        let answer = self.fence(log, term).unwrap_or(confirmed);
        self.reply(to, log, self.settled_at(log, 0), answer, out);
    }

    pub(super) fn write_page(
        &mut self,
        to: ReplyTo,
        log: LogId,
        term: Term,
        page: u64,
        runs: Vec<PageRun>,
        out: &mut UnitEffects,
    ) {
        let early = planted(LogMutant::PageEarly);
        if let Some(answer) = self.fence(log, term).filter(|_| !early) {
            return self.reply(to, log, self.settled(log), answer, out);
        }
        let Some(share) = self.state.share(log) else {
            return;
        };
        let positions: u64 = runs.iter().map(|run| u64::from(run.count)).sum();
        let whole = positions == u64::from(share.options.page_positions);
        let end = page
            .checked_add(1)
            .and_then(|page| page.checked_mul(positions));
        let start = share.start.unwrap_or(0).max(share.trim);
        // A page is of positions that were given out: the next term begins above it.
        let far = end.is_none_or(|end| end > share.horizon(start));
        if !whole || far || runs.len() > PAGE_RUNS_MAX {
            return self.reply(to, log, 0, UnitAnswer::Busy { id: None }, out);
        }
        if early || !share.pages.contains_key(&page) {
            let entry = Entry::Page { log, page, runs };
            self.make(log, entry, Position::MAX, out);
        }
        let answer = UnitAnswer::PageWritten { term, page };
        self.reply(to, log, self.settled(log), answer, out);
    }

    pub(super) fn trim(
        &mut self,
        to: ReplyTo,
        log: LogId,
        position: Position,
        out: &mut UnitEffects,
    ) {
        let share = self.state.share(log);
        if share.is_some_and(|share| position > share.trim) {
            let entry = Entry::Trim { log, position };
            self.make(log, entry, 0, out);
        }
        let answer = UnitAnswer::Trimmed { position };
        self.reply(to, log, self.settled(log), answer, out);
    }

    /// Copies learn the decided prefix with the entries, in their order: all that lies below it here came before it.
    pub(super) fn prefix(
        &mut self,
        to: ReplyTo,
        log: LogId,
        term: Term,
        (position, floor): (Position, SessionId),
        out: &mut UnitEffects,
    ) {
        if let Some(answer) = self.fence(log, term) {
            return self.reply(to, log, self.settled(log), answer, out);
        }
        let share = self.state.share(log);
        let raised = share.is_some_and(|share| floor > share.sessions.floor());
        // None of a later term can be over.
        if raised && floor.term <= term {
            let session = floor;
            self.make(log, Entry::Floor { log, session }, Position::MAX, out);
        }
        let share = self.state.share(log);
        if share.is_some_and(|share| position > share.prefix) {
            let entry = Entry::Prefix { log, position };
            self.make(log, entry, Position::MAX, out);
        }
        self.reply(to, log, 0, UnitAnswer::Done, out);
    }

    pub(super) fn forget(&mut self, to: ReplyTo, log: LogId, out: &mut UnitEffects) {
        self.forget_pending(log, 0, Term(u64::MAX), out);
        let parked = self.soft.get(&log).map(|soft| soft.parked.keys().copied());
        for id in parked.into_iter().flatten().collect::<Vec<_>>() {
            if let Some(parked) = self.unpark(log, &id) {
                out.dropped.extend(&parked.places);
                self.reply(parked.to, log, 0, UnitAnswer::Abandoned { id }, out);
            }
        }
        match self.state.share(log).is_some() {
            true => {
                self.make(log, Entry::Forget { log }, 0, out);
            }
            // A seal of it may be under way. Nothing is written for a number that anybody may name.
            false => {
                self.forgotten.retain(|other| *other != log);
                self.forgotten.push_back(log);
                let over = self.forgotten.len().saturating_sub(FORGOTTEN_MAX);
                self.forgotten.drain(..over);
            }
        }
        self.reply(to, log, self.settled(log), UnitAnswer::Done, out);
    }
}

fn cursor_of(item: &SealedItem) -> SealCursor {
    match item {
        SealedItem::Id { id, .. } => SealCursor::Ids(*id),
        SealedItem::Low { session, .. } => SealCursor::Lows(*session),
        SealedItem::Tag { tag, .. } => SealCursor::Tags(*tag),
        SealedItem::Claim { position, .. } => SealCursor::Claims(*position),
    }
}

impl LogShare {
    /// The items from a place in the list on: one more than an answer may have, if there are.
    fn sealed_items(&self, cursor: SealCursor, floor: Position) -> Vec<SealedItem> {
        let ids_from = match cursor {
            SealCursor::Ids(id) => Bound::Included(id),
            _ => {
                return self
                    .after_ids(cursor, floor)
                    .take(SEALED_ITEMS_MAX + 1)
                    .collect();
            }
        };
        let ids = self.sessions.ids().range((ids_from, Bound::Unbounded));
        let ids = ids.map(|(id, (position, count))| SealedItem::Id {
            id: *id,
            position: *position,
            count: *count,
        });
        let rest = self.after_ids(SealCursor::Lows(Default::default()), floor);
        ids.chain(rest).take(SEALED_ITEMS_MAX + 1).collect()
    }

    fn after_ids(
        &self,
        cursor: SealCursor,
        floor: Position,
    ) -> impl Iterator<Item = SealedItem> + '_ {
        let (low, tag, claim) = match cursor {
            SealCursor::Ids(_) => (Some(Default::default()), Some(0), floor),
            SealCursor::Lows(session) => (Some(session), Some(0), floor),
            SealCursor::Tags(tag) => (None, Some(tag), floor),
            SealCursor::Claims(position) => (None, None, position.max(floor)),
        };
        let all = self.sessions.lows();
        let lows = low.into_iter().flat_map(|session| all.range(session..));
        let lows = lows.map(|(session, low)| SealedItem::Low {
            session: *session,
            low: *low,
        });
        let tags = tag.into_iter().flat_map(|tag| self.tags.range(tag..));
        let tags = tags.map(|(tag, positions)| SealedItem::Tag {
            tag: *tag,
            positions: positions.clone(),
        });
        let claims = self.slots.claims(claim);
        let claims = claims.map(|(position, count)| SealedItem::Claim { position, count });
        lows.chain(tags).chain(claims)
    }
}
