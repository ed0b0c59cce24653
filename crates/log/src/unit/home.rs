//! The home of logs: their records, each change one durable compare-and-set.

use super::{Delivery, ReplyTo, Unit, UnitEffects};
use crate::entry::Entry;
use crate::message::{NAMES_MAX, RecordRefusal, RecordReply, RecordRequest};
use crate::mutant::{LogMutant, planted};
use crate::retention::{CURSOR_NAME_BYTES_MAX, CURSORS_MAX, LogRetention};
use crate::types::{
    LogId, LogOptions, LogRecord, Position, SEGMENT_UNITS_MAX, SEGMENTS_MAX, SequencerId, Term,
    UnitId, is_name,
};

impl Unit {
    /// Executes a request for the record of a log whose home this unit is.
    pub fn record(&mut self, to: ReplyTo, request: RecordRequest, out: &mut UnitEffects) {
        let reply = match self.decide_record(request) {
            Ok(RecordStep::Reply(reply)) => reply,
            Ok(RecordStep::Change(name, entry)) => {
                let before = self.state.records().get(&name).cloned();
                self.last_record = self.push(entry, out);
                let now = self.state.records().get(&name).cloned();
                let deleted = now.is_none();
                match now.or(before) {
                    Some(record) if deleted => RecordReply::Deleted(Box::new(record)),
                    Some(record) => RecordReply::Record(Box::new(record)),
                    None => RecordReply::Refused(RecordRefusal::NotFound),
                }
            }
            Err(refusal) => RecordReply::Refused(refusal),
        };
        let after = match self.last_record > self.synced {
            true => self.last_record,
            false => 0,
        };
        out.records.push(Delivery { to, after, reply });
    }

    fn decide_record(&self, request: RecordRequest) -> Result<RecordStep, RecordRefusal> {
        match request {
            RecordRequest::Create { name, options } => self.create(name, options),
            RecordRequest::View { name } => {
                let record = self.find(&name)?.clone();
                Ok(RecordStep::reply(record))
            }
            RecordRequest::Lead {
                name,
                log,
                from_term,
                sequencer,
                added,
            } => self.lead(name, (log, from_term), sequencer, added),
            RecordRequest::Open {
                name,
                log,
                term,
                start,
            } => self.open(name, (log, term), start),
            RecordRequest::Trim {
                name,
                log,
                term,
                position,
            } => self.trim_record(name, (log, term), position),
            request @ (RecordRequest::SetCursor { .. }
            | RecordRequest::SetRetention { .. }
            | RecordRequest::Retain { .. }) => self.decide_kept(request),
            RecordRequest::Delete { name } => {
                self.find(&name)?;
                let entry = Entry::Delete { name: name.clone() };
                Ok(RecordStep::Change(name, entry))
            }
            RecordRequest::List { after, limit } => Ok(self.list(after, limit)),
        }
    }

    /// The requests for cursors, and for how much is kept.
    fn decide_kept(&self, request: RecordRequest) -> Result<RecordStep, RecordRefusal> {
        match request {
            RecordRequest::SetCursor {
                name,
                log,
                cursor,
                from,
                to,
            } => self.set_cursor((name, log), cursor, from, to),
            RecordRequest::SetRetention {
                name,
                log,
                retention,
            } => self.set_retention(name, log, retention),
            RecordRequest::Retain {
                name,
                log,
                term,
                position,
                retention,
            } => {
                let record = self.find_log(&name, log)?;
                if record.retention != retention {
                    // More is kept by now, perhaps: the sequencer learns it from the answer.
                    return Ok(RecordStep::reply(record.clone()));
                }
                let most = record.may_trim_to(position);
                let most = match planted(LogMutant::RetentionPastCursor) {
                    true => position,
                    false => most,
                };
                self.trim_record(name, (log, term), most)
            }
            _ => Err(RecordRefusal::Invalid),
        }
    }

    fn find(&self, name: &str) -> Result<&LogRecord, RecordRefusal> {
        let record = self.state.records().get(name);
        record.ok_or(RecordRefusal::NotFound)
    }

    /// The record of a name, if it is still the same log's.
    fn find_log(&self, name: &str, log: LogId) -> Result<&LogRecord, RecordRefusal> {
        let record = self.find(name)?;
        match record.view.log == log {
            true => Ok(record),
            false => Err(moved(record)),
        }
    }

    /// True if the units have as many logs as they take: each log that is in use has a share at every unit of its pool, and so at this one.
    fn has_all_logs(&self) -> bool {
        self.state.shares().len() >= self.limits.logs_max
    }

    fn create(&self, name: String, options: LogOptions) -> Result<RecordStep, RecordRefusal> {
        if !is_name(&name) || !options.is_valid() {
            return Err(RecordRefusal::Invalid);
        }
        if self.find(&name).is_ok() {
            return Err(RecordRefusal::Exists);
        }
        let full = self.state.records().len() >= self.limits.records_max || self.has_all_logs();
        let next = self.state.next_log().filter(|_| !full);
        let log = next.ok_or(RecordRefusal::Full)?;
        let entry = Entry::Create {
            name: name.clone(),
            log,
            options,
        };
        Ok(RecordStep::Change(name, entry))
    }

