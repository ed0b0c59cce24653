//! The state of a unit against its pages: whatever it did, checkpoints and cleaning included, the pages have that state.

mod parts;

use proptest::prelude::*;
use staves_model::{GroupId, Incarnation, NodeId};
use staves_store::Pages;

use super::{pages, put};
use crate::entry::Entry;
use crate::state::UnitState;
use crate::store::ledger::CheckpointOf;
use crate::store::{CheckpointParts, Need, NewData, OFFSET_BITS, PageEdit, StoredEntry, UnitPages};
use crate::types::{
    AppendId, DataPlace, LogId, LogOptions, PageEntry, PageRun, SequencerId, SessionId, TagLink,
    Term,
};

const UNIT: GroupId = GroupId(4);

struct Units {
    pages: Pages,
    own: (UnitPages, UnitState),
    copy: (UnitPages, UnitState),
    data: u64,
    seq: u32,
    parts: Option<CheckpointParts>,
}

impl Units {
    fn new() -> Units {
        let pages = pages(200);
        let own = UnitPages::open(&pages, UNIT).unwrap();
        let copy = own.clone();
        Units {
            pages,
            own,
            copy,
            data: 0,
            seq: 0,
            parts: None,
        }
    }

    fn append(&mut self, entry: StoredEntry, data: &[u8]) {
        let mut freed = Vec::new();
        if let StoredEntry::Change(change) = &entry {
            self.own.1.apply(change, &mut freed);
        }
        let new = match data.is_empty() {
            true => NewData::Nothing,
            false => NewData::Bytes(data),
        };
        let edit = self.own.0.append(&[(entry.clone(), new)]).unwrap();
        self.make(&edit, &[(entry, freed)]);
    }

    fn make(&mut self, edit: &PageEdit, entries: &[(StoredEntry, Vec<DataPlace>)]) {
        let (own, copy) = (&mut self.own, &mut self.copy);
        own.0.appended(edit, entries, &own.1).unwrap();
        copy.0.follow(&edit.runs, &edit.bytes, &mut copy.1).unwrap();
        put(&mut self.pages, edit);
    }

    fn change(&mut self, entry: Entry) {
        self.append(StoredEntry::Change(entry), &[]);
    }

    fn commit(&mut self, log: LogId, gap: u64, (count, len): (u32, u32), tag: u64) {
        let Some(share) = self.own.1.share(log) else {
            return;
        };
        let position = share.claimed.max(share.trim) + gap;
        self.data += 1;
        self.seq += 1;
        let place = |i: u32| DataPlace {
            at: (self.data << OFFSET_BITS) + u64::from(i * len),
            bytes: len,
        };
        let places: Vec<DataPlace> = (0..count).map(place).collect();
        let low = self.seq.saturating_sub(6);
        let session = SessionId {
            term: Term(1),
            count: 1 + tag as u32 % 3,
        };
        let (seq, session) = (self.seq, session.max(share.sessions.floor().next()));
        let id = AppendId { session, seq };
        let back = vec![position];
        let links = if tag > 3 {
            vec![TagLink { tag, back }]
        } else {
            Vec::new()
        };
        let data: Vec<u8> = places.iter().flat_map(bytes_at).collect();
        let commit = Entry::Commit {
            log,
            position,
            id,
            low,
            links,
            places,
        };
        self.append(StoredEntry::Change(commit), &data);
    }

    fn tidy(&mut self, step: u8) {
        let edit = match step {
            0 => self.own.0.log.free(),
            1 | 2 => {
                let need = if step == 1 { Need::Some } else { Need::Much };
                let victim = self.own.0.log.victim(need);
                let clean = |victim| self.own.0.log.clean(&self.pages, victim).unwrap();
                victim.and_then(clean)
            }
            _ if self.parts.is_some() => None,
            _ => {
                if let Some(of) = self.own.0.ledger.take_due()
                    && let Some(entry) = UnitPages::checkpoint(&of, &self.own.1)
                {
                    self.append(entry, &[]);
                }
                None
            }
        };
        if let Some(edit) = edit {
            self.make(&edit, &[]);
        }
    }

    /// A checkpoint, due or not.
    fn checkpoint(&mut self, log: LogId) {
        let of = CheckpointOf::Log(log);
        if let Some(entry) = UnitPages::checkpoint(&of, &self.own.1) {
            self.append(entry, &[]);
        }
    }

