//! The history of a volume's blocks, and its judge.
//!
//! Each write has a number of its own, which is in every word of the blocks that it writes. So the history of a block is that of a register whose values are
//! unique, and there is an order that explains it if no two values are current at once and none is current inside the time of another (Gibbons and
//! Korach). An unanswered write was done at some time, or never; but not after the first answer in a later session.

#[cfg(test)]
mod tests;

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
#[derive(Clone, Default, Debug, Serialize)]
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

    /// `Err` if no order has both.
    fn beside(&self, other: &Zone) -> Result<(), String> {
        let crosses = match (self.is_lasting(), other.is_lasting()) {
            (true, true) => self.lower().max(other.lower()) < self.upper().min(other.upper()),
            (true, false) => self.has_inside(other),
            (false, true) => other.has_inside(self),
            (false, false) => false,
        };
        match (crosses, self.is_lasting()) {
            (false, _) => Ok(()),
            (true, true) => Err(both(self, other)),
            (true, false) => Err(both(other, self)),
        }
    }

    fn has_inside(&self, other: &Zone) -> bool {
        self.lower() < other.lower() && other.upper() < self.upper()
    }
}

/// A value of a block.
#[derive(Clone, Debug)]
struct BlockValue {
    zone: Zone,
    /// The time at which it was asked to be written.
    call: u64,
    /// It was answered, or seen. What was not was not done.
    is_done: bool,
}

/// The values of a block, and their times.
#[derive(Clone, Debug)]
pub(super) struct BlockOrder(BTreeMap<u64, BlockValue>);

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

    /// The orders of those blocks that have one, and the violations in words. `first`: the writes that blocks held at the beginning; 0 where there is none.
    pub(super) fn judge(
        &self,
        name: &str,
        first: &BTreeMap<u64, u64>,
    ) -> (BTreeMap<u64, BlockOrder>, Vec<String>) {
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
                    "a write to {name} was answered in a session that was over since {:.3} s: {write:?}",
                    seconds(over)
                ));
            }
        }
        for read in &self.reads {
            blocks.entry(read.block).or_default().1.push(read);
        }
        let mut orders = BTreeMap::new();
        for (block, (writes, reads)) in blocks {
            let ended = |write: &BlockWrite| {
                let latest = over(write.session).unwrap_or(u64::MAX);
                write.returned.unwrap_or(latest)
            };
            let first = first.get(&block).copied().unwrap_or_default();
            let order = BlockOrder::new(first, &writes, ended);
            match order.with_reads(&reads).and_then(BlockOrder::judged) {
                Ok(order) => {
                    orders.insert(block, order);
                }
                Err(why) => wrong.push(format!(
                    "block {block} of {name} is not linearizable: {why}"
                )),
            }
        }
        (orders, wrong)
    }

    /// As JSON lines.
    pub fn text(&self) -> String {
        let line = |value: serde_json::Result<String>| value.unwrap_or_default() + "\n";
        let writes = self.writes.iter().map(|w| line(serde_json::to_string(w)));
        let reads = self.reads.iter().map(|r| line(serde_json::to_string(r)));
        writes.chain(reads).collect()
    }
}

pub(super) fn seconds(at: u64) -> f64 {
    at as f64 / 1e9
}

impl BlockOrder {
    /// Of a block that held this write at first.
    pub(super) fn new(
        first: u64,
        writes: &[&BlockWrite],
        ended: impl Fn(&BlockWrite) -> u64,
    ) -> BlockOrder {
        let value = |number: u64, (call, end): (u64, u64), is_done: bool| {
            let zone = Zone {
                number,
                first_end: end,
                last_begin: call,
            };
            (
                number,
                BlockValue {
                    zone,
                    call,
                    is_done,
                },
            )
        };
        let written = writes.iter().map(|write| {
            let times = (write.call, ended(write));
            value(write.number, times, write.returned.is_some())
        });
        BlockOrder(written.chain([value(first, (0, 0), true)]).collect())
    }

    fn with_reads(mut self, reads: &[&BlockRead]) -> Result<BlockOrder, String> {
        for read in reads {
            let number = read.seen.ok_or_else(|| format!("torn: {read:?}"))?;
            let Some(value) = self.0.get_mut(&number) else {
                return Err(format!(
                    "nobody wrote that here, or a session that was over before: {read:?}"
                ));
            };
            if read.returned < value.call {
                return Err(format!("read before it was written: {read:?}"));
            }
            value.is_done = true;
            value.zone.first_end = value.zone.first_end.min(read.returned);
            value.zone.last_begin = value.zone.last_begin.max(read.call);
        }
        Ok(self)
    }

    fn done(&self) -> impl Iterator<Item = &BlockValue> {
        self.0.values().filter(|value| value.is_done)
    }

    fn judged(self) -> Result<BlockOrder, String> {
        let zones = self.done().map(|value| &value.zone);
        let (mut lasting, instants): (Vec<&Zone>, Vec<&Zone>) =
            zones.partition(|zone| zone.is_lasting());
        lasting.sort_by_key(|zone| zone.lower());
        for pair in lasting.windows(2) {
            pair[0].beside(pair[1])?;
        }
        for instant in &instants {
            let before = lasting.partition_point(|zone| zone.lower() < instant.lower());
            let around = before.checked_sub(1).and_then(|at| lasting.get(at));
            around.map_or(Ok(()), |around| around.beside(instant))?;
        }
        Ok(self)
    }

    /// `Err` says why the block cannot have held this write at that instant.
    pub(super) fn held(&self, number: u64, at: u64) -> Result<(), String> {
        let Some(value) = self.0.get(&number) else {
            return Err(format!(
                "nobody wrote {number} here, or a session that was over before"
            ));
        };
        if at < value.call {
            let call = seconds(value.call);
            return Err(format!("write {number} began at {call:.6} s"));
        }
        let zone = Zone {
            number,
            first_end: value.zone.first_end.min(at),
            last_begin: value.zone.last_begin.max(at),
        };
        let mut others = self.done().filter(|other| other.zone.number != number);
        others.try_for_each(|other| zone.beside(&other.zone))
    }

    /// The instants at which what the block can have held changes.
    pub(super) fn instants(&self) -> impl Iterator<Item = u64> {
        let of = |value: &BlockValue| [value.call, value.zone.lower(), value.zone.upper()];
        self.0.values().flat_map(of)
    }
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
