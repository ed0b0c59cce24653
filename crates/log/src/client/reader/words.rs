//! The sequencer's word on a position, and what a reader does with it.

use super::super::read_ops::ReaderEffects;
use super::LogReader;
use crate::message::{PositionWord, SequencerOp, SlotAnswer, TermStart};
use crate::types::Position;

impl LogReader {
    pub(super) fn take_word(
        &mut self,
        number: u64,
        position: Position,
        term: TermStart,
        word: PositionWord,
        out: &mut ReaderEffects,
    ) {
        match word {
            // One whose log has another sequencer by now would say so, too: a unit confirms it.
            PositionWord::Tail => self.ask_sequencer(number, SequencerOp::Check { tag: None }, out),
            PositionWord::Junk => self.found(number, position, SlotAnswer::Junk, out),
            PositionWord::Trimmed => self.found(number, position, SlotAnswer::Trimmed, out),
            PositionWord::At(unit) => self.ask_unit(number, unit, position, None, out),
            PositionWord::Open { unit, binding } => {
                let word = Some((term, binding));
                self.ask_unit(number, unit, position, word, out);
            }
            PositionWord::Page => {
                let positions = u64::from(self.view.options.page_positions).max(1);
                self.ask_page(number, position / positions, out);
            }
        }
    }
}
