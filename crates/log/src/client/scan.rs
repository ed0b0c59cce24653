//! The order of positions of a range or of a follower: several are read at once, and handed on in order.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::client::ReadResult;
use crate::message::SlotAnswer;
use crate::types::Position;

/// A scan of positions in order. The caller reads what [`LogScan::next_read`] names, and gives every result back.
#[derive(Clone, Debug)]
pub struct LogScan {
    /// The next position to hand on.
    next: Position,
    /// The next position to read.
    ask: Position,
    /// The end; none for a follower.
    end: Option<Position>,
    window: u64,
    found: BTreeMap<Position, SlotAnswer<Bytes>>,
    /// Positions to be read again.
    again: Vec<Position>,
    past_tail: bool,
}

impl LogScan {
    /// A scan from a position to the end of a range; without an end, a follower. At most `window` positions are read at once.
    pub fn new(from: Position, end: Option<Position>, window: u64) -> LogScan {
        LogScan {
            next: from,
            ask: from,
            end,
            window: window.max(1),
            found: BTreeMap::new(),
            again: Vec::new(),
            past_tail: false,
        }
    }

    /// The next position that is handed on: everything below was.
    pub fn position(&self) -> Position {
        self.next
    }

    /// True once everything is handed on.
    pub fn is_over(&self) -> bool {
        self.end.is_some_and(|end| self.next >= end)
    }

    /// True if a read came past the tail. Reads go on after [`LogScan::resume`].
    pub fn is_past_tail(&self) -> bool {
        self.past_tail
    }

    /// The log may have grown.
    pub fn resume(&mut self) {
        self.past_tail = false;
    }

    /// The next position to read; none while there are enough.
    pub fn next_read(&mut self) -> Option<Position> {
        if self.past_tail {
            return None;
        }
        if let Some(position) = self.again.pop() {
            return Some(position);
        }
        let over = self.end.is_some_and(|end| self.ask >= end);
        if over || self.ask - self.next >= self.window {
            return None;
        }
        let position = self.ask;
        self.ask += 1;
        Some(position)
    }

    /// Takes the result of a read, and hands on what is next in order. A read without a result is to be repeated.
    pub fn take(
        &mut self,
        position: Position,
        result: Option<ReadResult>,
    ) -> Vec<(Position, SlotAnswer<Bytes>)> {
        match result {
            Some(ReadResult::Slot(_, slot)) => {
                self.found.insert(position, slot);
            }
            Some(ReadResult::PastTail(_)) => {
                self.past_tail = true;
                self.again.push(position);
            }
            _ => self.again.push(position),
        }
        let mut ready = Vec::new();
        while let Some(slot) = self.found.remove(&self.next) {
            ready.push((self.next, slot));
            self.next += 1;
        }
        ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn junk(position: Position) -> Option<ReadResult> {
        Some(ReadResult::Slot(position, SlotAnswer::Junk))
    }

    #[test]
    fn a_scan_hands_on_in_order_and_never_passes_a_position() {
        let mut scan = LogScan::new(5, Some(8), 2);
        assert_eq!((scan.next_read(), scan.next_read()), (Some(5), Some(6)));
        assert_eq!(scan.next_read(), None);
        assert_eq!(scan.take(6, junk(6)), []);
        assert_eq!(scan.take(5, None), []);
        assert_eq!(scan.next_read(), Some(5));
        let ready: Vec<Position> = scan.take(5, junk(5)).iter().map(|r| r.0).collect();
        assert_eq!(ready, [5, 6]);
        assert_eq!((scan.next_read(), scan.next_read()), (Some(7), None));
        assert_eq!(scan.take(7, Some(ReadResult::PastTail(7))), []);
        assert!(scan.is_past_tail() && scan.next_read().is_none());
        scan.resume();
        assert_eq!(scan.next_read(), Some(7));
        assert_eq!(scan.take(7, junk(7)).len(), 1);
        assert!(scan.is_over());
    }
}
