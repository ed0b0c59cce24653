//! The history of some logs.

use serde::Serialize;

/// A record: its writer, and the writer's number of it.
pub type RecordName = (u32, u64);

/// An append of records in a row.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LogAppend {
    /// The log.
    pub log: usize,
    /// The writer; no other has its number.
    pub writer: u32,
    /// The number of its first record; numbers of a writer go up.
    pub first: u64,
    /// Its records.
    pub count: u32,
    /// The time of the request, in nanoseconds of the run.
    pub call: u64,
    /// The outcome.
    pub outcome: AppendOutcome,
}

/// The outcome of an append.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum AppendOutcome {
    /// Not known.
    Unknown,
    /// It was refused, and is not in the log.
    Refused,
    /// It was acknowledged.
    Acked {
        /// The position of its first record.
        position: u64,
        /// The time of the answer.
        returned: u64,
    },
}

/// The answer to a read.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub enum SlotSeen {
    /// A record.
    Record(RecordName),
    /// Bytes that nobody appends.
    Torn,
    /// Empty for ever.
    Junk,
    /// Given up.
    Trimmed,
    /// Not given out yet.
    PastTail,
}

/// An answered read.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LogRead {
    /// The log.
    pub log: usize,
    /// The position.
    pub position: u64,
    /// The answer.
    pub seen: SlotSeen,
    /// The time of the request.
    pub call: u64,
    /// The time of the answer.
    pub returned: u64,
}

/// An answered question for the tail.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LogTail {
    /// The log.
    pub log: usize,
    /// The tail.
    pub tail: u64,
    /// The time of the request.
    pub call: u64,
    /// The time of the answer.
    pub returned: u64,
}

/// A trim.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LogTrim {
    /// The log.
    pub log: usize,
    /// Positions below are given up.
    pub to: u64,
    /// The time of the request.
    pub call: u64,
    /// The time of the answer, if there was one.
    pub returned: Option<u64>,
}

/// All that was appended and read.
#[derive(Clone, Default, Debug, Serialize)]
pub struct LogHistory {
    /// The appends, in the order of their requests.
    pub appends: Vec<LogAppend>,
    /// The reads.
    pub reads: Vec<LogRead>,
    /// The tails.
    pub tails: Vec<LogTail>,
    /// The trims.
    pub trims: Vec<LogTrim>,
}

impl LogAppend {
    /// Its position and the time of its acknowledgement.
    pub fn acked(&self) -> Option<(u64, u64)> {
        match self.outcome {
            AppendOutcome::Acked { position, returned } => Some((position, returned)),
            AppendOutcome::Unknown | AppendOutcome::Refused => None,
        }
    }

    pub(super) fn has(&self, number: u64) -> bool {
        (self.first..self.first + u64::from(self.count)).contains(&number)
    }
}

/// The bytes of a record.
pub fn content(log: usize, (writer, number): RecordName) -> Vec<u8> {
    let mut bytes = format!("{log}:{writer}:{number}:").into_bytes();
    // One in fifty is larger than a packet.
    let len = match number % 50 {
        49 => 9000,
        n => 24 + n as usize * 9,
    };
    let filling = (0_u64..).map(|at| (number + u64::from(writer) + at) as u8);
    let rest = len.saturating_sub(bytes.len());
    bytes.extend(filling.take(rest));
    bytes
}

/// The record that these bytes are.
pub fn seen(log: usize, bytes: &[u8]) -> SlotSeen {
    let record = || {
        let mut words = bytes.splitn(4, |byte| *byte == b':');
        let mut number = || std::str::from_utf8(words.next()?).ok()?.parse::<u64>().ok();
        let (of, writer, number) = (number()?, number()?, number()?);
        let name = (u32::try_from(writer).ok()?, number);
        (of == log as u64 && bytes == content(log, name)).then_some(name)
    };
    record().map_or(SlotSeen::Torn, SlotSeen::Record)
}

impl LogHistory {
    /// As JSON lines.
    pub fn text(&self) -> String {
        fn lines<T: Serialize>(all: &[T]) -> String {
            let line = |one: &T| serde_json::to_string(one).unwrap_or_default() + "\n";
            all.iter().map(line).collect()
        }
        lines(&self.appends) + &lines(&self.reads) + &lines(&self.tails) + &lines(&self.trims)
    }
}
