//! The answers of one connection, in the order of its commands, whenever they come.
//!
//! While nothing is owed, answers go straight to the connection's output. A command that has to wait
//! takes a place; what is answered after it waits behind it, as bytes.
//!
//! Many values of one command do not wait for the last of them: beyond a megabyte they leave as they come, and an
//! operation that fails after that is an error at its place in the array.

use std::collections::VecDeque;

use staves_model::Time;
use staves_wire::cache::OwnedOp;
use staves_wire::service::Answer;

use crate::output::{Join, Output, Protocol};

/// Places that are kept when nothing waits: a place has some two hundred bytes.
const PLACES_KEPT: usize = 16;

/// A command whose first values have this many bytes is not answered at once, but value by value.
const WHOLE_BYTES_MAX: usize = 1 << 20;

/// One operation of a command.
#[derive(Debug)]
pub enum PartialReply {
    /// Answered.
    Answered(Answer),
    /// Under way at a bucket of this node; kept so that it can be sent elsewhere.
    Waits(OwnedOp),
    /// Under way elsewhere, with the operation itself.
    Away,
}

/// A command that waits.
#[derive(Debug)]
struct WaitingCommand {
    join: Join,
    protocol: Protocol,
    parts: Parts,
    missing: usize,
    /// Until when it may take.
    deadline: Time,
    /// Bytes that it takes while it waits: what was asked, and what was answered.
    charged_bytes: usize,
    /// The first parts, which are answered, and the bytes of their values.
    ready: usize,
    ready_bytes: usize,
    /// The first parts, which have left for the output already.
    gone: usize,
    /// The answers to the commands behind it, up to the next place.
    after: Output,
}

impl WaitingCommand {
    /// Moves the first values of many to the output, if they are too many bytes to wait for the rest. Returns
    /// the bytes that are charged no more.
    fn stream(&mut self, output: &mut Output) -> usize {
        let Parts::Many(parts) = &mut self.parts else {
            return 0;
        };
        while let Some(PartialReply::Answered(answer)) = parts.get(self.ready) {
            self.ready_bytes += answer.value_bytes();
            self.ready += 1;
        }
        if self.join != Join::Each || (self.gone == 0 && self.ready_bytes < WHOLE_BYTES_MAX) {
            return 0;
        }
        let failed =
            |part: &PartialReply| matches!(part, PartialReply::Answered(Answer::Error(..)));
        // All of it is the error then, if nothing of it has left.
        if self.gone == 0 && parts[..self.ready].iter().any(failed) {
            return 0;
        }
        if self.gone == 0 {
            output.array(parts.len());
        }
        let mut left = 0;
        for part in &mut parts[self.gone..self.ready] {
            if let PartialReply::Answered(answer) = part {
                output.answer(self.protocol, answer);
                left += answer.value_bytes();
                *answer = Answer::Nil;
            }
        }
        self.gone = self.ready;
        self.charged_bytes -= left;
        left
    }
}

#[derive(Debug)]
enum Parts {
    One(PartialReply),
    Many(Vec<PartialReply>),
}

impl Parts {
    fn get(&mut self, part: u32) -> Option<&mut PartialReply> {
        match self {
            Parts::One(one) => (part == 0).then_some(one),
            Parts::Many(many) => many.get_mut(part as usize),
        }
    }
}

/// All places of one connection.
#[derive(Debug, Default)]
pub struct ReplyQueue {
    /// The number of the front place.
    first: u64,
    queue: VecDeque<WaitingCommand>,
    /// Bytes of answers behind all places but the last.
    behind: usize,
    /// The bytes charged to all places.
    charged_bytes: usize,
}

impl ReplyQueue {
    /// The number of commands that wait.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns whether no command waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The number that the next place will have.
    #[inline]
    pub fn next(&self) -> u64 {
        self.first + self.queue.len() as u64
    }

    /// The output that the next answer goes to.
    #[inline]
    pub fn tail<'a>(&'a mut self, output: &'a mut Output) -> &'a mut Output {
        match self.queue.back_mut() {
            Some(place) => &mut place.after,
            None => output,
        }
    }

    /// A place for a command of one operation.
    pub fn push_one(&mut self, join: Join, protocol: Protocol, deadline: Time, part: PartialReply) {
        self.push(join, protocol, deadline, Parts::One(part), 1);
    }

