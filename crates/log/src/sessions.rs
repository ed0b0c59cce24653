//! The sessions of one log that a unit, or a sequencer, knows: their marks, their appends, and the floor.
//!
//! **Invariants.** Every session that was ever here is in the table or at the floor or below. So one above the floor that is not in the table is
//! new, and one at the floor or below is over: whether its appends are durable is not known here, and none of them is taken any more.

use std::collections::BTreeMap;

use crate::mutant::{LogMutant, planted};
use crate::store::{CodeError, CodeReader, CodeWriter, Coded};
use crate::types::{AppendId, Low, SessionId};

/// The sessions of one log, and what is known of their appends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SessionTable<V> {
    floor: SessionId,
    lows: BTreeMap<SessionId, Low>,
    ids: BTreeMap<AppendId, V>,
}

impl<V> Default for SessionTable<V> {
    fn default() -> SessionTable<V> {
        SessionTable {
            floor: SessionId::default(),
            lows: BTreeMap::new(),
            ids: BTreeMap::new(),
        }
    }
}

/// The bounds of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SessionBounds {
    pub sessions: usize,
    pub ids: usize,
}

impl<V: Coded> Coded for SessionTable<V> {
    fn put(&self, out: &mut CodeWriter) {
        self.floor.put(out);
        self.lows.put(out);
        self.ids.put(out);
    }

    fn take(from: &mut CodeReader<'_>) -> Result<SessionTable<V>, CodeError> {
        let floor = Coded::take(from)?;
        let lows = Coded::take(from)?;
        let ids = Coded::take(from)?;
        Ok(SessionTable { floor, lows, ids })
    }
}

impl<V> SessionTable<V> {
    /// The highest session that is over, and every lower one with it.
    pub fn floor(&self) -> SessionId {
        self.floor
    }

    /// Marks of all sessions.
    pub fn lows(&self) -> &BTreeMap<SessionId, Low> {
        &self.lows
    }

    /// All appends that are known.
    pub fn ids(&self) -> &BTreeMap<AppendId, V> {
        &self.ids
    }

    /// The value of an append that is known.
    pub fn get(&self, id: &AppendId) -> Option<&V> {
        self.ids.get(id)
    }

    /// True if a session is over.
    pub fn is_over(&self, session: SessionId) -> bool {
        session <= self.floor && !planted(LogMutant::DroppedAccepted)
    }

    /// True if nobody awaits the append: it is below its session's mark, or its session is over.
    pub fn is_abandoned(&self, id: &AppendId) -> bool {
        let below = self.lows.get(&id.session).is_some_and(|low| id.seq < *low);
        self.is_over(id.session) || below && !planted(LogMutant::NoLow)
    }

    /// Notes an append of a session that is not over.
    pub fn insert(&mut self, id: AppendId, value: V) {
        self.lows.entry(id.session).or_default();
        self.ids.insert(id, value);
    }

    /// Forgets an append.
    pub fn remove(&mut self, id: &AppendId) {
        self.ids.remove(id);
    }

    /// Raises the mark of a session that is not over, and drops the appends below it.
    pub fn raise(&mut self, session: SessionId, low: Low) {
        let mark = self.lows.entry(session).or_default();
        *mark = (*mark).max(low);
        let end = AppendId {
            session,
            seq: *mark,
        };
        let below = self.ids.range(AppendId { session, seq: 0 }..end);
        let below: Vec<AppendId> = below.map(|(id, _)| *id).collect();
        for id in below {
            self.ids.remove(&id);
        }
    }

    /// Raises the floor: the sessions up to it are over.
    pub fn raise_floor(&mut self, floor: SessionId) {
        if floor <= self.floor {
            return;
        }
        if !planted(LogMutant::FloorNotRaised) {
            self.floor = floor;
        }
        let session = floor.next();
        self.lows = self.lows.split_off(&session);
        self.ids = self.ids.split_off(&AppendId { session, seq: 0 });
    }

