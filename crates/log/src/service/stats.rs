//! The counters of a unit.

use super::UnitStats;
use crate::entry::Entry;

impl UnitStats {
    /// An entry was made.
    pub(super) fn made(&mut self, entry: &Entry) {
        self.entries += 1;
        match entry {
            Entry::Commit { places, .. } => {
                self.appends += 1;
                self.records += places.len() as u64;
                self.record_bytes += places.iter().map(|at| u64::from(at.bytes)).sum::<u64>();
            }
            Entry::Junk { count, .. } => self.junk += u64::from(*count),
            _ => {}
        }
    }

    /// A record is answered.
    pub(super) fn has_read(&mut self, bytes: u32) {
        self.reads += 1;
        self.read_bytes += u64::from(bytes);
    }

    pub(super) fn count(&self, add: &mut dyn FnMut(&'static str, u64)) {
        add("log_entries", self.entries);
        add("log_appends", self.appends);
        add("log_records", self.records);
        add("log_record_bytes", self.record_bytes);
        add("log_junk", self.junk);
        add("log_reads", self.reads);
        add("log_read_bytes", self.read_bytes);
        add("log_cleanings", self.cleanings);
        add("log_checkpoints", self.checkpoints);
        add("log_refused", self.refused);
    }
}
