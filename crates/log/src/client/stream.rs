//! The records of one tag, from the last backwards along their back-pointers (rule 21).

use bytes::Bytes;

use crate::message::SlotAnswer;
use crate::types::{BACK_POINTERS, Position};

/// A walk through a stream. The caller reads what [`StreamWalk::next_read`] names, and gives the content back.
#[derive(Clone, Debug)]
pub struct StreamWalk {
    tag: u64,
    /// Positions that may be the next of the stream, ascending.
    list: Vec<Position>,
    /// The list is all that there is: it had fewer positions than a record names.
    complete: bool,
    /// Every position of the list was junk: from here down, one by one.
    scan: Option<Position>,
    /// Positions from here on were read.
    top: Position,
    /// Positions below are trimmed.
    trim: Position,
}

impl StreamWalk {
    /// A walk from the last positions of the stream, as the sequencer names them with the tail, down to the log's trim.
    pub fn new(tag: u64, last: Vec<Position>, tail: Position, trim: Position) -> StreamWalk {
        let complete = last.len() < BACK_POINTERS;
        StreamWalk {
            tag,
            list: last,
            complete,
            scan: None,
            top: tail,
            trim,
        }
    }

    /// The next position to read; none at the stream's beginning.
    pub fn next_read(&mut self) -> Option<Position> {
        let next = match (self.list.pop(), self.scan) {
            (Some(position), _) => Some(position),
            (None, Some(position)) => Some(position),
            (None, None) if self.complete => None,
            (None, None) => self.top.checked_sub(1),
        }?;
        if next < self.trim {
            self.list.clear();
            (self.complete, self.scan) = (true, None);
            return None;
        }
        Some(next)
    }

    /// Positions that are likely to be read next, the next first: at most so many.
    pub fn ahead(&self, most: usize) -> Vec<Position> {
        let list = self.list.iter().rev().copied();
        let below = self.scan.filter(|_| self.list.is_empty());
        let scan = below.into_iter().flat_map(|scan| (0..=scan).rev());
        let ahead = list.chain(scan).take(most);
        ahead.filter(|position| *position >= self.trim).collect()
    }

    /// Takes the content of a position. True if it is a record of the stream.
    pub fn take(&mut self, position: Position, slot: &SlotAnswer<Bytes>) -> bool {
        self.top = self.top.min(position);
        if let SlotAnswer::Data { head, .. } = slot
            && let Some(link) = head.links.iter().find(|link| link.tag == self.tag)
        {
            self.complete = link.back.len() < BACK_POINTERS;
            self.list.clone_from(&link.back);
            self.scan = None;
            return true;
        }
        if self.list.is_empty() && !self.complete {
            self.scan = position.checked_sub(1);
            self.complete = self.scan.is_none();
        }
        false
    }
}
