//! The table of client requests (GROUP rule 18): part of the stream, filled in prefix order, bounded.
//!
//! A table is a function of the deltas up to a prefix and of nothing else, so every member that holds
//! the same prefix holds the same table. What it forgets, it forgets by that rule too.

use std::collections::BTreeMap;

use bytes::Bytes;
use staves_model::{ClientId, mutant::Mutant, mutant::planted};
use staves_wire::group::{Delta, DoneRequest, RequestId};

/// Clients that one bucket remembers.
pub const CLIENTS_MAX: usize = 1024;
/// Requests of one client that one bucket remembers. A client keeps fewer than this unanswered.
pub const REQUESTS_PER_CLIENT_MAX: usize = 4096;

/// Bytes of answers that one bucket remembers. Clients raise their floors long before; one that never
/// does loses its oldest answers.
pub const ANSWER_BYTES_MAX: usize = 8 << 20;

/// What the table knows of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Recall {
    /// Never seen: do it.
    New,
    /// Done by a delta that is not stable yet: answer once it is.
    Waiting {
        /// The delta's seq.
        seq: u64,
        /// The answer to give then.
        answer: Bytes,
    },
    /// Done: answer again, do not do it again.
    Done {
        /// The answer that was given.
        answer: Bytes,
    },
    /// Its client said that it had the answer, or the table had no room to remember: the outcome is not known here.
    Forgotten,
}

#[derive(Clone, Default)]
struct Client {
    floor: u64,
    last_seq: u64,
    done: BTreeMap<u64, (u64, Bytes)>,
}

/// The requests done by the deltas of one stream, up to its prefix.
#[derive(Clone, Default)]
pub struct RequestTable {
    clients: BTreeMap<ClientId, Client>,
    answer_bytes: usize,
    forgot: bool,
}

impl RequestTable {
    /// Takes in the next delta of the stream.
    pub fn record(&mut self, delta: &Delta) {
        if let Some(request) = delta.request {
            self.insert(request, delta.label.seq, delta.answer.clone());
        }
    }

    fn insert(&mut self, request: RequestId, seq: u64, answer: Bytes) {
        if !self.clients.contains_key(&request.client) && self.clients.len() >= CLIENTS_MAX {
            self.forget_oldest();
        }
        let client = self.clients.entry(request.client).or_default();
        client.last_seq = seq;
        while client.floor < request.floor
            && client
                .done
                .first_key_value()
                .is_some_and(|(n, _)| *n < request.floor)
        {
            let released = client.done.pop_first();
            self.answer_bytes -= released.map_or(0, |(_, (_, answer))| answer.len());
        }
        client.floor = client.floor.max(request.floor);
        self.answer_bytes += answer.len();
        if let Some((_, before)) = client.done.insert(request.number, (seq, answer)) {
            self.answer_bytes -= before.len();
        }
        let over = |client: &Client, bytes: usize| {
            client.done.len() > REQUESTS_PER_CLIENT_MAX
                || (bytes > ANSWER_BYTES_MAX && client.done.len() > 1)
        };
        while over(client, self.answer_bytes) {
            let forgotten = client.done.pop_first();
            self.answer_bytes -= forgotten.map_or(0, |(_, (_, answer))| answer.len());
            self.forgot = true;
        }
    }

    // The client whose last request is the longest ago: the same one at every member.
    fn forget_oldest(&mut self) {
        let oldest = self
            .clients
            .iter()
            .min_by_key(|(_, c)| c.last_seq)
            .map(|(id, _)| *id);
        if let Some(id) = oldest {
            let forgotten = self.clients.remove(&id).unwrap_or_default();
            let answers = forgotten.done.values().map(|(_, answer)| answer.len());
            self.answer_bytes -= answers.sum::<usize>();
            self.forgot = true;
        }
    }

    /// What is known of `request`, when everything up to `stable` may be answered. `retry`: the client
    /// has sent it before, so that not knowing it is no proof that it was never done.
    pub fn recall(&self, request: &RequestId, stable: u64, retry: bool) -> Recall {
        let Some(client) = self.clients.get(&request.client) else {
            return if retry && self.forgot {
                Recall::Forgotten
            } else {
                Recall::New
            };
        };
        match client.done.get(&request.number) {
            Some((seq, answer)) if *seq <= stable || planted(Mutant::RetryAnsweredBeforeStable) => {
                Recall::Done {
                    answer: answer.clone(),
                }
            }
            Some((seq, answer)) => Recall::Waiting {
                seq: *seq,
                answer: answer.clone(),
            },
            None if request.number < client.floor || (retry && self.forgot) => Recall::Forgotten,
            None => Recall::New,
        }
    }

