//! The durable state of a unit: its shares of logs, and the records of the logs whose home it is.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use staves_model::GroupId;

use crate::entry::Entry;
use crate::message::SlotAnswer;
use crate::mutant::{LogMutant, planted};
use crate::share::LogShare;
use crate::slots::Slot;
use crate::types::{DataPlace, Leadership, LogId, LogRecord, LogView, Position, Term, UnitId};

/// Most logs that were forgotten and are known.
pub(crate) const FORGOTTEN_MAX: usize = 4096;

/// The durable state of a unit. [`UnitState::apply`] alone changes it, so that a copy and a restart get the same by replaying entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnitState {
    unit: UnitId,
    shares: BTreeMap<LogId, LogShare>,
    records: BTreeMap<String, LogRecord>,
    /// The logs that were ever created here.
    created: u64,
    /// The logs that were forgotten last, in this order: a seal that comes late finds them here.
    forgotten: VecDeque<LogId>,
}

impl UnitState {
    /// An empty one.
    pub fn new(unit: UnitId) -> UnitState {
        UnitState {
            unit,
            shares: BTreeMap::new(),
            records: BTreeMap::new(),
            created: 0,
            forgotten: VecDeque::new(),
        }
    }

    /// The unit.
    pub fn unit(&self) -> UnitId {
        self.unit
    }

    /// The share of a log; none before the first seal.
    pub fn share(&self, log: LogId) -> Option<&LogShare> {
        self.shares.get(&log)
    }

    /// All shares.
    pub fn shares(&self) -> &BTreeMap<LogId, LogShare> {
        &self.shares
    }

    /// The records of the logs whose home the unit is, by name.
    pub fn records(&self) -> &BTreeMap<String, LogRecord> {
        &self.records
    }

    /// The number of the next log that is created here. None if there are no more numbers.
    pub fn next_log(&self) -> Option<LogId> {
        LogId::new(self.unit, self.created)
    }

    /// The unit's term of a log.
    pub(crate) fn term(&self, log: LogId) -> Term {
        self.share(log).map_or(Term::default(), |share| share.term)
    }

    /// The answer of a copy, which knows entries up to some point: for positions below the prefix that its own head has sent, and on nobody
    /// else's word (rule 19). None: it cannot answer.
    pub fn read_at_copy(&self, log: LogId, position: Position) -> Option<SlotAnswer<DataPlace>> {
        let share = self.share(log)?;
        let known = position < share.prefix || planted(LogMutant::CopyPastPrefix);
        known.then(|| share.content(position))?
    }

    /// Replays an entry. Places that nothing names any more are added to `freed`: their bytes can go with this entry.
    pub fn apply(&mut self, entry: &Entry, freed: &mut Vec<DataPlace>) {
        match entry {
            Entry::Seal { log, .. } => {
                let share = self.shares.entry(*log).or_default();
                share.apply(entry, freed);
            }
            Entry::Start { log, .. }
            | Entry::Commit { log, .. }
            | Entry::Junk { log, .. }
            | Entry::Trim { log, .. }
            | Entry::Punch { log, .. }
            | Entry::Page { log, .. }
            | Entry::Prefix { log, .. }
            | Entry::Floor { log, .. } => {
                if let Some(share) = self.shares.get_mut(log) {
                    share.apply(entry, freed);
                }
            }
            Entry::Forget { log } => {
                if let Some(share) = self.shares.remove(log) {
                    freed.extend(share.places());
                }
                self.note_forgotten(*log);
            }
            Entry::Create { .. }
            | Entry::Lead { .. }
            | Entry::Open { .. }
            | Entry::RecordTrim { .. }
            | Entry::Cursor { .. }
            | Entry::Retention { .. }
            | Entry::Delete { .. } => self.apply_record(entry),
        }
    }