    /// A place for a command of several operations, some of which may be answered already.
    pub fn push_many(
        &mut self,
        join: Join,
        protocol: Protocol,
        deadline: Time,
        parts: Vec<PartialReply>,
    ) {
        let (mut missing, mut bytes) = (0, 0);
        for part in &parts {
            match part {
                PartialReply::Answered(answer) => bytes += answer.value_bytes(),
                _ => missing += 1,
            }
        }
        self.push(join, protocol, deadline, Parts::Many(parts), missing);
        self.charge_bytes(bytes);
    }

    fn push(
        &mut self,
        join: Join,
        protocol: Protocol,
        deadline: Time,
        parts: Parts,
        missing: usize,
    ) {
        self.behind += self.queue.back().map_or(0, |last| last.after.len());
        self.queue.push_back(WaitingCommand {
            join,
            protocol,
            parts,
            missing,
            deadline,
            charged_bytes: 0,
            ready: 0,
            ready_bytes: 0,
            gone: 0,
            after: Output::new(),
        });
    }

    /// Charges the bytes of a request to the last command that took a place.
    pub fn charge_bytes(&mut self, bytes: usize) {
        if let Some(place) = self.queue.back_mut() {
            place.charged_bytes += bytes;
            self.charged_bytes += bytes;
        }
    }

    /// Bytes of what the commands that wait have asked, and of their answers until now.
    pub fn charged_bytes(&self) -> usize {
        self.charged_bytes
    }

    /// The operations that wait at this node's buckets.
    pub fn waiting(&self) -> impl Iterator<Item = &OwnedOp> {
        let parts = self.queue.iter().flat_map(|place| match &place.parts {
            Parts::One(one) => std::slice::from_ref(one),
            Parts::Many(many) => &many[..],
        });
        parts.filter_map(|part| match part {
            PartialReply::Waits(op) => Some(op),
            _ => None,
        })
    }

    /// Takes an operation that waits, to be sent elsewhere, with its deadline.
    pub fn send_away(&mut self, place: u64, part: u32) -> Option<(OwnedOp, Time)> {
        let place = self.place(place)?;
        let part = place.parts.get(part)?;
        match std::mem::replace(part, PartialReply::Away) {
            PartialReply::Waits(op) => Some((op, place.deadline)),
            other => {
                *part = other;
                None
            }
        }
    }

    /// An operation's answer.
    pub fn settle(&mut self, place: u64, part: u32, answer: Answer) {
        let Some(place) = self.place(place) else {
            return;
        };
        if let Some(part) = place.parts.get(part)
            && !matches!(part, PartialReply::Answered(_))
        {
            let bytes = answer.value_bytes();
            *part = PartialReply::Answered(answer);
            place.missing -= 1;
            place.charged_bytes += bytes;
            self.charged_bytes += bytes;
        }
    }

    fn place(&mut self, place: u64) -> Option<&mut WaitingCommand> {
        let at = place.checked_sub(self.first)?;
        self.queue.get_mut(usize::try_from(at).ok()?)
    }

    /// Moves the answers that are next to the output.
    pub fn release(&mut self, output: &mut Output) {
        while self.queue.front().is_some_and(|place| place.missing == 0) {
            let Some(mut place) = self.queue.pop_front() else {
                break;
            };
            self.first += 1;
            self.charged_bytes -= place.charged_bytes;
            match place.parts {
                Parts::One(PartialReply::Answered(answer)) => {
                    output.join(place.protocol, place.join, &[answer]);
                }
                Parts::One(_) => {}
                Parts::Many(parts) if place.gone > 0 => {
                    for part in &parts[place.gone..] {
                        if let PartialReply::Answered(answer) = part {
                            output.answer(place.protocol, answer);
                        }
                    }
                }
                Parts::Many(parts) => {
                    let answers = parts.into_iter().filter_map(|part| match part {
                        PartialReply::Answered(answer) => Some(answer),
                        _ => None,
                    });
                    let answers: Vec<Answer> = answers.collect();
                    output.join(place.protocol, place.join, &answers);
                }
            }
            if !self.queue.is_empty() {
                self.behind -= place.after.len();
            }
            if !place.after.is_empty() {
                output.append(&mut place.after);
            }
        }
        if let Some(front) = self.queue.front_mut() {
            self.charged_bytes -= front.stream(output);
        } else if self.queue.capacity() > PLACES_KEPT {
            self.queue = VecDeque::new();
        }
    }

    /// Bytes of answers that wait behind places.
    pub fn held_bytes(&self) -> usize {
        self.behind + self.queue.back().map_or(0, |last| last.after.len())
    }
}

#[cfg(test)]
mod tests;
