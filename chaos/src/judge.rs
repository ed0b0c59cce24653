//! The verdict on a run's history.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use staves_history::Record;
use staves_history::chunk::{OnChunk, WORDS};
use staves_history::record::{self, Asked, Checked};

/// Most steps of the search for each key.
const STEPS_MAX: usize = 500_000;

/// Most keys that are reported one by one.
const BAD_SHOWN: usize = 10;

/// The longest time in which no client had an answer about a contended key.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Stall {
    /// The key.
    pub key: String,
    /// The beginning, in nanoseconds of the run.
    pub from: u64,
    /// The length.
    pub length: Duration,
}

/// The worst stall between `from` and `to`, of keys that many clients ask for.
pub fn worst_stall(records: &[Record], from: u64, to: u64) -> Stall {
    let mut answers: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for record in records.iter().filter(|r| !r.key.starts_with('l')) {
        let at = record.returned.filter(|at| (from..=to).contains(at));
        answers.entry(&record.key).or_default().extend(at);
    }
    let mut worst = Stall::default();
    for (key, mut times) in answers {
        times.extend([from, to]);
        times.sort_unstable();
        for pair in times.windows(2) {
            let length = Duration::from_nanos(pair[1].saturating_sub(pair[0]));
            if length > worst.length {
                worst = Stall {
                    key: key.to_owned(),
                    from: pair[0],
                    length,
                };
            }
        }
    }
    worst
}

/// An operation's kind, for counting.
pub fn kind(asked: &Asked) -> &'static str {
    match asked {
        Asked::Get => "GET",
        Asked::Set { .. } => "SET",
        Asked::SetNx { .. } => "SET NX",
        Asked::Del => "DEL",
        Asked::Incr { .. } => "INCRBY",
        Asked::Append { .. } => "APPEND",
        Asked::GetDel => "GETDEL",
        Asked::Chunk(OnChunk::Read { .. }) => "memory read",
        Asked::Chunk(OnChunk::Write { .. }) => "memory write",
        Asked::Chunk(OnChunk::Swap { .. }) => "compare-and-swap",
        Asked::Chunk(OnChunk::Add { .. }) => "fetch-and-add",
    }
}

/// The operation that empties a key, as `asked` has keys.
fn emptied(asked: &Asked) -> Asked {
    let (from, to, value) = (0, WORDS.len() - 1, 0);
    match asked {
        Asked::Chunk(_) => Asked::Chunk(OnChunk::Write { from, to, value }),
        _ => Asked::Del,
    }
}

/// Allows each key to have become empty once for each time that more was lost than the scheme bears:
/// a loss is a deletion without a request, of unknown outcome. A loss is the time from before
/// the first node is killed until the last is dead: what was written in between is lost as well.
/// A region on disk loses nothing by that.
pub fn with_losses(
    mut records: Vec<Record>,
    losses: &[Range<u64>],
    is_region_on_disk: bool,
) -> Vec<Record> {
    let mut first: BTreeMap<String, (u64, Asked)> = BTreeMap::new();
    let is_lost =
        |record: &&Record| !(is_region_on_disk && matches!(record.asked, Asked::Chunk(_)));
    for record in records.iter().filter(is_lost) {
        let new = || (record.call, emptied(&record.asked));
        let (at, _) = first.entry(record.key.clone()).or_insert_with(new);
        *at = (*at).min(record.call);
    }
    for (key, (begun, asked)) in first {
        for loss in losses.iter().filter(|loss| loss.end > begun) {
            records.push(Record {
                process: u32::MAX,
                key: key.clone(),
                asked: asked.clone(),
                call: loss.start,
                returned: None,
                answer: None,
            });
        }
    }
    records
}