    /// A log was forgotten, and is one of the last ones.
    pub(crate) fn note_forgotten(&mut self, log: LogId) {
        self.forgotten.retain(|other| *other != log);
        self.forgotten.push_back(log);
        let over = self.forgotten.len().saturating_sub(FORGOTTEN_MAX);
        self.forgotten.drain(..over);
    }

    /// True if a log was forgotten here, as far as is known.
    pub(crate) fn was_forgotten(&self, log: LogId) -> bool {
        self.forgotten.contains(&log)
    }

    fn apply_record(&mut self, entry: &Entry) {
        match entry {
            Entry::Create { name, log, options } => {
                let view = LogView {
                    log: *log,
                    options: *options,
                    term: Term::default(),
                    sequencer: None,
                    start: 0,
                    projection: Arc::default(),
                    trim: 0,
                };
                let record = LogRecord {
                    name: name.clone(),
                    view,
                    lead: None,
                    cursors: Default::default(),
                    retention: Default::default(),
                };
                self.records.insert(name.clone(), record);
                self.created += 1;
            }
            Entry::Delete { name } => {
                self.records.remove(name);
            }
            Entry::Lead { name, .. }
            | Entry::Open { name, .. }
            | Entry::RecordTrim { name, .. }
            | Entry::Cursor { name, .. }
            | Entry::Retention { name, .. } => {
                if let Some(record) = self.records.get_mut(name) {
                    change(record, entry);
                }
            }
            _ => {}
        }
    }
}

fn change(record: &mut LogRecord, entry: &Entry) {
    let view = &mut record.view;
    match entry {
        Entry::Lead {
            term,
            sequencer,
            added,
            ..
        } => {
            record.lead = Some(Leadership {
                term: *term,
                sequencer: *sequencer,
                added: added.clone(),
            });
        }
        Entry::Open { start, .. } => {
            let Some(lead) = record.lead.take() else {
                return;
            };
            view.term = lead.term;
            view.sequencer = Some(lead.sequencer);
            view.start = (*start).max(view.trim);
            if planted(LogMutant::TailTrimmed) {
                view.start = *start;
            }
            view.projection = Arc::new(view.projection.grown(view.start, &lead.added));
        }
        Entry::Cursor {
            cursor, position, ..
        } => match position {
            Some(position) => {
                record.cursors.insert(cursor.clone(), *position);
            }
            None => {
                record.cursors.remove(cursor);
            }
        },
        Entry::Retention { retention, .. } => record.retention = *retention,
        Entry::RecordTrim { position, .. } => view.trim = view.trim.max(*position),
        _ => {}
    }
}

impl LogShare {
    /// The content of a position that has one.
    pub(crate) fn content(&self, position: Position) -> Option<SlotAnswer<DataPlace>> {
        if position < self.trim && !planted(LogMutant::JunkBelowTrim) {
            return Some(SlotAnswer::Trimmed);
        }
        Some(match self.slots.get(position)? {
            Slot::Data(data) => SlotAnswer::Data {
                head: data.head(position),
                data: data.place,
            },
            Slot::Junk(_) => SlotAnswer::Junk,
            Slot::Tomb => SlotAnswer::Trimmed,
        })
    }
}

/// A group that is no unit: for states that only replay records.
impl Default for UnitState {
    fn default() -> UnitState {
        UnitState::new(GroupId(0))
    }
}

/// Restoring what a checkpoint has, in place of the entries that it stands for.
impl UnitState {
    /// The share of a log, made if there is none.
    pub(crate) fn share_mut(&mut self, log: LogId) -> &mut LogShare {
        self.shares.entry(log).or_default()
    }

    /// Puts a log's record in place of the one of its name.
    pub(crate) fn put_record(&mut self, record: LogRecord) {
        self.records.insert(record.name.clone(), record);
    }

    /// The number of logs that were ever created here.
    pub(crate) fn created(&self) -> u64 {
        self.created
    }

    /// So many logs were created here.
    pub(crate) fn set_created(&mut self, created: u64) {
        self.created = created;
    }
}