    fn lead(
        &self,
        name: String,
        (log, from): (LogId, Term),
        sequencer: SequencerId,
        added: Vec<UnitId>,
    ) -> Result<RecordStep, RecordRefusal> {
        let record = self.find_log(&name, log)?;
        let term = from.next();
        let again = record
            .lead
            .as_ref()
            .is_some_and(|l| (l.term, l.sequencer) == (term, sequencer) && l.added == added);
        if again {
            return Ok(RecordStep::reply(record.clone()));
        }
        if record.term() != from {
            return Err(moved(record));
        }
        // Its units would not take the term, and nobody learn why.
        if self.state.share(log).is_none() && self.has_all_logs() {
            return Err(RecordRefusal::Full);
        }
        let grown = record.view.projection.grown(Position::MAX, &added);
        let too_many =
            grown.segments.len() > SEGMENTS_MAX || grown.last().len() > SEGMENT_UNITS_MAX;
        if grown.last().is_empty() || too_many {
            return Err(RecordRefusal::Units);
        }
        let entry = Entry::Lead {
            name: name.clone(),
            term,
            sequencer,
            added,
        };
        Ok(RecordStep::Change(name, entry))
    }

    fn open(
        &self,
        name: String,
        (log, term): (LogId, Term),
        start: Position,
    ) -> Result<RecordStep, RecordRefusal> {
        let record = self.find_log(&name, log)?;
        let committed = record.lead.as_ref().is_some_and(|lead| lead.term == term);
        if committed {
            let entry = Entry::Open {
                name: name.clone(),
                term,
                start,
            };
            return Ok(RecordStep::Change(name, entry));
        }
        match record.view.term == term {
            true => Ok(RecordStep::reply(record.clone())),
            false => Err(moved(record)),
        }
    }

    fn trim_record(
        &self,
        name: String,
        (log, term): (LogId, Term),
        position: Position,
    ) -> Result<RecordStep, RecordRefusal> {
        let record = self.find_log(&name, log)?;
        if record.view.term != term {
            return Err(moved(record));
        }
        if position <= record.view.trim {
            return Ok(RecordStep::reply(record.clone()));
        }
        let entry = Entry::RecordTrim {
            name: name.clone(),
            position,
        };
        Ok(RecordStep::Change(name, entry))
    }

    fn set_cursor(
        &self,
        (name, log): (String, LogId),
        cursor: String,
        from: Option<Option<Position>>,
        to: Option<Position>,
    ) -> Result<RecordStep, RecordRefusal> {
        let record = self.find_log(&name, log)?;
        let now = record.cursors.get(&cursor).copied();
        // A retry bears the number of its request, and does not come here.
        if from.is_some_and(|from| from != now) && !planted(LogMutant::CursorNotCompared) {
            return Err(RecordRefusal::CursorMoved(now));
        }
        if now == to {
            return Ok(RecordStep::reply(record.clone()));
        }
        let many = now.is_none() && record.cursors.len() >= CURSORS_MAX;
        let is_name = (1..=CURSOR_NAME_BYTES_MAX).contains(&cursor.len())
            && !cursor.contains(char::is_control);
        if many || !is_name {
            return Err(RecordRefusal::Cursors);
        }
        let entry = Entry::Cursor {
            name: name.clone(),
            cursor,
            position: to,
        };
        Ok(RecordStep::Change(name, entry))
    }

    fn set_retention(
        &self,
        name: String,
        log: LogId,
        retention: LogRetention,
    ) -> Result<RecordStep, RecordRefusal> {
        let record = self.find_log(&name, log)?;
        if record.retention == retention {
            return Ok(RecordStep::reply(record.clone()));
        }
        let entry = Entry::Retention {
            name: name.clone(),
            retention,
        };
        Ok(RecordStep::Change(name, entry))
    }

    fn list(&self, after: String, limit: u32) -> RecordStep {
        use std::ops::Bound::{Excluded, Unbounded};
        let after = match after.is_empty() {
            true => Unbounded,
            false => Excluded(after),
        };
        let names = self.state.records().range((after, Unbounded));
        let names = names.map(|(name, _)| name.clone());
        let limit = limit.min(NAMES_MAX) as usize;
        RecordStep::Reply(RecordReply::Names(names.take(limit).collect()))
    }
}

fn moved(record: &LogRecord) -> RecordRefusal {
    RecordRefusal::Moved(Box::new(record.clone()))
}

/// The decision on a request.
enum RecordStep {
    /// Nothing changes.
    Reply(RecordReply),
    /// The record of the name changes.
    Change(String, Entry),
}

impl RecordStep {
    fn reply(record: LogRecord) -> RecordStep {
        RecordStep::Reply(RecordReply::Record(Box::new(record)))
    }
}

#[cfg(test)]
mod tests;
