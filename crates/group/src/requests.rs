//! The table of client requests (GROUP rule 18): part of the stream, filled in prefix order, bounded.
//!
//! A table is a function of the deltas up to a prefix and of nothing else, so every member that holds
//! the same prefix holds the same table. What it forgets, it forgets by that rule too, but where the tables of a node
//! together have reached their [bound](crate::remembered).
//!
//! **What is forgotten is never done again (I9).** A client's numbers grow, and they are drawn from a
//! clock: a later client's lie above an earlier one's. So one number is enough to say what was
//! forgotten: the highest that any forgotten client had used. Whoever is not known and asks with a
//! number up to there may have been served already, first try or not, and is told that the outcome is
//! not known; whoever asks with a higher one never was. That is safe whatever the clocks say; a clock
//! that is behind only makes its client be refused until it has drawn a higher number.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use bytes::Bytes;
use staves_model::{ClientId, mutant::Mutant, mutant::planted};
use staves_wire::group::{Delta, DoneRequest, RequestId};

use crate::remembered::RememberedBytes;

/// Clients that one bucket remembers.
pub const CLIENTS_MAX: usize = 1024;
/// Requests of one client that one bucket remembers. A client keeps fewer than this unanswered.
pub const REQUESTS_PER_CLIENT_MAX: usize = 4096;

/// Requests of all clients that one bucket remembers: a takeover carries them all. Whoever has most of them loses its oldest first.
pub const REQUESTS_MAX: usize = REQUESTS_PER_CLIENT_MAX;

/// Bytes that a request takes in the table beside its answer.
const REQUEST_BYTES: usize = 128;
/// Bytes that a client takes.
const CLIENT_BYTES: usize = 128;
/// Bytes that the requests of a client take together beside those of each: what is free in the leaves of their tree.
const LEAF_BYTES: usize = 512;
/// The part of a client's requests that goes at once where there are too many: to look for the client takes time.
const FORGOTTEN_AT_ONCE: usize = 8;

/// Bytes of answers that one bucket remembers. Clients raise their floors long before; where they do
/// not, the oldest answers go first, whoever's they are. A client's newest stays as long as it can.
pub const ANSWER_BYTES_MAX: usize = 8 << 20;

/// The state of a request in the table.
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

/// Highest number of a request. Whoever draws a higher one is not served, so that nobody can use up all
/// numbers for everybody.
pub const NUMBER_MAX: u64 = 1 << 62;

/// No client: its entry in a message says how far what is forgotten reaches.
const NOBODY: ClientId = ClientId(0);

#[derive(Clone, Default)]
struct ClientRequests {
    /// Requests below it that are not in `done` have been answered, or are not known any more.
    floor: u64,
    last_seq: u64,
    done: BTreeMap<u64, (u64, Bytes)>,
    /// Bytes of the answers in `done`.
    answer_bytes: usize,
}

impl ClientRequests {
    /// Forgets the request with the lowest number, and all below it. The bytes of its answer.
    fn forget_first(&mut self) -> usize {
        let Some((number, (_, answer))) = self.done.pop_first() else {
            return 0;
        };
        self.floor = self.floor.max(number.saturating_add(1));
        self.answer_bytes -= answer.len();
        answer.len()
    }

    /// The seq of the oldest request that may be forgotten for the sake of its bytes, or of those behind
    /// it: all but the newest.
    fn oldest_to_spare(&self) -> Option<u64> {
        let newest = self.done.last_key_value()?.1.1.len();
        let (_, (seq, _)) = self.done.first_key_value()?;
        (self.answer_bytes > newest).then_some(*seq)
    }
}

/// The requests done by the deltas of one stream, up to its prefix.
#[derive(Clone, Default)]
pub struct RequestTable {
    clients: BTreeMap<ClientId, ClientRequests>,
    answer_bytes: usize,
    /// Requests of all clients.
    count: usize,
    /// The number of clients that have any.
    with_requests: usize,
    remembered: RememberedBytes,
    /// The highest number that a forgotten client had used.
    forgotten: u64,
}

impl RequestTable {
    /// Takes in the next delta of the stream.
    pub fn record(&mut self, delta: &Delta) {
        self.record_request(delta.request, delta.label.seq, &delta.answer);
    }

    /// The same by its parts.
    pub fn record_request(&mut self, request: Option<RequestId>, seq: u64, answer: &Bytes) {
        if let Some(request) = request {
            self.insert(request, seq, answer.clone());
        }
    }

