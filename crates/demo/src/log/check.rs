//! Records of the demo's log that can be checked by themselves, and the check of a log against what was acknowledged.
//!
//! Each record has the number of its client and its own number among that client's: every acknowledged one is at its position, none is at two
//! positions, and the positions of a client's records rise in the order in which it appended them.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;

/// Bytes of a record.
pub const RECORD_BYTES: usize = 256;
/// Wrong records that are reported one by one.
const EXAMPLES: usize = 5;

/// A record's client, and its number among that client's.
pub type EventName = (u32, u64);

/// The content of a position, as a reader found it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventFound {
    /// A record that is whole.
    Record(EventName),
    /// Nothing, for ever.
    Empty,
    /// Bytes that no client appended, or a position that was trimmed.
    Wrong,
}

/// An append that was acknowledged.
#[derive(Clone, Copy, Debug)]
pub struct AckedEvents {
    /// The position of its first record.
    pub position: u64,
    /// The number of its first record.
    pub first: u64,
    /// Its records, at positions in a row.
    pub count: u64,
}

/// The appends of one client, in its order.
#[derive(Clone, Debug, Default)]
pub struct ClientEvents {
    /// The acknowledged appends.
    pub acked: Vec<AckedEvents>,
    /// Appends that were cut off or answered with an error: their records may be in the log.
    pub unknown: u64,
    /// Records that were sent.
    pub sent: u64,
}

/// The findings of the check.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LogFindings {
    /// Appends that were acknowledged.
    pub appends: u64,
    /// Their records.
    pub records: u64,
    /// Appends that were cut off or answered with an error.
    pub unknown: u64,
    /// Positions that were read.
    pub positions: u64,
    /// Acknowledged records that are not at their positions.
    pub lost: u64,
    /// Records at a second position.
    pub twice: u64,
    /// Acknowledged records below an earlier one of the same client.
    pub unordered: u64,
    /// Positions with bytes that no client appended.
    pub foreign: u64,
    /// Positions at which another reader had found something else.
    pub differing: u64,
    /// The first of them all.
    #[serde(skip)]
    pub examples: Vec<String>,
}

impl LogFindings {
    /// Everything that is wrong.
    pub fn wrong(&self) -> u64 {
        self.lost + self.twice + self.unordered + self.foreign + self.differing
    }

    fn example(&mut self, text: String) {
        if self.examples.len() < EXAMPLES {
            self.examples.push(text);
        }
    }

    /// Compares with what another reader found, from position 0 on. One of them may have read further, to positions without a record: a new sequencer
    /// may leave some.
    pub fn compare(&mut self, who: &str, found: &[EventFound], theirs: &[EventFound]) {
        let at = |all: &[EventFound], position| all.get(position).copied();
        for position in 0..found.len().max(theirs.len()) {
            let ours = at(found, position).unwrap_or(EventFound::Empty);
            let theirs = at(theirs, position).unwrap_or(EventFound::Empty);
            if ours != theirs {
                self.differing += 1;
                self.example(format!(
                    "position {position}: {ours:?}, and {theirs:?} by {who}"
                ));
            }
        }
    }
}

/// Checks what was read, from position 0 on, against the appends of all clients.
pub fn check(clients: &[ClientEvents], found: &[EventFound]) -> LogFindings {
    let mut findings = LogFindings {
        appends: clients.iter().map(|client| client.acked.len() as u64).sum(),
        unknown: clients.iter().map(|client| client.unknown).sum(),
        positions: found.len() as u64,
        ..LogFindings::default()
    };
    let mut places: BTreeMap<EventName, u64> = BTreeMap::new();
    for (position, event) in (0..).zip(found) {
        match event {
            EventFound::Empty => {}
            EventFound::Record(name) if is_sent(clients, *name) => {
                if let Some(first) = places.insert(*name, position) {
                    findings.twice += 1;
                    findings.example(format!("{} is at {first} and at {position}", words(*name)));
                }
            }
            other => {
                findings.foreign += 1;
                findings.example(format!("position {position}: {other:?}"));
            }
        }
    }
    for (number, client) in (0..).zip(clients) {
        check_client(&mut findings, (number, client), found);
    }
    findings
}

fn check_client(
    findings: &mut LogFindings,
    (number, client): (u32, &ClientEvents),
    found: &[EventFound],
) {
    let mut lowest = 0;
    for append in &client.acked {
        for at in 0..append.count {
            let (name, position) = ((number, append.first + at), append.position + at);
            findings.records += 1;
            if found.get(position as usize) != Some(&EventFound::Record(name)) {
                findings.lost += 1;
                let there = found.get(position as usize);
                findings.example(format!(
                    "{} was acknowledged at {position}, where {there:?} is",
                    words(name)
                ));
            }
            if position < lowest {
                findings.unordered += 1;
                findings.example(format!(
                    "{} is at {position}, below one that its client appended before",
                    words(name)
                ));
            }
            lowest = lowest.max(position + 1);
        }
    }
}

