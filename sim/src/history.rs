//! The history of the clients of registers, and the search for one order that explains it (I8).
//!
//! Every write of a run has a value of its own, so the test of Gibbons and Korach for registers
//! decides in one pass over pairs of zones: a value's zone spans from the first end to the last
//! beginning of its operations; forward zones must not overlap, and no backward zone may lie in a
//! forward one.

use std::collections::BTreeMap;

use crate::scale::MS;

/// An operation on one register. Times are the simulator's own, which all clients share.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The register.
    pub register: u32,
    /// The value written, or the value read. 0 is what a register holds at first.
    pub value: u64,
    /// A write, or a read.
    pub write: bool,
    /// The time of the call.
    pub called: u64,
    /// The time of the answer; `None` if it never did (it may still take effect).
    pub returned: Option<u64>,
    /// The life of the group that answered it; 0 but in worlds where groups start empty.
    pub life: usize,
}

#[derive(Clone, Copy)]
struct Zone {
    value: u64,
    first_end: u64,
    last_begin: u64,
    written: Option<u64>,
    seen: bool,
}

impl Zone {
    fn forward(&self) -> bool {
        self.first_end < self.last_begin
    }
}

/// Each way in which the history is not linearizable; none if it is.
pub fn violations(history: &[Operation]) -> Vec<String> {
    let mut registers: BTreeMap<u32, Vec<&Operation>> = BTreeMap::new();
    for op in history {
        registers.entry(op.register).or_default().push(op);
    }
    let mut bad = Vec::new();
    for (register, ops) in registers {
        check_register(register, &ops, &mut bad);
    }
    bad
}

fn check_register(register: u32, ops: &[&Operation], bad: &mut Vec<String>) {
    let zones = zones(ops);
    for op in ops.iter().filter(|op| !op.write) {
        let Some(end) = op.returned else { continue };
        match zones.get(&op.value).and_then(|z| z.written) {
            None => bad.push(format!(
                "I8 register {register}: read {:x}, which nobody wrote",
                op.value
            )),
            Some(begin) if end < begin => {
                bad.push(format!(
                    "I8 register {register}: read {:x} before it was written",
                    op.value
                ));
            }
            Some(_) => {}
        }
    }
    let zones: Vec<Zone> = zones
        .into_values()
        .filter(|z| z.first_end != u64::MAX || z.seen)
        .collect();
    for a in zones.iter().filter(|z| z.forward()) {
        for b in zones.iter().filter(|z| z.value != a.value) {
            let overlap = b.forward() && a.first_end < b.last_begin && b.first_end < a.last_begin;
            let inside = !b.forward() && a.first_end < b.last_begin && b.first_end < a.last_begin;
            if overlap || inside {
                bad.push(format!(
                    "I8/I1 register {register}: values {:x} [{}..{}] and {:x} [{}..{}] have no order",
                    a.value, a.first_end, a.last_begin, b.value, b.first_end, b.last_begin
                ));
            }
        }
    }
}

fn zones(ops: &[&Operation]) -> BTreeMap<u64, Zone> {
    let initial = Zone {
        value: 0,
        first_end: 0,
        last_begin: 0,
        written: Some(0),
        seen: true,
    };
    let mut zones = BTreeMap::from([(0, initial)]);
    for op in ops {
        if !op.write && op.returned.is_none() {
            continue;
        }
        let new = Zone {
            value: op.value,
            first_end: u64::MAX,
            last_begin: 0,
            written: None,
            seen: false,
        };
        let zone = zones.entry(op.value).or_insert(new);
        zone.first_end = zone.first_end.min(op.returned.unwrap_or(u64::MAX));
        zone.last_begin = zone.last_begin.max(op.called);
        if op.write {
            zone.written = Some(op.called);
        } else {
            zone.seen = true;
        }
    }
    zones
}

/// A copy of a message may be under way for so long.
const LATE_MAX: u64 = 1500 * MS;

/// The time of one operation in the eyes of one life of the group, which lasts from `begin` to `end`:
/// when it was called there, and whether its answer counts. `None`: that life never heard of it.
pub(crate) fn in_life(
    (life, begin, end): (usize, u64, u64),
    (called, returned, answered_in): (u64, Option<u64>, usize),
) -> Option<(u64, Option<u64>)> {
    if called >= end {
        return None;
    }
    match returned {
        Some(at) if answered_in == life => Some((called.max(begin), Some(at))),
        Some(at) if answered_in < life && at + LATE_MAX < begin => None,
        _ => Some((called.max(begin), None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(write: bool, value: u64, called: u64, returned: u64) -> Operation {
        let returned = (returned > 0).then_some(returned);
        Operation {
            register: 0,
            value,
            write,
            called,
            returned,
            life: 0,
        }
    }

    #[test]
    fn good_histories_pass() {
        let good = [
            vec![
                op(true, 1, 1, 2),
                op(false, 1, 3, 4),
                op(true, 2, 5, 6),
                op(false, 2, 7, 8),
            ],
            // A read beside a write may see either.
            vec![
                op(true, 1, 1, 2),
                op(true, 2, 3, 9),
                op(false, 1, 4, 5),
                op(false, 2, 6, 7),
            ],
            // A write that never returned may have taken effect, or not.
            vec![
                op(true, 1, 1, 2),
                op(true, 2, 3, 0),
                op(false, 2, 4, 5),
                op(false, 2, 6, 7),
            ],
            vec![op(true, 1, 1, 2), op(true, 2, 3, 0), op(false, 1, 4, 5)],
        ];
        for h in good {
            assert_eq!(violations(&h), Vec::<String>::new(), "{h:?}");
        }
    }

    #[test]
    fn bad_histories_are_rejected() {
        let bad = [
            // An acknowledged write is gone.
            vec![op(true, 1, 1, 2), op(false, 0, 3, 4)],
            // A value once read is lost.
            vec![
                op(true, 1, 1, 2),
                op(true, 2, 3, 0),
                op(false, 2, 4, 5),
                op(false, 1, 6, 7),
            ],
            // Stale read after a newer write was answered.
            vec![op(true, 1, 1, 2), op(true, 2, 3, 4), op(false, 1, 5, 6)],
            // Read of what nobody wrote, or nobody wrote yet.
            vec![op(false, 9, 1, 2)],
            vec![op(false, 1, 1, 2), op(true, 1, 3, 4)],
            // A retry that took effect twice: 1, 2, then 1 again.
            vec![
                op(true, 1, 1, 9),
                op(false, 1, 2, 3),
                op(true, 2, 4, 5),
                op(false, 2, 5, 6),
                op(false, 1, 7, 8),
            ],
        ];
        for h in bad {
            assert!(!violations(&h).is_empty(), "{h:?}");
        }
    }
}