    fn insert(&mut self, request: RequestId, seq: u64, answer: Bytes) {
        if !self.clients.contains_key(&request.client) && self.clients.len() >= CLIENTS_MAX {
            self.forget_oldest();
        }
        let (client, forgotten) = (request.client, self.forgotten);
        let client = self
            .clients
            .entry(client)
            .or_insert_with(|| ClientRequests {
                // It may be one of those that were forgotten.
                floor: forgotten.saturating_add(1),
                ..ClientRequests::default()
            });
        client.last_seq = seq;
        // A floor above the request's own number would purge answers that the client has not acknowledged.
        client.floor = client.floor.max(request.floor.min(request.number));
        let (bytes_before, count_before) = (client.answer_bytes, client.done.len());
        while client
            .done
            .first_key_value()
            .is_some_and(|(n, _)| *n < client.floor)
        {
            client.forget_first();
        }
        client.answer_bytes += answer.len();
        if let Some((_, before)) = client.done.insert(request.number, (seq, answer)) {
            client.answer_bytes -= before.len();
        }
        while client.done.len() > REQUESTS_PER_CLIENT_MAX {
            client.forget_first();
        }
        self.answer_bytes = self.answer_bytes - bytes_before + client.answer_bytes;
        self.count = self.count - count_before + client.done.len();
        self.with_requests += usize::from(count_before == 0);
        while self.answer_bytes > ANSWER_BYTES_MAX && self.forget_oldest_answer() {}
        self.remembered.set(self.bytes());
        let share = self.remembered.share();
        while (self.count > REQUESTS_MAX || self.bytes() > share) && self.forget_of_the_largest() {
            self.remembered.set(self.bytes());
        }
    }

    /// About the bytes that it takes in memory.
    pub fn bytes(&self) -> usize {
        let clients = self.clients.len() * CLIENT_BYTES + self.with_requests * LEAF_BYTES;
        self.answer_bytes + self.count * REQUEST_BYTES + clients
    }

    /// Makes room for requests: of the client that takes most, the oldest go. Where all have but one, the client who was here longest
    /// ago goes with it. So who never says which answers it has loses its own. False if there is nothing to forget.
    fn forget_of_the_largest(&mut self) -> bool {
        let weight = |c: &ClientRequests| c.answer_bytes + c.done.len() * REQUEST_BYTES;
        let several = self.clients.values_mut().filter(|c| c.done.len() > 1);
        let largest = several.max_by_key(|c| (weight(c), Reverse(c.last_seq)));
        let Some(client) = largest else {
            let some = !self.clients.is_empty();
            self.forget_oldest();
            return some;
        };
        for _ in 0..(client.done.len() / FORGOTTEN_AT_ONCE).max(1) {
            self.answer_bytes -= client.forget_first();
            self.count -= 1;
        }
        true
    }

