//! A connection's part of the node's memory for requests and answers under way.

use bytes::BytesMut;
use staves_net::{Behind, OWN_BYTES, SMALL_BYTES};
use staves_wire::ErrorCode;
use staves_wire::cache::Op;
use staves_wire::service::Answer;

use super::{ANSWERS_STEP_BYTES, Connection, Executor, OP_BYTES, OUTPUT_BYTES_MAX};

impl Connection {
    /// Tells what it holds. Returns true if more may be read: an unfinished command counts as far as it is known how long it is.
    pub(super) fn account(&mut self) -> bool {
        self.give_buffers_back();
        let lacking = match self.input.is_empty() {
            true => 0,
            false => self.parser.wanted(self.input.len()),
        };
        let executor = &mut self.executor;
        executor.waits.set(executor.places.len());
        // Whoever has taken more than there was keeps that until its client has all of it: the next would take as much again.
        let answers = executor.output.len() + executor.places.held_bytes();
        if answers == 0 && !executor.remote.is_under_way() {
            executor.part.overdraws_no_more();
        }
        executor.held = self.input.len() + self.parser.held_bytes() + executor.held_bytes();
        if !executor.starved && executor.part.try_set(executor.held + lacking) {
            // Between two turns of a costly command that lacks memory its wait goes on.
            if !executor.needs_memory && !executor.turn.is_awaited() {
                executor.part.waits_no_more();
            }
            return true;
        }
        executor.part.set(executor.held);
        // What waits for its own commands gets memory when they are done.
        let waits_in_vain = lacking > 0 && executor.places.is_empty();
        if waits_in_vain && !executor.starved && !executor.closing && executor.part.is_refused() {
            executor.no_memory(0, false);
            executor.closing = true;
        }
        false
    }

    fn give_buffers_back(&mut self) {
        if self.input.is_empty() && self.kept.lets_go() {
            self.input = BytesMut::new();
        }
        let output = &mut self.executor.output;
        if output.is_empty() && !self.kept.may_keep() {
            output.let_go();
        }
    }
}

impl Executor {
    /// The refusal of a command of so many operations, if they take more memory than there is for all requests.
    pub(super) fn too_many(&self, ops: usize) -> Option<String> {
        let ops_max = self.running.in_flight.bytes_max() / OP_BYTES;
        (ops > ops_max).then(|| {
            format!(
                "ERR a command may have at most {ops_max} keys here, for what each takes while it waits: send several commands, or give \
                 the node more memory for requests (in_flight_bytes_max)"
            )
        })
    }

    /// The bytes that the next batch to other nodes may ask for, and those of them for which it has taken memory. The error is
    /// true if it has waited for memory long enough, and is to be refused.
    pub(super) fn answer_room(&mut self, bytes: usize) -> Result<(usize, usize), bool> {
        let held = self.held_bytes();
        // It has nothing that it could give back before.
        let holds_up = self.output.is_empty() && self.places.charged_bytes() > 0;
        if self.output.len() >= OUTPUT_BYTES_MAX {
            return Err(false);
        }
        let needs = self.remote.needs_bytes();
        let has_memory = match holds_up {
            true => self.part.try_set(held + bytes),
            false => self.part.try_set_in_turn(held + bytes),
        };
        // Small values go on while the memory for requests is taken, and of large ones it shows how large they are.
        let mut room = has_memory.then_some((bytes.max(OWN_BYTES), bytes));
        let least = needs.max(self.remote.likely_bytes());
        let least = least.clamp(OWN_BYTES, SMALL_BYTES);
        if needs <= SMALL_BYTES && room.is_none_or(|(_, taken)| taken < SMALL_BYTES) {
            let small = [SMALL_BYTES, least].into_iter();
            let mut small = small.filter(|small| self.part.try_set(held + small));
            room = small.next().map(|small| (small, small)).or(room);
        }
        if room.is_none() && needs <= SMALL_BYTES {
            let own = (held <= OWN_BYTES && needs <= OWN_BYTES).then_some((OWN_BYTES, 0));
            let overdraws = || (holds_up && self.part.may_overdraw()).then_some((least, 0));
            room = own.or_else(overdraws);
        }
        if let Some(room) = room {
            if std::mem::take(&mut self.needs_memory) {
                self.part.waits_no_more();
            }
            return Ok(room);
        }
        self.needs_memory = true;
        Err(self.part.is_refused())
    }

