//! The judge of logs: the invariants that clients can see.
//!
//! Each record names its writer and its number, so that every value is unique. A position has one value for ever (I1); an acknowledged record is
//! read at its position until that is trimmed (I2); an append that began after another was acknowledged lies above it (I3), and above every tail and
//! record that was read before (I4); a record is at one position (I6), and a batch in one piece (I11).

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::history::{
    AppendOutcome, LogAppend, LogHistory, LogRead, LogTail, LogTrim, RecordName, SlotSeen,
};

/// Most violations of one log that are reported.
const SHOWN: usize = 10;

/// Positions that the log had reached by some time: the highest of all marks until then.
struct ReachedMarks(Vec<(u64, u64)>);

impl ReachedMarks {
    fn new(mut marks: Vec<(u64, u64)>) -> ReachedMarks {
        marks.sort_unstable();
        let mut highest = 0;
        for (_, position) in &mut marks {
            highest = highest.max(*position);
            *position = highest;
        }
        ReachedMarks(marks)
    }

    fn before(&self, at: u64) -> u64 {
        let earlier = self.0.partition_point(|(time, _)| *time < at);
        let last = earlier.checked_sub(1).and_then(|last| self.0.get(last));
        last.map_or(0, |(_, position)| *position)
    }
}

/// The value of a position: a record, or junk for ever; and whether it was acknowledged there.
type SlotValue = (Option<RecordName>, bool);

/// The judge of one log.
struct LogJudge<'a> {
    appends: Vec<&'a LogAppend>,
    reads: Vec<&'a LogRead>,
    tails: Vec<&'a LogTail>,
    trims: Vec<&'a LogTrim>,
    values: BTreeMap<u64, SlotValue>,
    places: BTreeMap<RecordName, u64>,
    wrong: Vec<String>,
}

impl LogHistory {
    /// The violations in words, of each log by its name.
    pub fn judge(&self, names: &[&str]) -> Vec<String> {
        let of_log = |(log, name): (usize, &&str)| {
            let mut judge = LogJudge {
                appends: self.appends.iter().filter(|a| a.log == log).collect(),
                reads: self.reads.iter().filter(|r| r.log == log).collect(),
                tails: self.tails.iter().filter(|t| t.log == log).collect(),
                trims: self.trims.iter().filter(|t| t.log == log).collect(),
                values: BTreeMap::new(),
                places: BTreeMap::new(),
                wrong: Vec::new(),
            };
            judge.judge();
            let mut wrong = judge.wrong;
            let more = wrong.len().saturating_sub(SHOWN);
            wrong.truncate(SHOWN);
            wrong.extend((more > 0).then(|| format!("{more} more")));
            let named = wrong.into_iter().map(|what| format!("log {name}: {what}"));
            named.collect::<Vec<String>>()
        };
        names.iter().enumerate().flat_map(of_log).collect()
    }
}

