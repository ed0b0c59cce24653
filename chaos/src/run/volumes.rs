//! The verdict on a volume's history.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;

use super::Runner;

/// A write may have no answer for so much longer than a read: its client waits for its answer, then for the former session's end, and connects anew.
const WRITES_LATER: Duration = Duration::from_secs(40);

impl Runner<'_> {
    pub(super) fn judge_volume(&mut self, folder: &Path, from: u64, to: u64) -> anyhow::Result<()> {
        if !self.scenario.volume {
            return Ok(());
        }
        let counts = self.shared.volume.counts();
        for (kind, n) in counts {
            self.verdict.by_kind.insert(kind, n);
        }
        let history = self.shared.volume.history();
        self.verdict.operations += history.writes.len() + history.reads.len();
        let wrong = history.judge();
        if self.settings.keep || !wrong.is_empty() {
            std::fs::write(folder.join("volume.jsonl"), history.text())
                .context("cannot write the volume's history")?;
        }
        wrong
            .into_iter()
            .for_each(|violation| self.wrong(violation));
        let [reads, writes] = self.shared.volume.worst_stalls(from, to);
        self.tell(&format!(
            "the volume: {}; longest without a read {:?}, without a write {:?}",
            super::counted(&counts.into_iter().collect()),
            reads.length,
            writes.length
        ));
        let is_late = writes.length > self.scenario.stall_max + WRITES_LATER;
        if is_late && !self.scenario.losses {
            self.wrong(format!(
                "no write to the volume was answered for {:?} from {:.3} s on",
                writes.length,
                writes.from as f64 / 1e9
            ));
        }
        if reads.length > self.verdict.stall.length {
            self.verdict.stall = reads;
        }
        Ok(())
    }
}
