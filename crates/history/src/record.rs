//! A history as a file: one JSON object a line, one line an operation.
//!
//! ```text
//! {"process":3,"op":"append","key":"k1","value":"abc","call":17,"return":25,"answer":{"int":9}}
//! ```
//!
//! `op` is get, set, setnx, del, incr (with `by`), append or getdel; set, setnx and append have a
//! `value`. A chunk of memory is a key, too, with the operations read, write, swap and add on its
//! [words](crate::chunk::WORDS). Times are whole numbers of one clock. `return` is null where nobody knows the outcome: the
//! operation may have taken effect at any time after `call`, or never. `answer` is "nil", "ok",
//! {"int":N}, {"value":TEXT} or {"cells":[N, ...]}. An operation that certainly was not done is left out.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};

use crate::chunk::{Cells, ChunkSeen, OnChunk};
use crate::content::Content;
use crate::search::{self, Call, Seen, Step, Verdict};

/// A request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
#[allow(missing_docs)] // the commands' own names
pub enum Asked {
    Get,
    Set {
        value: String,
    },
    SetNx {
        value: String,
    },
    Del,
    Incr {
        by: i64,
    },
    Append {
        value: String,
    },
    GetDel,
    #[serde(untagged)]
    Chunk(OnChunk),
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // the answers' own names
pub enum Answered {
    Nil,
    Ok,
    Int(i64),
    Value(String),
    Cells(Cells),
}

/// One operation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The client: one that has at most one operation under way.
    pub process: u32,
    /// On which key.
    pub key: String,
    /// The request.
    #[serde(flatten)]
    pub asked: Asked,
    /// The time of the request.
    pub call: u64,
    /// The time of the answer; `None` if the outcome is unknown.
    #[serde(rename = "return")]
    pub returned: Option<u64>,
    /// With what.
    pub answer: Option<Answered>,
}

impl Record {
    /// None if it is no operation of the key-value service.
    fn as_key_call(&self) -> Option<Call> {
        let content = |value: &String| Content::of(value.as_bytes());
        let step = match &self.asked {
            Asked::Get => Step::Get,
            Asked::Set { value } => Step::Set(content(value)),
            Asked::SetNx { value } => Step::SetIfAbsent(content(value)),
            Asked::Del => Step::Del,
            Asked::Incr { by } => Step::Incr(*by),
            Asked::Append { value } => Step::Append(content(value)),
            Asked::GetDel => Step::GetDel,
            Asked::Chunk(_) => return None,
        };
        let seen = match &self.answer {
            None => None,
            Some(Answered::Nil) => Some(Seen::Nil),
            Some(Answered::Ok) => Some(Seen::Ok),
            Some(Answered::Int(n)) => Some(Seen::Int(*n)),
            Some(Answered::Value(value)) => Some(Seen::Value(content(value))),
            Some(Answered::Cells(_)) => return None,
        };
        Some(Call::new(step, self.call, self.returned, seen))
    }

    /// None if it is no operation on a chunk of memory.
    fn as_chunk_call(&self) -> Option<Call<OnChunk>> {
        let Asked::Chunk(act) = self.asked else {
            return None;
        };
        let seen = match self.answer {
            None => None,
            Some(Answered::Ok) => Some(ChunkSeen::Ok),
            Some(Answered::Int(word)) => Some(ChunkSeen::Word(word as u64)),
            Some(Answered::Cells(cells)) => Some(ChunkSeen::Cells(cells)),
            Some(Answered::Nil | Answered::Value(_)) => return None,
        };
        Some(Call::new(act, self.call, self.returned, seen))
    }
}

/// The reason that a history cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file's own trouble.
    #[error("the history cannot be read: {0}")]
    Io(#[from] io::Error),
    /// A line that is none of a history.
    #[error("line {line} is no operation: {reason}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// The fault.
        reason: String,
    },
}

/// Reads a history.
pub fn read(from: impl BufRead) -> Result<Vec<Record>, ReadError> {
    let mut records = Vec::new();
    for (at, line) in from.lines().enumerate() {
        let (line, number) = (line?, at + 1);
        if line.trim().is_empty() {
            continue;
        }
        let wrong = |reason: String| ReadError::Line {
            line: number,
            reason,
        };
        let record: Record =
            serde_json::from_str(&line).map_err(|e| wrong(format!("{e}: {line}")))?;
        if record.returned.is_some_and(|end| end < record.call) {
            return Err(wrong("it returned before it was called".into()));
        }
        if record.returned.is_some() && record.answer.is_none() {
            return Err(wrong("it returned without an answer".into()));
        }
        records.push(record);
    }
    Ok(records)
}

