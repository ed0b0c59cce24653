//! The load of the suite: seals, writes at tokens, reads and trims of many logs in one unit, against a plain model.

use staves_conformance::{Draw, Workload, conforms};
use staves_group::Member;
use staves_history::Operation;
use staves_service::{Bucket, Limits};
use staves_wire::service::{Answer, Body};

use super::bench::SEQUENCER;
use crate::codec::BucketRequest;
use crate::message::{Records, SlotAnswer, TermStart, UnitAnswer, UnitOp, UnitReply, UnitRequest};
use crate::service::{LogUnit, UnitCall};
use crate::types::{
    AppendId, AppendMode, Binding, LogId, LogOptions, Position, RecordHead, SessionId, Term,
};
use crate::unit::UnitLimits;

/// Positions of one log that are written.
const POSITIONS: u64 = 6;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Plain {
    Seal(u64),
    /// Term, position, and the number that is written.
    Write(u64, Position, u64),
    /// Term and position.
    Read(u64, Position),
    Trim(Position),
}

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
struct Share {
    term: Option<u64>,
    slots: [Option<u64>; POSITIONS as usize],
    claimed: u64,
    trim: u64,
}

#[derive(Clone, PartialEq, Debug)]
enum Seen {
    Sealed {
        claimed: u64,
        trim: u64,
    },
    Stale(u64),
    NotSealed(u64),
    Written,
    Lost,
    Trimmed,
    /// The number there, or whether it was trimmed; and a higher term.
    Slot(Result<Option<u64>, ()>, Option<u64>),
}

impl Operation for Plain {
    type State = Share;
    type Seen = Seen;

    fn apply(&self, before: &Share) -> (Share, Seen) {
        let mut share = before.clone();
        let term = share.term.unwrap_or(0);
        let seen = match *self {
            Plain::Seal(new) if new < term => Seen::Stale(term),
            Plain::Seal(new) => {
                share.term = Some(new);
                let (claimed, trim) = (share.claimed, share.trim);
                Seen::Sealed { claimed, trim }
            }
            Plain::Write(..) if share.term.is_none() => Seen::NotSealed(0),
            Plain::Write(of, ..) if of < term => Seen::Stale(term),
            Plain::Write(of, ..) if of > term => Seen::NotSealed(term),
            Plain::Write(_, position, number) => {
                let slot = &mut share.slots[position as usize];
                match position < share.trim || slot.is_some() {
                    true => Seen::Lost,
                    false => {
                        *slot = Some(number);
                        share.claimed = share.claimed.max(position + 1);
                        Seen::Written
                    }
                }
            }
            Plain::Read(of, position) => {
                let stale = (of < term).then_some(term);
                let slot = match position < share.trim {
                    true => Err(()),
                    false => Ok(share.slots[position as usize]),
                };
                Seen::Slot(slot, stale)
            }
            Plain::Trim(position) => {
                if share.term.is_some() {
                    share.trim = share.trim.max(position);
                    share.slots[..position as usize].fill(None);
                }
                Seen::Trimmed
            }
        };
        (share, seen)
    }

    fn is_read(&self) -> bool {
        matches!(self, Plain::Read(..))
    }

    fn is_blind(&self) -> bool {
        matches!(self, Plain::Trim(_))
    }
}

/// Bytes that tell their number.
fn record(number: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend(staves_conformance::bytes(
        number,
        (number * 389 % 9000) as usize,
    ));
    bytes
}

fn number_of(head: &RecordHead, bytes: &[u8]) -> Option<u64> {
    let number = u64::from(head.id.seq);
    (bytes == record(number)).then_some(number)
}

struct Load;

impl Load {
    fn call(operation: &Plain) -> UnitOp {
        let id = |number: u64| AppendId {
            seq: number as u32,
            session: SessionId {
                term: Term(0),
                count: 8,
            },
        };
        match *operation {
            Plain::Seal(term) => UnitOp::Seal {
                term: Term(term),
                options: LogOptions::of(AppendMode::Corfu),
            },
            Plain::Write(term, position, number) => UnitOp::Write {
                term: TermStart {
                    term: Term(term),
                    start: 0,
                    sequencer: SEQUENCER,
                },
                binding: Binding {
                    position,
                    count: 1,
                    id: Some(id(number)),
                    links: Vec::new(),
                },
                low: number.saturating_sub(4000) as u32,
                data: Records::one(record(number).into()),
            },
            Plain::Read(term, position) => UnitOp::Read {
                position,
                term: Term(term),
                start: 0,
                word: None,
            },
            Plain::Trim(position) => UnitOp::Trim { position },
        }
    }
}

impl Workload for Load {
    type Service = LogUnit;
    type Operation = Plain;
    const OBJECTS: u64 = 4;
    const SCHEMES: &'static [(u8, u8)] = &[(1, 0), (1, 1), (1, 2)];

    fn bucket(limits: Limits, member: Member) -> Bucket<LogUnit> {
        LogUnit::bucket(limits, UnitLimits::default(), member).0
    }

    fn draw(draw: &mut Draw<'_, Plain>) -> Plain {
        let known =
            draw.recent
                .iter()
                .rev()
                .find_map(|(operation, seen)| match (operation, seen) {
                    (Plain::Seal(term), Seen::Sealed { .. }) => Some(*term),
                    (_, Seen::Stale(term) | Seen::NotSealed(term)) => Some(*term),
                    _ => None,
                });
        let term = known.unwrap_or(0);
        let position = draw.below(POSITIONS);
        match draw.below(24) {
            _ if draw.is_read() => Plain::Read(term, position),
            0 | 1 => Plain::Seal(draw.number),
            2 => Plain::Trim(draw.below(2) + position / 2),
            _ => Plain::Write(term, position, draw.number),
        }
    }

    fn read(_object: u64) -> Plain {
        Plain::Read(0, 0)
    }

    fn write(_object: u64, number: u64) -> Plain {
        Plain::Seal(number)
    }

    fn body(object: u64, operation: &Plain) -> Body {
        let request = UnitRequest {
            log: LogId(object),
            op: Load::call(operation),
        };
        UnitCall::Request(BucketRequest::Unit(request)).into_body()
    }

    fn seen(_operation: &Plain, answer: &Answer) -> Option<Seen> {
        let Answer::Value(value) = answer else {
            return None;
        };
        Some(match UnitReply::decode(value.clone()).ok()?.answer {
            UnitAnswer::Sealed { claimed, trim, .. } => Seen::Sealed { claimed, trim },
            UnitAnswer::Stale { term } => Seen::Stale(term.0),
            UnitAnswer::NotSealed { term } => Seen::NotSealed(term.0),
            UnitAnswer::Ack { .. } => Seen::Written,
            UnitAnswer::Lost { .. } => Seen::Lost,
            UnitAnswer::Trimmed { .. } => Seen::Trimmed,
            UnitAnswer::Slot { slot, stale, .. } => {
                let slot = match slot {
                    SlotAnswer::Data { head, data } => Ok(Some(number_of(&head, &data)?)),
                    SlotAnswer::Unwritten => Ok(None),
                    SlotAnswer::Trimmed => Err(()),
                    _ => return None,
                };
                Seen::Slot(slot, stale.map(|term| term.0))
            }
            _ => return None,
        })
    }
}

#[test]
fn a_unit_conforms() {
    conforms::<Load>(8);
}