impl LogJudge<'_> {
    fn judge(&mut self) {
        self.values();
        self.names();
        self.batches();
        self.order();
        self.trimmed();
    }

    /// I1, I2 and I6.
    fn values(&mut self) {
        for append in self.appends.clone() {
            let Some((position, _)) = append.acked() else {
                continue;
            };
            for at in 0..u64::from(append.count) {
                let name = (append.writer, append.first + at);
                self.value(position + at, (Some(name), true));
            }
        }
        for read in self.reads.clone() {
            match &read.seen {
                SlotSeen::Record(name) => self.value(read.position, (Some(*name), false)),
                SlotSeen::Junk => self.value(read.position, (None, false)),
                SlotSeen::Torn => self.wrong.push(format!("I1: torn bytes: {read:?}")),
                SlotSeen::Trimmed | SlotSeen::PastTail => {}
            }
        }
    }

    fn value(&mut self, position: u64, (name, acked): SlotValue) {
        let known = self.values.entry(position).or_insert((name, acked));
        let (before, was_acked) = *known;
        known.1 |= acked;
        if before != name {
            let text = match (was_acked, acked) {
                (true, false) => format!(
                    "I2: {} was acknowledged at position {position}, which reads as {}",
                    words(before),
                    words(name)
                ),
                (true, true) => format!(
                    "I6: {} and {} were both acknowledged at position {position}",
                    words(before),
                    words(name)
                ),
                (false, _) => format!(
                    "I1: position {position} was {}, and later {}",
                    words(before),
                    words(name)
                ),
            };
            return self.wrong.push(text);
        }
        let Some(record) = name else {
            return;
        };
        let place = *self.places.entry(record).or_insert(position);
        if place != position {
            let text = format!("I6: {} is at positions {place} and {position}", words(name));
            self.wrong.push(text);
        }
    }

    /// A record that is read was appended before, and not refused.
    fn names(&mut self) {
        let mut by_writer: BTreeMap<u32, Vec<&LogAppend>> = BTreeMap::new();
        for append in &self.appends {
            by_writer.entry(append.writer).or_default().push(append);
        }
        for read in &self.reads {
            let SlotSeen::Record((writer, number)) = read.seen else {
                continue;
            };
            let all = by_writer.get(&writer).map_or(&[][..], Vec::as_slice);
            let after = all.partition_point(|append| append.first <= number);
            let append = after.checked_sub(1).and_then(|at| all.get(at));
            match append.filter(|append| append.has(number)) {
                Some(append) if append.outcome == AppendOutcome::Refused => {
                    self.wrong.push(format!(
                        "{append:?} was refused, and is in the log: {read:?}"
                    ));
                }
                Some(append) if append.call <= read.returned => {}
                _ => self
                    .wrong
                    .push(format!("nobody had appended that: {read:?}")),
            }
        }
    }

    /// I11: a batch is at positions in a row.
    fn batches(&mut self) {
        for append in self.appends.iter().filter(|append| append.count > 1) {
            let record = |at: u64| (append.writer, append.first + at);
            let all = 0..u64::from(append.count);
            let placed = |at: u64| Some(self.places.get(&record(at))?.checked_sub(at));
            let Some(first) = all.clone().find_map(placed) else {
                continue;
            };
            let fits = |at: u64| {
                let Some(first) = first else {
                    return false;
                };
                // What is there was not read, or is this record.
                let value = self.values.get(&(first + at));
                let place = self.places.get(&record(at));
                value.is_none_or(|(name, _)| *name == Some(record(at)))
                    && place.is_none_or(|place| *place == first + at)
            };
            if !all.clone().all(fits) {
                self.wrong
                    .push(format!("I11: a batch is in the log in pieces: {append:?}"));
            }
        }
    }

    /// The positions that the log had reached: by acknowledged appends, and by all that was seen.
    fn marks(&self) -> (ReachedMarks, ReachedMarks) {
        let ended = |append: &&LogAppend| {
            let (position, returned) = append.acked()?;
            Some((returned, position + u64::from(append.count)))
        };
        let acked: Vec<(u64, u64)> = self.appends.iter().filter_map(ended).collect();
        let is_record = |read: &&&LogRead| matches!(read.seen, SlotSeen::Record(_));
        let records = self.reads.iter().filter(is_record);
        let records = records.map(|read| (read.returned, read.position + 1));
        let tails = self.tails.iter().map(|tail| (tail.returned, tail.tail));
        let trims = self.trims.iter().filter_map(|t| Some((t.returned?, t.to)));
        let seen: Vec<(u64, u64)> = records.chain(tails).chain(trims).collect();
        let all = ReachedMarks::new(acked.iter().chain(&seen).copied().collect());
        (ReachedMarks::new(acked), all)
    }

    /// I3, I4, and each writer's order.
    fn order(&mut self) {
        let (acked, all) = self.marks();
        let mut last: BTreeMap<u32, u64> = BTreeMap::new();
        for append in &self.appends {
            let Some((position, _)) = append.acked() else {
                continue;
            };
            let (by_acks, by_all) = (acked.before(append.call), all.before(append.call));
            let writers = last.insert(append.writer, position);
            if position < by_acks {
                self.wrong.push(format!(
                    "I3: an append that began after positions below {by_acks} were acknowledged is lower: {append:?}"
                ));
            } else if position < by_all {
                self.wrong.push(format!(
                    "I4: an append that began after the log had reached {by_all} is lower: {append:?}"
                ));
            } else if writers > Some(position) {
                self.wrong.push(format!(
                    "I3: a writer's records are in another order: {append:?} is below its one before, at {writers:?}"
                ));
            }
        }
        for tail in &self.tails {
            let mark = all.before(tail.call);
            if tail.tail < mark {
                self.wrong.push(format!(
                    "I4: the tail is below {mark}, which the log had reached before: {tail:?}"
                ));
            }
        }
        for read in &self.reads {
            let mark = all.before(read.call);
            if read.seen == SlotSeen::PastTail && read.position < mark {
                self.wrong.push(format!(
                    "I4: a position below {mark}, which the log had reached before, is past the tail: {read:?}"
                ));
            }
        }
    }

    /// I2: nothing is trimmed that nobody gave up.
    fn trimmed(&mut self) {
        for read in &self.reads {
            let asked = |trim: &&LogTrim| trim.to > read.position && trim.call <= read.returned;
            if read.seen == SlotSeen::Trimmed && !self.trims.iter().any(asked) {
                self.wrong
                    .push(format!("I2: nobody had trimmed that: {read:?}"));
            }
        }
    }
}

fn words(value: Option<RecordName>) -> String {
    match value {
        Some((writer, number)) => format!("record {number} of writer {writer}"),
        None => "junk".to_owned(),
    }
}