/// Writes a history.
pub fn write(to: &mut impl Write, records: &[Record]) -> io::Result<()> {
    for record in records {
        serde_json::to_writer(&mut *to, record)?;
        to.write_all(b"\n")?;
    }
    to.flush()
}

/// The result of checking a history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Keys.
    pub keys: usize,
    /// Operations.
    pub operations: usize,
    /// Of these, such whose outcome nobody knows.
    pub unknown: usize,
    /// Keys without an order, and why.
    pub bad: Vec<(String, String)>,
    /// Keys that would have taken too long.
    pub undecided: Vec<String>,
}

/// Checks each key by itself, in at most so many steps.
pub fn check(records: &[Record], steps_max: usize) -> Checked {
    let mut keys: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
    for record in records {
        keys.entry(&record.key).or_default().push(record);
    }
    let mut checked = Checked {
        keys: keys.len(),
        operations: records.len(),
        unknown: records.iter().filter(|r| r.returned.is_none()).count(),
        ..Checked::default()
    };
    for (key, records) in keys {
        let keys: Option<Vec<_>> = records.iter().map(|r| r.as_key_call()).collect();
        let chunks: Option<Vec<_>> = records.iter().map(|r| r.as_chunk_call()).collect();
        let keys = keys.map(|calls| search::check(&calls, steps_max));
        match keys.or_else(|| Some(search::check(&chunks?, steps_max))) {
            Some(Verdict::Fine) => {}
            Some(Verdict::Undecided) => checked.undecided.push(key.to_owned()),
            None => {
                let text = "its operations and answers are not those of one service".to_owned();
                checked.bad.push((key.to_owned(), text));
            }
            Some(Verdict::Bad(stuck)) => {
                let record = records[stuck.call];
                let text = format!(
                    "of {} operations {} have an order; then no place is left for process {}'s {:?} at \
                     {}..{}, answered {:?}",
                    stuck.of,
                    stuck.placed,
                    record.process,
                    record.asked,
                    record.call,
                    record.returned.map_or("?".to_owned(), |t| t.to_string()),
                    record.answer
                );
                checked.bad.push((key.to_owned(), text));
            }
        }
    }
    checked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_reads_back() {
        let record = |asked, returned, answer| Record {
            process: 1,
            key: "k".into(),
            asked,
            call: 5,
            returned,
            answer,
        };
        let all = vec![
            record(Asked::Get, Some(6), Some(Answered::Value("v".into()))),
            record(Asked::SetNx { value: "x".into() }, None, None),
            record(Asked::Incr { by: -2 }, Some(9), Some(Answered::Int(-2))),
            record(Asked::Del, Some(9), Some(Answered::Nil)),
            record(
                Asked::Chunk(OnChunk::Read { from: 0, to: 1 }),
                Some(9),
                Some(Answered::Cells([u64::MAX, 1, 2, 0, 0, 0, 0, 0, 0])),
            ),
        ];
        let mut text = Vec::new();
        write(&mut text, &all).expect("memory takes it");
        assert_eq!(read(&text[..]).expect("it reads back"), all);
    }

    #[test]
    fn what_is_no_history_is_refused_with_its_line() {
        let fine = r#"{"process":1,"op":"get","key":"k","call":5,"return":6,"answer":"nil"}"#;
        for (bad, says) in [
            (
                r#"{"process":1,"op":"fly","key":"k","call":5,"return":6,"answer":"nil"}"#,
                "fly",
            ),
            (
                r#"{"process":1,"op":"get","key":"k","call":5,"return":4,"answer":"nil"}"#,
                "before",
            ),
            (
                r#"{"process":1,"op":"get","key":"k","call":5,"return":6,"answer":null}"#,
                "without",
            ),
            ("nonsense", "expected"),
        ] {
            let error = read(format!("{fine}\n{bad}\n").as_bytes()).expect_err(bad);
            let text = error.to_string();
            assert!(text.contains("line 2") && text.contains(says), "{text}");
        }
    }
}
