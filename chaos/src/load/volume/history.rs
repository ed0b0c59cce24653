//! The history of a volume's blocks, and its judge.
//!
//! Each write has a number of its own, which is in every word of the blocks that it writes. So the history of a block is that of a register whose values are
//! unique, and there is an order that explains it if no two values are current at once and none is current inside the time of another (Gibbons and
//! Korach). An unanswered write was done at some time, or never; but not after the first answer in a later session.

use std::collections::BTreeMap;

use serde::Serialize;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 4096;

/// A write to a block.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct BlockWrite {
    /// The block.
    pub block: u64,
    /// No other write has it; from 1.
    pub number: u64,
    /// The session, in the order in which they began.
    pub session: u64,
    /// The time of the request, in nanoseconds of the run.
    pub call: u64,
    /// The time of the answer that it is done; `None` if there was none such.
    pub returned: Option<u64>,
}

/// An answered read of a block.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct BlockRead {
    /// The block.
    pub block: u64,
    /// The write that was seen; 0 if none was; `None` if it was not the whole of one.
    pub seen: Option<u64>,
    /// The time of the request.
    pub call: u64,
    /// The time of the answer.
    pub returned: u64,
}

/// All that was written and read.
#[derive(Clone, Default, Debug)]
pub struct BlockHistory {
    /// The writes, in the order of their requests.
    pub writes: Vec<BlockWrite>,
    /// The reads.
    pub reads: Vec<BlockRead>,
}

/// A value's time: it was current between `from` and `to` at least, or, where these cross, at one instant between them.
#[derive(Clone, Debug)]
struct Zone {
    number: u64,
    first_end: u64,
    last_begin: u64,
}

impl Zone {
    fn lower(&self) -> u64 {
        self.first_end.min(self.last_begin)
    }

    fn upper(&self) -> u64 {
        self.first_end.max(self.last_begin)
    }

    fn is_lasting(&self) -> bool {
        self.first_end < self.last_begin
    }
}

/// The bytes of a block as this write leaves it.
pub fn content(block: u64, number: u64) -> Vec<u8> {
    let words = (0..BLOCK_BYTES as u64 / 8).map(|word| (number << 32) + (block << 9) + word);
    words.flat_map(u64::to_le_bytes).collect()
}

/// The write that left a block so; 0 if none did, `None` if these are not the bytes of one.
pub fn seen(block: u64, bytes: &[u8]) -> Option<u64> {
    if bytes.len() == BLOCK_BYTES && bytes.iter().all(|byte| *byte == 0) {
        return Some(0);
    }
    let number = u64::from_le_bytes(*bytes.first_chunk()?) >> 32;
    (number > 0 && bytes == content(block, number)).then_some(number)
}

impl BlockHistory {
    /// For each session that had an answer to a write: its first.
    fn begun(&self) -> BTreeMap<u64, u64> {
        let mut begun = BTreeMap::new();
        for write in &self.writes {
            if let Some(returned) = write.returned {
                let first = begun.entry(write.session).or_insert(returned);
                *first = returned.min(*first);
            }
        }
        begun
    }

    /// The violations, in words.
    pub fn judge(&self) -> Vec<String> {
        let begun = self.begun();
        let over = |session: u64| begun.range(session + 1..).map(|(_, at)| *at).min();
        let mut wrong = Vec::new();
        let mut blocks: BTreeMap<u64, (Vec<&BlockWrite>, Vec<&BlockRead>)> = BTreeMap::new();
        for write in &self.writes {
            let over = over(write.session).unwrap_or(u64::MAX);
            if write.call <= over {
                blocks.entry(write.block).or_default().0.push(write);
            } else if write.returned.is_some() {
                wrong.push(format!(
                    "a write was answered in a session that was over since {:.3} s: {write:?}",
                    seconds(over)
                ));
            }
        }
        for read in &self.reads {
            blocks.entry(read.block).or_default().1.push(read);
        }
        for (block, (writes, reads)) in blocks {
            let ended = |write: &BlockWrite| {
                let latest = over(write.session).unwrap_or(u64::MAX);
                write.returned.unwrap_or(latest)
            };
            if let Err(why) = judge_block(&writes, &reads, ended) {
                wrong.push(format!(
                    "block {block} of the volume is not linearizable: {why}"
                ));
            }
        }
        wrong
    }

    /// As JSON lines.
    pub fn text(&self) -> String {
        let line = |value: serde_json::Result<String>| value.unwrap_or_default() + "\n";
        let writes = self.writes.iter().map(|w| line(serde_json::to_string(w)));
        let reads = self.reads.iter().map(|r| line(serde_json::to_string(r)));
        writes.chain(reads).collect()
    }
}

fn seconds(at: u64) -> f64 {
    at as f64 / 1e9
}