    /// Everything, for a message.
    pub fn dump(&self) -> Vec<DoneRequest> {
        let each = |(id, client): (&ClientId, &Client)| {
            let (id, floor) = (*id, client.floor);
            client
                .done
                .iter()
                .map(move |(number, (seq, answer))| DoneRequest {
                    request: RequestId {
                        client: id,
                        number: *number,
                        floor,
                    },
                    seq: *seq,
                    answer: answer.clone(),
                })
                .collect::<Vec<_>>()
        };
        self.clients.iter().flat_map(each).collect()
    }

    /// Whether anything was ever let go that its client had not released.
    pub fn forgot(&self) -> bool {
        self.forgot
    }

    /// A table out of a message.
    pub fn load(requests: &[DoneRequest], forgot: bool) -> RequestTable {
        let mut table = RequestTable {
            forgot,
            ..RequestTable::default()
        };
        let mut by_seq: Vec<&DoneRequest> = requests.iter().collect();
        by_seq.sort_by_key(|r| r.seq);
        for r in by_seq {
            table.insert(r.request, r.seq, r.answer.clone());
        }
        table
    }

    /// How many requests are remembered.
    pub fn len(&self) -> usize {
        self.clients.values().map(|c| c.done.len()).sum()
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use staves_model::{Epoch, Label};

    fn delta(client: u64, number: u64, floor: u64, seq: u64) -> Delta {
        Delta {
            label: Label {
                epoch: Epoch(1),
                seq,
            },
            request: Some(RequestId {
                client: ClientId(client),
                number,
                floor,
            }),
            answer: Bytes::from(seq.to_string()),
            runs: vec![],
            bytes: Bytes::new(),
        }
    }

    fn id(client: u64, number: u64) -> RequestId {
        RequestId {
            client: ClientId(client),
            number,
            floor: 0,
        }
    }

    #[test]
    fn waits_until_stable_then_answers_again() {
        let mut t = RequestTable::default();
        t.record(&delta(1, 7, 0, 3));
        assert!(matches!(
            t.recall(&id(1, 7), 2, true),
            Recall::Waiting { seq: 3, .. }
        ));
        assert_eq!(
            t.recall(&id(1, 7), 3, true),
            Recall::Done {
                answer: Bytes::from("3")
            }
        );
        assert_eq!(t.recall(&id(1, 8), 3, true), Recall::New);
        assert_eq!(t.recall(&id(2, 7), 3, true), Recall::New);
    }

    #[test]
    fn the_floor_releases_and_what_is_below_it_is_not_done_again() {
        let mut t = RequestTable::default();
        t.record(&delta(1, 1, 0, 1));
        t.record(&delta(1, 2, 2, 2));
        assert_eq!(t.len(), 1);
        assert_eq!(t.recall(&id(1, 1), 9, true), Recall::Forgotten);
    }

    #[test]
    fn it_is_bounded_and_says_when_it_forgot() {
        let mut t = RequestTable::default();
        for c in 0..=CLIENTS_MAX as u64 {
            t.record(&delta(c, 1, 0, c + 1));
        }
        assert_eq!(t.len(), CLIENTS_MAX);
        assert_eq!(t.recall(&id(0, 1), 9999, true), Recall::Forgotten);
        assert_eq!(
            t.recall(&id(0, 2), 9999, false),
            Recall::New,
            "a first attempt is no retry"
        );
    }

    #[test]
    fn answers_are_bounded_in_bytes() {
        let mut t = RequestTable::default();
        let large = Bytes::from(vec![0; ANSWER_BYTES_MAX / 4]);
        for n in 1..=6 {
            t.record(&Delta {
                answer: large.clone(),
                ..delta(1, n, 0, n)
            });
        }
        assert_eq!(t.len(), 4);
        assert_eq!(t.recall(&id(1, 1), 9, true), Recall::Forgotten);
        assert!(matches!(t.recall(&id(1, 6), 9, true), Recall::Done { .. }));
        t.record(&delta(1, 7, 7, 7));
        assert_eq!(
            (t.len(), t.answer_bytes),
            (1, 1),
            "what is released counts no more"
        );
    }

    #[test]
    fn a_dump_loads_as_the_same_table() {
        let mut t = RequestTable::default();
        for (c, n, f, s) in [(1, 1, 0, 1), (2, 5, 3, 2), (1, 2, 1, 3), (2, 4, 3, 4)] {
            t.record(&delta(c, n, f, s));
        }
        let again = RequestTable::load(&t.dump(), t.forgot());
        assert_eq!(again.dump(), t.dump());
    }
}