    /// The floor that makes room for an append of a session; none if there is room. At the session or above: it is that session which is over.
    pub fn floor_for(&self, session: SessionId, bounds: SessionBounds) -> Option<SessionId> {
        let full = self.lows.len() >= bounds.sessions && !self.lows.contains_key(&session);
        let lowest = self.lows.keys().next().filter(|_| full);
        let crowded = self.ids.len() >= bounds.ids;
        let with_ids = self.ids.keys().next().filter(|_| crowded);
        let floor = lowest.copied().max(with_ids.map(|id| id.session))?;
        Some(floor.min(session))
    }

    /// Drops what is beyond the bounds, by raising the floor.
    pub fn bound(&mut self, bounds: SessionBounds) {
        let over = self.lows.len().saturating_sub(bounds.sessions);
        if let Some(floor) = over.checked_sub(1).and_then(|n| self.lows.keys().nth(n)) {
            self.raise_floor(*floor);
        }
        let over = self.ids.len().saturating_sub(bounds.ids);
        if let Some(id) = over.checked_sub(1).and_then(|n| self.ids.keys().nth(n)) {
            self.raise_floor(id.session);
        }
    }

    /// Raises the floor past the lowest sessions, as far as their clients have ended them.
    pub fn drop_ended(&mut self) {
        let ended = self.lows.iter().take_while(|(_, low)| **low == Low::MAX);
        if let Some((last, _)) = ended.last() {
            self.raise_floor(*last);
        }
    }

    /// The same table with other values.
    pub fn map<W>(self, of: impl Fn(V) -> W) -> SessionTable<W> {
        let ids = self.ids.into_iter().map(|(id, value)| (id, of(value)));
        SessionTable {
            floor: self.floor,
            lows: self.lows,
            ids: ids.collect(),
        }
    }

    /// A planted bug's: only such appends are known.
    pub fn retain_ids(&mut self, wanted: impl Fn(&V) -> bool) {
        self.ids.retain(|_, value| wanted(value));
    }

    /// A planted bug's: no append is known.
    pub fn forget_ids(&mut self) {
        self.ids.clear();
    }

    /// A planted bug's: no mark is known.
    pub fn forget_lows(&mut self) {
        self.lows.values_mut().for_each(|low| *low = 0);
    }

    /// A planted bug's: no session is over.
    pub fn forget_floor(&mut self) {
        self.floor = SessionId::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Term;

    fn session(count: u32) -> SessionId {
        let term = Term(1);
        SessionId { term, count }
    }

    fn id(count: u32, seq: u32) -> AppendId {
        let session = session(count);
        AppendId { session, seq }
    }

    #[test]
    fn a_session_that_is_dropped_is_over_and_so_is_every_lower_one() {
        let bounds = SessionBounds {
            sessions: 2,
            ids: 4,
        };
        let mut table = SessionTable::default();
        table.insert(id(4, 0), ());
        table.insert(id(6, 0), ());
        assert_eq!(table.floor_for(session(6), bounds), None);
        assert_eq!(table.floor_for(session(7), bounds), Some(session(4)));
        assert_eq!(table.floor_for(session(3), bounds), Some(session(3)));
        table.raise_floor(session(4));
        assert!(table.is_over(session(3)) && table.is_abandoned(&id(4, 0)));
        assert!(!table.is_over(session(5)) && table.get(&id(6, 0)).is_some());
        (1..4).for_each(|seq| table.insert(id(7, seq), ()));
        assert_eq!(table.floor_for(session(7), bounds), Some(session(6)));
        table.raise_floor(session(3));
        assert_eq!(table.floor(), session(4), "it is never lowered");
        table.insert(id(9, 0), ());
        table.bound(bounds);
        assert_eq!((table.floor(), table.ids().len()), (session(6), 4));
    }

    #[test]
    fn sessions_that_were_ended_go_once_no_lower_one_is_left() {
        let mut table = SessionTable::default();
        (1..4).for_each(|count| table.insert(id(count, 5), ()));
        table.raise(session(2), Low::MAX);
        table.drop_ended();
        assert_eq!(
            (table.floor(), table.ids().len()),
            (session(0).min(SessionId::default()), 2)
        );
        table.raise(session(1), Low::MAX);
        table.drop_ended();
        assert_eq!((table.floor(), table.lows().len()), (session(2), 1));
    }
}