    /// The next part of a checkpoint in parts, of this one if none is begun.
    fn part(&mut self, of: CheckpointOf, part_bytes: usize) {
        self.parts
            .take_if(|parts| parts.is_void(&self.own.0.ledger));
        if self.parts.is_none() {
            let base = self.own.0.log.next_number() - 1;
            let entry = UnitPages::checkpoint(&of, &self.own.1);
            let begin =
                |entry: StoredEntry| CheckpointParts::new(of, base, entry.to_bytes(), part_bytes);
            self.parts = entry.map(begin);
        }
        let Some(parts) = &self.parts else {
            return;
        };
        self.append(parts.next_entry(), &[]);
        let number = self.own.0.log.next_number() - 1;
        self.parts.take_if(|parts| parts.made(number));
    }

    fn check(&self) {
        let found = UnitPages::open(&self.pages, UNIT).unwrap();
        for of in [&self.own, &self.copy, &found] {
            of.0.log.check(&self.pages).unwrap();
            assert_eq!(of.1, self.own.1);
            let numbers = |of: &(UnitPages, UnitState)| of.0.log.numbers().collect::<Vec<_>>();
            assert_eq!(numbers(of), numbers(&self.own));
            for place in of.1.shares().values().flat_map(|share| share.places()) {
                let mut bytes = Vec::new();
                for piece in of.0.pieces_of(&place).expect("its data") {
                    self.pages
                        .read_into(piece.at, piece.len as usize, &mut bytes);
                }
                assert!(bytes == bytes_at(&place), "{place:?}");
            }
        }
    }

    fn restart(&mut self) {
        self.own = UnitPages::open(&self.pages, UNIT).unwrap();
        self.own.0.log.start();
        self.parts = None;
    }
}

fn bytes_at(place: &DataPlace) -> Vec<u8> {
    (0..u64::from(place.bytes))
        .map(|i| (place.at.wrapping_mul(31) + i * 7) as u8)
        .collect()
}

#[derive(Clone, Debug)]
enum Do {
    Seal(u64),
    Commit(u64, u64, (u32, u32), u64),
    Junk(u64, u32),
    Trim(u64, u64),
    Punch(u64, u64),
    Page(u64, u64),
    Prefix(u64),
    Floor(u64, u32),
    Forget(u64),
    Record(u8, u8),
    Checkpoint(u64),
    Part(u64),
    Spares(u32, bool),
    Tidy(u8),
    Restart,
}

fn step() -> impl Strategy<Value = Do> {
    let log = 0..4u64;
    let size = prop_oneof![3 => (1..4u32, 0..3000u32), 1 => (1..3u32, 0..90_000u32)];
    prop_oneof![
        3 => log.clone().prop_map(Do::Seal),
        14 => (log.clone(), 0..3u64, size, 0..8u64).prop_map(|(l, g, s, t)| Do::Commit(l, g, s, t)),
        2 => (log.clone(), 1..9u32).prop_map(|(l, n)| Do::Junk(l, n)),
        5 => (log.clone(), 0..12u64).prop_map(|(l, p)| Do::Trim(l, p)),
        2 => (log.clone(), 0..20u64).prop_map(|(l, p)| Do::Punch(l, p)),
        1 => (log.clone(), 0..6u64).prop_map(|(l, p)| Do::Page(l, p)),
        1 => log.clone().prop_map(Do::Prefix),
        1 => (log.clone(), 0..4u32).prop_map(|(l, c)| Do::Floor(l, c)),
        1 => log.clone().prop_map(Do::Forget),
        4 => (0..3u8, 0..6u8).prop_map(|(n, what)| Do::Record(n, what)),
        3 => log.clone().prop_map(Do::Checkpoint),
        12 => log.prop_map(Do::Part),
        2 => (0..3u32, any::<bool>()).prop_map(|(n, lean)| Do::Spares(n, lean)),
        12 => (0..4u8).prop_map(Do::Tidy),
        2 => Just(Do::Restart),
    ]
}