/// Searches one order that explains each key; the violations in words.
pub fn histories(records: &[Record]) -> (Checked, Vec<String>) {
    let checked = record::check(records, STEPS_MAX);
    let mut violations: Vec<String> = checked
        .bad
        .iter()
        .take(BAD_SHOWN)
        .map(|(key, why)| format!("key {key} is not linearizable: {why}"))
        .collect();
    if checked.bad.len() > BAD_SHOWN {
        let more = checked.bad.len() - BAD_SHOWN;
        violations.push(format!("{more} more keys are not linearizable"));
    }
    let contended = |keys: &mut dyn Iterator<Item = &str>| {
        keys.filter(|key| !key.starts_with('l'))
            .collect::<BTreeSet<_>>()
            .len()
    };
    let all = contended(&mut records.iter().map(|r| r.key.as_str()));
    let undecided = contended(&mut checked.undecided.iter().map(String::as_str));
    if undecided * 2 > all {
        violations.push(format!(
            "{undecided} of {all} contended keys could not be decided: too many operations with an unknown outcome"
        ));
    }
    (checked, violations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use staves_history::chunk::CELLS;
    use staves_history::record::Answered;

    fn record(key: &str, asked: Asked, call: u64, returned: u64, answer: Answered) -> Record {
        Record {
            process: 1,
            key: key.into(),
            asked,
            call,
            returned: Some(returned),
            answer: Some(answer),
        }
    }

    #[test]
    fn the_longest_silence_of_a_key_is_found() {
        let second = 1_000_000_000;
        let mut records = Vec::new();
        for t in [1, 2, 3, 8, 9] {
            records.push(record(
                "t0",
                Asked::Get,
                (t - 1) * second,
                t * second,
                Answered::Nil,
            ));
        }
        let stall = worst_stall(&records, 0, 10 * second);
        assert_eq!(
            (stall.key.as_str(), stall.length),
            ("t0", Duration::from_secs(5))
        );
        let stall = worst_stall(&records, 0, 20 * second);
        assert_eq!(stall.length, Duration::from_secs(11), "silent to the end");
    }

    #[test]
    fn no_loss_excuses_a_region_on_disk() {
        let (from, to) = (0, WORDS.len() - 1);
        let written = OnChunk::Write { from, to, value: 7 };
        let empty = Answered::Cells([0; CELLS]);
        let gone = vec![
            record("c", Asked::Chunk(written), 1, 2, Answered::Ok),
            record("c", Asked::Chunk(OnChunk::Read { from, to }), 5, 6, empty),
        ];
        for (on_disk, violations) in [(false, 0), (true, 1)] {
            let losses = std::slice::from_ref(&(3..4));
            let judged = histories(&with_losses(gone.clone(), losses, on_disk));
            assert_eq!(judged.1.len(), violations, "{judged:?}");
        }
    }

    #[test]
    fn a_loss_excuses_an_empty_key_but_no_wrong_value() {
        let set = |value: &str| Asked::Set {
            value: value.into(),
        };
        let gone = vec![
            record("k", set("a"), 1, 2, Answered::Ok),
            record("k", Asked::Get, 5, 6, Answered::Nil),
        ];
        assert_eq!(histories(&gone).1.len(), 1);
        assert!(
            histories(&with_losses(
                gone.clone(),
                std::slice::from_ref(&(3..4)),
                true
            ))
            .1
            .is_empty()
        );
        assert!(
            histories(&with_losses(
                gone.clone(),
                std::slice::from_ref(&(0..3)),
                true
            ))
            .1
            .is_empty(),
            "written while the nodes were being killed"
        );
        assert_eq!(
            histories(&with_losses(gone, std::slice::from_ref(&(7..8)), true))
                .1
                .len(),
            1,
            "lost later than it was missed"
        );
        let stale = vec![
            record("k", set("a"), 1, 2, Answered::Ok),
            record("k", set("b"), 3, 4, Answered::Ok),
            record("k", Asked::Get, 6, 7, Answered::Value("a".into())),
        ];
        assert_eq!(
            histories(&with_losses(stale, std::slice::from_ref(&(5..6)), true))
                .1
                .len(),
            1
        );
    }
}
