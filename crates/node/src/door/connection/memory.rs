//! A connection's part of the node's memory for requests and answers under way.

use staves_net::FREE_BYTES;
use staves_wire::ErrorCode;

use super::{Connection, Executor, OUTPUT_BYTES_MAX};

impl Connection {
    /// Tells what it holds. Returns true if more may be read: an unfinished command counts as far as it is known how long it is.
    pub(super) fn account(&mut self) -> bool {
        let lacking = match self.input.is_empty() {
            true => 0,
            false => self.parser.wanted(self.input.len()),
        };
        let executor = &mut self.executor;
        executor.held = self.input.len() + executor.held_bytes();
        if !executor.starved && executor.part.try_set(executor.held + lacking) {
            executor.part.waits_no_more();
            return true;
        }
        executor.part.set(executor.held);
        if !executor.starved && !executor.closing && executor.part.is_refused() {
            executor.no_memory(0);
            executor.closing = true;
        }
        false
    }
}

impl Executor {
    /// True if operations may set out to other nodes, whose answers come here.
    pub(super) fn may_set_out(&self) -> bool {
        let little = self.held <= FREE_BYTES && self.remote.expects_little();
        // Nor is there anything that it could give back before.
        let holds_up = self.output.is_empty() && self.places.charged_bytes() > 0;
        self.output.len() < OUTPUT_BYTES_MAX
            && (little || holds_up || self.running.in_flight.has_room())
    }

    pub(super) fn waits_for_memory(&self) -> bool {
        self.starved || self.held_back
    }

    pub(super) fn held_bytes(&self) -> usize {
        let places = self.places.charged_bytes() + self.places.held_bytes();
        places + self.output.len() + self.remote.under_way_bytes()
    }

    /// A value is to be answered: true if there is memory for it.
    pub(super) fn has_memory(&mut self, values: usize) -> bool {
        let held = (self.held + self.output.len()).max(self.held_bytes());
        self.part.try_set(held + values)
    }

    /// True if the command that waits for room still has none: it is not tried in vain, for that copies values.
    pub(super) fn still_starved(&mut self) -> bool {
        self.starved = self.starved
            && !self.closing
            && !self.has_memory(self.needs)
            && !self.part.is_refused();
        self.starved
    }

    /// A command found no memory for so many bytes of its values: it waits, and is refused in the end.
    pub(super) fn no_memory(&mut self, needs: usize) {
        if !self.part.is_refused() {
            (self.starved, self.needs) = (true, needs);
            self.commands = self.commands.saturating_sub(1);
            return;
        }
        self.part.waits_no_more();
        let text = self.running.in_flight.refusal();
        let out = self.places.tail(&mut self.output);
        out.failure(ErrorCode::Busy, &text);
    }
}