fn record(units: &mut Units, name: u8, what: u8) {
    let known = units.own.1.records().get(&format!("log {name}")).cloned();
    let name = format!("log {name}");
    let entry = match (what, known) {
        (_, None) => {
            let log = units.own.1.next_log().unwrap();
            let options = LogOptions::default();
            Entry::Create { name, log, options }
        }
        (0, Some(_)) => Entry::Delete { name },
        (1 | 2, Some(record)) => Entry::Lead {
            name,
            term: record.term().next(),
            sequencer: SequencerId {
                node: NodeId(what.into()),
                incarnation: Incarnation(3),
            },
            added: vec![GroupId(what.into())],
        },
        (3, Some(record)) => Entry::Open {
            name,
            term: record.term(),
            start: record.view.start + 5,
        },
        (_, Some(record)) => Entry::RecordTrim {
            name,
            position: record.view.trim + 1,
        },
    };
    units.change(entry);
    if what == 5 {
        let of = CheckpointOf::Name("log 1".into());
        if let Some(entry) = UnitPages::checkpoint(&of, &units.own.1) {
            units.append(entry, &[]);
            units.parts = None;
        }
    }
}

fn write_page(units: &mut Units, log: u64, page: u64) {
    let entry = PageEntry::Unit(GroupId(log as u32));
    let runs = vec![PageRun { count: 4, entry }; if page == 3 { 2500 } else { 1 }];
    let known = units
        .own
        .1
        .share(LogId(log))
        .is_none_or(|s| s.pages.contains_key(&page));
    if !known {
        units.change(Entry::Page {
            log: LogId(log),
            page,
            runs,
        });
    }
}

fn seal(units: &mut Units, log: LogId) {
    let term = units.own.1.term(log).next();
    let options = LogOptions {
        page_positions: 4,
        ..LogOptions::default()
    };
    units.change(Entry::Seal { log, term, options });
    if term > Term(2) {
        let start = units.own.1.share(log).map_or(0, |share| share.claimed);
        units.change(Entry::Start { log, start });
    }
}

fn run(units: &mut Units, step: Do) {
    let claimed = |units: &Units, log| units.own.1.share(LogId(log)).map_or(0, |s| s.claimed);
    match step {
        Do::Seal(log) => seal(units, LogId(log)),
        Do::Commit(log, gap, size, tag) => units.commit(LogId(log), gap, size, tag),
        Do::Junk(log, count) => {
            let position = claimed(units, log).saturating_sub(2);
            units.change(Entry::Junk {
                log: LogId(log),
                position,
                count,
            });
        }
        Do::Trim(log, back) => {
            let position = claimed(units, log).saturating_sub(back);
            units.change(Entry::Trim {
                log: LogId(log),
                position,
            });
        }
        Do::Punch(log, back) => {
            let position = claimed(units, log).saturating_sub(back);
            units.change(Entry::Punch {
                log: LogId(log),
                position,
            });
        }
        Do::Page(log, page) => write_page(units, log, page),
        Do::Prefix(log) => {
            let (position, log) = (claimed(units, log), LogId(log));
            units.change(Entry::Prefix { log, position });
        }
        Do::Floor(log, count) => {
            let (log, term) = (LogId(log), Term(1));
            let session = SessionId { term, count };
            units.change(Entry::Floor { log, session });
        }
        Do::Forget(log) => {
            if units.own.1.share(LogId(log)).is_some() {
                units.change(Entry::Forget { log: LogId(log) });
            }
        }
        Do::Record(name, what) => record(units, name, what),
        Do::Checkpoint(log) => {
            units.checkpoint(LogId(log));
            // Of one log none is made while another is under way.
            units.parts = None;
        }
        Do::Spares(count, lean) => {
            units.own.0.log.set_lean(lean);
            let edit = units.own.0.log.make_spares(count).unwrap();
            units.make(&edit, &[]);
        }
        Do::Part(0) => units.part(CheckpointOf::Name("log 1".into()), 40),
        Do::Part(log) => units.part(CheckpointOf::Log(LogId(log)), 60),
        Do::Tidy(step) => units.tidy(step),
        Do::Restart => units.restart(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn pages_have_the_state(steps in prop::collection::vec(step(), 1..160)) {
        let mut units = Units::new();
        for (number, step) in (1..).zip(steps) {
            run(&mut units, step);
            if number % 20 == 0 {
                units.check();
            }
        }
        units.check();
    }
}