    /// The part of this command that is on its way to other nodes is refused: there is no memory for an answer.
    pub(super) fn refuse_remote(&mut self, place: u64) {
        self.needs_memory = false;
        self.part.waits_no_more();
        let answer = Answer::error(ErrorCode::Busy, self.running.in_flight.refusal());
        let places = &mut self.places;
        let settle = |place, part, answer| places.settle(place, part, answer);
        self.remote.refuse(place, &answer, settle);
        self.places.release(&mut self.output);
        // What is behind it sets out in the next round.
        self.held_back = self.remote.is_ready();
    }

    /// As many requests wait at the node as may, one of this connection among them: this one is refused.
    pub(super) fn refuse_place(&mut self) {
        let text = self.running.in_flight.requests.refuse();
        let out = self.places.tail(&mut self.output);
        out.failure(ErrorCode::Busy, &text);
    }

    /// True if it goes on with more memory. What is behind an answer that is still to come waits for that one first.
    pub(super) fn waits_for_memory(&self) -> bool {
        self.held_back || self.places.is_empty() && (self.starved || self.unread)
    }

    pub(super) fn held_bytes(&self) -> usize {
        let places = self.places.charged_bytes() + self.places.held_bytes();
        places + self.output.held_bytes() + self.remote.under_way_bytes()
    }

    /// The answers behind which the next would lie.
    pub(super) fn behind(&self) -> Behind {
        match self.places.is_empty() {
            true => Behind::Nothing,
            false => Behind::Others,
        }
    }

    /// The same for the rest of a command of which a part has gone to another node or not.
    pub(super) fn behind_parts(&self, elsewhere: bool) -> Behind {
        match self.behind() {
            Behind::Nothing if elsewhere && self.output.is_empty() => Behind::Itself,
            _ if elsewhere => Behind::Others,
            behind => behind,
        }
    }

    /// Values are to be answered: true if there is memory for them.
    pub(super) fn has_memory(&mut self, values: usize, behind: Behind) -> bool {
        let held = self.held_beside();
        self.part.try_set_answers(held + values, behind)
    }

    /// Bytes that it holds but for what has been answered in this turn.
    pub(super) fn held_before(&self, behind: Behind) -> usize {
        match behind {
            Behind::Nothing => self.held,
            _ => self.held.max(self.held_bytes()),
        }
    }

    /// Bytes that it holds, whatever it was at the last look, but for the answers of the command at hand.
    pub(super) fn held_beside(&self) -> usize {
        (self.held + self.output.held_bytes()).max(self.held_bytes())
    }

    /// The bytes of the value that a write would be answered with, if there is no memory for them: it is not begun. A read shows
    /// them when it is done.
    pub(super) fn lacks_memory_for_write(&mut self, op: &Op<'_>, behind: Behind) -> Option<usize> {
        if !matches!(op, Op::GetDel { .. } | Op::Set { get_old: true, .. }) {
            return None;
        }
        let pool = self.routes.pools.get(&self.routes.door?)?;
        let cell = &pool.cells[pool.bucket_of(op.slot()) as usize];
        let bytes = cell.lock().cache_value_bytes(*op);
        (bytes > OWN_BYTES && !self.has_memory(bytes, behind)).then_some(bytes)
    }

    /// True if there is memory for more answers: they are written at the end of the turn, and until then whole pipelines of them
    /// lie there. If not, nothing more is executed until some have been written, or there is memory.
    pub(super) fn has_memory_for_answers(&mut self) -> bool {
        let answers = self.output.len() + self.places.held_bytes();
        if answers <= OWN_BYTES || self.held + answers <= self.part.bytes_max() {
            return true;
        }
        self.has_memory(ANSWERS_STEP_BYTES, self.behind())
    }

    /// True if the command that waits for room still has none: it is not tried in vain, for that copies values.
    pub(super) fn still_starved(&mut self) -> bool {
        let behind = self.behind_parts(self.needs_behind_parts);
        self.starved = self.starved
            && !self.closing
            && !self.has_memory(self.needs, behind)
            && (!self.places.is_empty() || !self.part.is_refused());
        self.starved
    }

    /// A command found no memory for so many bytes of its values: it waits, and is refused in the end. Its time begins when nothing is
    /// left before it.
    pub(super) fn no_memory(&mut self, needs: usize, behind_parts: bool) {
        if !self.places.is_empty() || !self.part.is_refused() {
            (self.starved, self.needs, self.needs_behind_parts) = (true, needs, behind_parts);
            self.commands = self.commands.saturating_sub(1);
            return;
        }
        self.part.waits_no_more();
        let text = self.running.in_flight.refusal();
        let out = self.places.tail(&mut self.output);
        out.failure(ErrorCode::Busy, &text);
    }
}