    /// Makes room for answers: one that is the oldest, of whichever client. If all have but their newest,
    /// the client who was here longest ago goes with it, but for the last. Looks at every client: only
    /// tables of clients that do not raise their floors come here.
    fn forget_oldest_answer(&mut self) -> bool {
        let clients = self.clients.values_mut();
        let oldest = clients
            .filter_map(|client| Some((client.oldest_to_spare()?, client)))
            .min_by_key(|(seq, _)| *seq);
        if let Some((_, client)) = oldest {
            self.answer_bytes -= client.forget_first();
            self.count -= 1;
            return true;
        }
        if self.clients.len() > 1 {
            self.forget_oldest();
            return true;
        }
        false
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
            self.answer_bytes -= forgotten.answer_bytes;
            self.count -= forgotten.done.len();
            self.with_requests -= usize::from(!forgotten.done.is_empty());
            let highest = forgotten.done.last_key_value().map_or(0, |(n, _)| *n);
            let reaches = highest
                .max(forgotten.floor.saturating_sub(1))
                .min(NUMBER_MAX);
            self.forgotten = self.forgotten.max(reaches);
        }
    }

    /// The state of `request`, when everything up to `stable` may be answered. Whether it says that
    /// it is a first try counts for nothing: one that was late may come after its retry.
    pub fn recall(&self, request: &RequestId, stable: u64) -> Recall {
        let unless_below = |floor: u64| match (floor..=NUMBER_MAX).contains(&request.number) {
            true => Recall::New,
            false => Recall::Forgotten,
        };
        let Some(client) = self.clients.get(&request.client) else {
            return unless_below(self.forgotten.saturating_add(1));
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
            None => unless_below(client.floor),
        }
    }

    /// Everything, for a message.
    pub fn dump(&self) -> Vec<DoneRequest> {
        let each = |(id, client): (&ClientId, &ClientRequests)| {
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
        let reaches = (self.forgotten > 0).then_some(DoneRequest {
            request: RequestId {
                client: NOBODY,
                number: self.forgotten,
                floor: 0,
            },
            seq: 0,
            answer: Bytes::new(),
        });
        let known = self.clients.iter().flat_map(each);
        reaches.into_iter().chain(known).collect()
    }

    /// The highest number that a forgotten client had used: a client that is not known here draws a
    /// higher one.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// A table out of a message.
    pub fn load(requests: &[DoneRequest]) -> RequestTable {
        let mut table = RequestTable::default();
        let mut by_seq: Vec<&DoneRequest> = requests.iter().collect();
        by_seq.sort_by_key(|r| r.seq);
        let mut reaches = 0;
        for r in by_seq {
            if r.request.client == NOBODY {
                reaches = reaches.max(r.request.number);
            } else {
                table.insert(r.request, r.seq, r.answer.clone());
            }
        }
        // Last, so that clients which were known before the others were forgotten keep their floors.
        table.forgotten = table.forgotten.max(reaches);
        table
    }

    /// The number of requests that are remembered.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether nothing is remembered.
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

    /// A floor that a client cannot mean must not shut the others out once it is forgotten.
    #[test]
    fn a_floor_counts_no_further_than_its_number() {
        let mut t = RequestTable::default();
        t.record(&delta(1, 7, u64::MAX, 1));
        for client in 2..=CLIENTS_MAX as u64 + 1 {
            t.record(&delta(client, 5, 5, client));
        }
        assert_eq!(t.recall(&id(9_999_999, 7), u64::MAX), Recall::Forgotten);
        assert_eq!(t.recall(&id(9_999_999, 8), u64::MAX), Recall::New);
    }

    #[test]
    fn waits_until_stable_then_answers_again() {
        let mut t = RequestTable::default();
        t.record(&delta(1, 7, 0, 3));
        assert!(matches!(
            t.recall(&id(1, 7), 2),
            Recall::Waiting { seq: 3, .. }
        ));
        assert_eq!(
            t.recall(&id(1, 7), 3),
            Recall::Done {
                answer: Bytes::from("3")
            }
        );
        assert_eq!(t.recall(&id(1, 8), 3), Recall::New);
        assert_eq!(t.recall(&id(2, 7), 3), Recall::New);
    }

    #[test]
    fn the_floor_releases_and_what_is_below_it_is_not_done_again() {
        let mut t = RequestTable::default();
        t.record(&delta(1, 1, 0, 1));
        t.record(&delta(1, 2, 2, 2));
        assert_eq!(t.len(), 1);
        assert_eq!(t.recall(&id(1, 1), 9), Recall::Forgotten);
    }

    #[test]
    fn clients_are_bounded() {
        let mut t = RequestTable::default();
        for c in 0..=CLIENTS_MAX as u64 {
            t.record(&delta(c, 1, 0, c + 1));
        }
        assert_eq!(t.len(), CLIENTS_MAX);
        assert_eq!(t.recall(&id(0, 1), 9999), Recall::Forgotten);
        assert_eq!(
            t.recall(&id(0, 2), 9999),
            Recall::New,
            "a first attempt is no retry"
        );
    }

    /// I9: whatever is late, first try or retry, and however many clients came in between.
    #[test]
    fn what_a_forgotten_client_did_is_not_done_again() {
        let mut t = RequestTable::default();
        t.record(&delta(1, 1000, 990, 1));
        for c in 2..=CLIENTS_MAX as u64 + 1 {
            t.record(&delta(c, 2000 + c, 0, c));
        }
        assert!(!t.clients.contains_key(&ClientId(1)), "it had to go");
        assert_eq!(t.forgotten(), 1000);
        for number in [991, 1000] {
            assert_eq!(t.recall(&id(1, number), 9999), Recall::Forgotten);
        }
        assert_eq!(
            t.recall(&id(1, 1001), 9999),
            Recall::New,
            "it draws a higher one"
        );
        assert_eq!(
            t.recall(&id(5000, 3000), 9999),
            Recall::New,
            "so does a new client"
        );

        // It comes back: what it did before is not known by that either.
        t.record(&delta(1, 4000, 990, 5000));
        assert_eq!(t.recall(&id(1, 995), 9999), Recall::Forgotten);
        assert_eq!(t.recall(&id(6, NUMBER_MAX + 1), 9999), Recall::Forgotten);
        // All of it holds at whoever takes the table over.
        let t = RequestTable::load(&t.dump());
        assert_eq!(t.recall(&id(1, 995), 9999), Recall::Forgotten);
        assert_eq!(t.recall(&id(2, 2001), 9999), Recall::Forgotten);
        assert_eq!(
            t.recall(&id(3, 2004), 9999),
            Recall::New,
            "one that is known"
        );
    }

    #[test]
    fn a_client_that_never_raises_its_floor_is_bounded_and_loses_its_oldest() {
        let mut t = RequestTable::default();
        for n in 1..=REQUESTS_PER_CLIENT_MAX as u64 + 2 {
            t.record(&delta(1, n, 0, n));
        }
        assert_eq!(t.len(), REQUESTS_PER_CLIENT_MAX);
        assert_eq!(t.recall(&id(1, 2), 9999), Recall::Forgotten);
        assert!(matches!(t.recall(&id(1, 3), 9999), Recall::Done { .. }));
    }

    /// A takeover carries the whole table. Regression: a client that never said which answers it had, under many ids, filled the
    /// tables of a node with millions of requests; with them, groups took minutes to change their epoch.
    #[test]
    fn requests_are_bounded_and_who_has_most_loses_its_oldest() {
        let mut t = RequestTable::default();
        let mut seq = 0;
        let mut record = |t: &mut RequestTable, client, number| {
            seq += 1;
            t.record(&delta(client, number, 0, seq));
        };
        record(&mut t, 1, 1000);
        for number in 1001..=4000 {
            record(&mut t, 2, number);
        }
        for number in 4001..=14_000 {
            record(&mut t, 3 + number % 10, number);
        }
        assert!(t.len() <= REQUESTS_MAX, "{}", t.len());
        let known =
            |client, number| matches!(t.recall(&id(client, number), 99_999), Recall::Done { .. });
        assert!(known(1, 1000), "its only one, however long ago");
        assert!(!known(2, 1001) && t.recall(&id(2, 1001), 99_999) == Recall::Forgotten);
        assert!((13_991..=14_000).all(|number| known(3 + number % 10, number)));
        let each: usize = t.clients.values().map(|c| c.done.len()).sum();
        let bytes: usize = t.clients.values().map(|c| c.answer_bytes).sum();
        assert_eq!((t.len(), t.answer_bytes), (each, bytes));
        let with_requests = t.clients.values().filter(|c| !c.done.is_empty());
        assert_eq!(t.with_requests, with_requests.count());
        let again = RequestTable::load(&t.dump());
        assert!(again.dump() == t.dump());
    }

    /// Regression: a client with one request counted as 128 bytes, and took 700: a node whose clients came, wrote once to each of many
    /// buckets and went took five times what it counted.
    #[test]
    fn clients_of_one_request_count_as_what_they_take() {
        let first = RememberedBytes::bounded(1 << 20);
        let mut table = RequestTable {
            remembered: first.clone(),
            ..RequestTable::default()
        };
        for client in 1..=1000 {
            table.record(&delta(client, client, 0, client));
        }
        assert!(table.bytes() >= 1000 * 700, "{}", table.bytes());
        assert_eq!((table.len(), table.with_requests), (1000, 1000));
        let small = RememberedBytes::bounded(1 << 16);
        let mut table = RequestTable {
            remembered: small.clone(),
            ..RequestTable::default()
        };
        for client in 1..=1000 {
            table.record(&delta(client, client, 0, client));
        }
        assert!(table.bytes() <= 1 << 16, "{}", table.bytes());
        assert!(table.clients.len() <= (1 << 16) / 700);
        // Those that have had their answers, and stay.
        for number in 2000..4000 {
            let number = number * 2;
            table.record(&delta(number % 1000, number, number, number));
        }
        assert!(table.bytes() <= 1 << 16, "{}", table.bytes());
        drop(table);
        assert_eq!(small.of_all(), (0, 0));
    }

    /// However many buckets a node has, and however large what their answers hold.
    #[test]
    fn the_tables_of_a_node_are_bounded_together() {
        const MAX: usize = 1 << 20;
        let first = RememberedBytes::bounded(MAX);
        let table = || RequestTable {
            remembered: first.clone(),
            ..RequestTable::default()
        };
        let mut tables: Vec<RequestTable> = (0..20).map(|_| table()).collect();
        for seq in 1..=2000 {
            for t in &mut tables {
                t.record(&delta(seq % 7, seq, 0, seq));
            }
        }
        let (bytes, count) = first.of_all();
        assert!(bytes <= 2 * MAX && count == 20, "{bytes} of {count}");
        let large = Bytes::from(vec![0; MAX / 2]);
        for t in &mut tables {
            let answer = large.clone();
            t.record(&Delta {
                answer,
                ..delta(1, 5000, 0, 5000)
            });
            let known = t.recall(&id(1, 5000), 9999);
            assert!(matches!(known, Recall::Done { .. } | Recall::Forgotten));
        }
        assert!(first.of_all().0 <= 2 * MAX, "{:?}", first.of_all());
        tables.clear();
        assert_eq!(first.of_all(), (0, 0));
    }

    #[test]
    fn where_all_have_but_one_the_longest_silent_client_goes() {
        let mut t = RequestTable::default();
        for n in 1..=5 {
            t.record(&delta(n, 100 + n, 0, n));
        }
        assert!(t.forget_of_the_largest());
        assert_eq!((t.len(), t.forgotten()), (4, 101));
        while t.forget_of_the_largest() {}
        assert_eq!((t.len(), t.answer_bytes, t.forgotten()), (0, 0, 105));
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
        assert_eq!(t.recall(&id(1, 1), 9), Recall::Forgotten);
        assert!(matches!(t.recall(&id(1, 6), 9), Recall::Done { .. }));
        t.record(&delta(1, 7, 7, 7));
        assert_eq!(
            (t.len(), t.answer_bytes),
            (1, 1),
            "what is released counts no more"
        );
    }

    /// One that reads large values as it writes them must not lose what it was just told because others'
    /// old answers fill the table.
    #[test]
    fn the_oldest_answers_are_forgotten_first_whoever_s_they_are() {
        let mut t = RequestTable::default();
        let large = Bytes::from(vec![0; ANSWER_BYTES_MAX / 4]);
        // Later clients' numbers lie above earlier ones'.
        let with_answer = |client: u64, number, seq| Delta {
            answer: large.clone(),
            ..delta(client, 100 * client + number, 0, seq)
        };
        for n in 1..=4 {
            t.record(&with_answer(1, n, n));
        }
        for n in 1..=3 {
            t.record(&with_answer(2, n, 4 + n));
        }
        let known = |t: &RequestTable, client, number| {
            let recalled = t.recall(&id(client, 100 * client + number), 99);
            matches!(recalled, Recall::Done { .. })
        };
        for number in 1..=3 {
            assert!(known(&t, 2, number), "of the active client: {number}");
            assert!(!known(&t, 1, number), "of the other: {number}");
        }
        assert!(known(&t, 1, 4), "the newest of the other");
        // A third: nobody has more than its newest but the second.
        t.record(&with_answer(3, 1, 8));
        assert!(known(&t, 1, 4) && known(&t, 3, 1) && !known(&t, 2, 1) && known(&t, 2, 2));
        // With more clients than answers fit, the one who was here longest ago goes.
        for client in 4..=6 {
            t.record(&with_answer(client, 1, 5 + client));
        }
        assert_eq!(t.recall(&id(1, 104), 99), Recall::Forgotten);
        assert!((3..=6).all(|client| known(&t, client, 1)));
        assert_eq!(t.answer_bytes, ANSWER_BYTES_MAX);
        let again = RequestTable::load(&t.dump());
        assert!(
            again.dump() == t.dump(),
            "it is the same at whoever takes it over"
        );
        assert_eq!(again.answer_bytes, t.answer_bytes);
    }

    #[test]
    fn a_dump_loads_as_the_same_table() {
        let mut t = RequestTable::default();
        for (c, n, f, s) in [(1, 1, 0, 1), (2, 5, 3, 2), (1, 2, 1, 3), (2, 4, 3, 4)] {
            t.record(&delta(c, n, f, s));
        }
        let again = RequestTable::load(&t.dump());
        assert_eq!(again.dump(), t.dump());
    }
}