fn is_sent(clients: &[ClientEvents], (client, number): EventName) -> bool {
    let client = clients.get(client as usize);
    client.is_some_and(|client| number < client.sent)
}

fn words((client, number): EventName) -> String {
    format!("record {number} of client {client}")
}

/// The bytes of a record: its name, then numbers that follow from it.
pub fn event((client, number): EventName) -> Bytes {
    let mut bytes = BytesMut::with_capacity(RECORD_BYTES);
    bytes.put_u64_le(client.into());
    bytes.put_u64_le(number);
    let mut word = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(client);
    while bytes.len() < RECORD_BYTES {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        bytes.put_u64_le(word | 1);
    }
    bytes.freeze()
}

/// The record that these bytes are.
pub fn found(bytes: &Bytes) -> EventFound {
    let word = |at: usize| {
        let eight = bytes.get(at..at + 8).and_then(|eight| eight.first_chunk());
        eight.map(|eight| u64::from_le_bytes(*eight))
    };
    let name = word(0).zip(word(8));
    let name = name.and_then(|(client, number)| Some((u32::try_from(client).ok()?, number)));
    match name {
        Some(name) if event(name) == *bytes => EventFound::Record(name),
        _ => EventFound::Wrong,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two clients: the first has records 0 to 2 at 0, 2 and 3, the second record 0 at 1, and an append that was cut off.
    fn clients() -> Vec<ClientEvents> {
        let acked = |position, first, count| AckedEvents {
            position,
            first,
            count,
        };
        vec![
            ClientEvents {
                acked: vec![acked(0, 0, 1), acked(2, 1, 2)],
                unknown: 0,
                sent: 3,
            },
            ClientEvents {
                acked: vec![acked(1, 0, 1)],
                unknown: 1,
                sent: 2,
            },
        ]
    }

    fn log() -> Vec<EventFound> {
        let names = [(0, 0), (1, 0), (0, 1), (0, 2)];
        names.map(EventFound::Record).to_vec()
    }

    #[test]
    fn records_are_told_apart_and_torn_ones_are_known() {
        assert_eq!(event((3, 9)).len(), RECORD_BYTES);
        assert_eq!(found(&event((3, 9))), EventFound::Record((3, 9)));
        assert_ne!(event((3, 9)), event((9, 3)));
        let mut torn = BytesMut::from(&event((3, 9))[..]);
        torn[RECORD_BYTES - 1] ^= 1;
        assert_eq!(found(&torn.freeze()), EventFound::Wrong);
        assert_eq!(found(&Bytes::from_static(b"short")), EventFound::Wrong);
    }

    #[test]
    fn a_log_as_it_must_be_is_fine_with_what_was_cut_off_and_without() {
        let findings = check(&clients(), &log());
        assert_eq!(
            (findings.wrong(), findings.records, findings.appends),
            (0, 4, 3)
        );
        let mut longer = log();
        longer.extend([EventFound::Empty, EventFound::Record((1, 1))]);
        assert_eq!(check(&clients(), &longer).wrong(), 0);
    }

    #[test]
    fn every_kind_of_wrong_is_found() {
        let mut lost = log();
        lost[2] = EventFound::Empty;
        assert_eq!(check(&clients(), &lost).lost, 1);
        assert_eq!(
            check(&clients(), &log()[..3]).lost,
            1,
            "the last is cut off"
        );
        let mut twice = log();
        twice.push(EventFound::Record((0, 1)));
        assert_eq!(check(&clients(), &twice).twice, 1);
        let mut foreign = log();
        foreign.extend([EventFound::Record((1, 2)), EventFound::Wrong]);
        assert_eq!(check(&clients(), &foreign).foreign, 2, "it was never sent");
        let mut swapped = clients();
        swapped[0].acked.swap(0, 1);
        let findings = check(&swapped, &log());
        assert_eq!((findings.unordered, findings.lost), (1, 0));
        let mut findings = check(&clients(), &log());
        findings.compare("the follower", &log(), &log());
        assert_eq!(findings.wrong(), 0);
        findings.compare("the follower", &log(), &lost[..3]);
        assert_eq!(findings.differing, 2);
        assert!(findings.examples[0].contains("position 2"), "{findings:?}");
        let mut longer = log();
        longer.push(EventFound::Empty);
        findings.compare("the follower", &log(), &longer);
        assert_eq!(findings.differing, 2, "what is empty is no record");
    }
}