fn judge_block(
    writes: &[&BlockWrite],
    reads: &[&BlockRead],
    ended: impl Fn(&BlockWrite) -> u64,
) -> Result<(), String> {
    let mut zones = BTreeMap::new();
    let none = Zone {
        number: 0,
        first_end: 0,
        last_begin: 0,
    };
    zones.insert(0, (none, 0, true));
    for write in writes {
        let zone = Zone {
            number: write.number,
            first_end: ended(write),
            last_begin: write.call,
        };
        // What was not answered and is never seen was not done.
        zones.insert(write.number, (zone, write.call, write.returned.is_some()));
    }
    for read in reads {
        let number = read.seen.ok_or_else(|| format!("torn: {read:?}"))?;
        let Some((zone, call, is_done)) = zones.get_mut(&number) else {
            return Err(format!(
                "nobody wrote that here, or a session that was over before: {read:?}"
            ));
        };
        if read.returned < *call {
            return Err(format!("read before it was written: {read:?}"));
        }
        *is_done = true;
        zone.first_end = zone.first_end.min(read.returned);
        zone.last_begin = zone.last_begin.max(read.call);
    }
    let done = zones.into_values().filter(|(.., is_done)| *is_done);
    let (mut lasting, instants): (Vec<Zone>, Vec<Zone>) =
        done.map(|(zone, ..)| zone).partition(Zone::is_lasting);
    lasting.sort_by_key(Zone::lower);
    for pair in lasting.windows(2) {
        if pair[1].lower() < pair[0].upper() {
            return Err(both(&pair[0], &pair[1]));
        }
    }
    for instant in &instants {
        let before = lasting.partition_point(|zone| zone.lower() < instant.lower());
        let around = before.checked_sub(1).and_then(|at| lasting.get(at));
        if let Some(around) = around.filter(|zone| instant.upper() < zone.upper()) {
            return Err(both(around, instant));
        }
    }
    Ok(())
}

fn both(lasting: &Zone, other: &Zone) -> String {
    format!(
        "write {} was there from {:.6} to {:.6} s, and write {} was done between {:.6} and {:.6} s",
        lasting.number,
        seconds(lasting.lower()),
        seconds(lasting.upper()),
        other.number,
        seconds(other.lower()),
        seconds(other.upper())
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes as (number, session, call, returned; 0 for none), reads as (number, call, returned), all of one block.
    fn judged(writes: &[(u64, u64, u64, u64)], reads: &[(u64, u64, u64)]) -> Vec<String> {
        let write = |(number, session, call, returned): &(u64, u64, u64, u64)| BlockWrite {
            block: 1,
            number: *number,
            session: *session,
            call: *call,
            returned: Some(*returned).filter(|at| *at > 0),
        };
        let read = |(seen, call, returned): &(u64, u64, u64)| BlockRead {
            block: 1,
            seen: Some(*seen),
            call: *call,
            returned: *returned,
        };
        let history = BlockHistory {
            writes: writes.iter().map(write).collect(),
            reads: reads.iter().map(read).collect(),
        };
        history.judge()
    }

    #[test]
    fn histories_with_an_order_are_fine() {
        for (writes, reads) in [
            (
                &[(1, 1, 10, 20), (2, 1, 30, 40)][..],
                &[(0, 5, 6), (1, 21, 29), (2, 41, 42)][..],
            ),
            // A read beside a write sees either.
            (&[(1, 1, 10, 20)], &[(0, 11, 19), (1, 12, 18)]),
            // Without an answer: done late, or never.
            (
                &[(1, 1, 10, 20), (2, 1, 30, 0)],
                &[(1, 41, 42), (2, 50, 60), (2, 70, 80)],
            ),
            (
                &[(1, 1, 10, 20), (2, 1, 30, 0)],
                &[(1, 41, 42), (1, 70, 80)],
            ),
            // In a former session, before the next one's first answer.
            (
                &[(1, 1, 10, 0), (2, 2, 30, 40)],
                &[(1, 21, 25), (2, 41, 42)],
            ),
        ] {
            assert_eq!(judged(writes, reads), Vec::<String>::new());
        }
    }

    #[test]
    fn what_has_no_order_is_found() {
        for (writes, reads, says) in [
            (
                &[(1, 1, 10, 20)][..],
                &[(0, 21, 22)][..],
                "write 0 was there",
            ),
            (
                &[(1, 1, 10, 20), (2, 1, 30, 40)],
                &[(1, 41, 42)],
                "write 1 was there",
            ),
            // Seen, and then gone again.
            (
                &[(1, 1, 10, 20), (2, 1, 30, 0)],
                &[(2, 31, 32), (1, 41, 42)],
                "write 1 was there",
            ),
            (&[(1, 1, 10, 20)], &[(1, 1, 2)], "before it was written"),
            (&[(1, 1, 10, 20)], &[(7, 30, 40)], "nobody wrote that"),
            // The former session's write shows after the next one's first answer, and its other one is answered.
            (
                &[(1, 1, 10, 0), (2, 2, 30, 40)],
                &[(2, 41, 42), (1, 50, 60)],
                "not linearizable",
            ),
            (
                &[(2, 2, 30, 40), (1, 1, 45, 0)],
                &[(2, 41, 42), (1, 50, 60)],
                "a session that was over",
            ),
            (
                &[(2, 2, 30, 40), (1, 1, 45, 48)],
                &[],
                "answered in a session that was over",
            ),
        ] {
            let wrong = judged(writes, reads);
            assert_eq!(wrong.len(), 1, "{writes:?} {reads:?}: {wrong:?}");
            assert!(wrong[0].contains(says), "{wrong:?}");
        }
    }

    #[test]
    fn a_block_that_is_torn_is_found() {
        let mut bytes = content(3, 9);
        assert_eq!(seen(3, &bytes), Some(9));
        assert_eq!(seen(4, &bytes), None);
        bytes[4000..].copy_from_slice(&content(3, 8)[4000..]);
        assert_eq!(seen(3, &bytes), None);
        assert_eq!(seen(3, &[0; BLOCK_BYTES]), Some(0));
        let torn = BlockHistory {
            reads: vec![BlockRead {
                block: 3,
                seen: None,
                call: 1,
                returned: 2,
            }],
            ..BlockHistory::default()
        };
        assert!(torn.judge()[0].contains("torn"));
    }
}
