//! Volumes and their snapshots: how they begin, and the verdict on their histories.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::{Runner, counted};
use crate::load::volume::{self, VolumeLoad, copies, images};
use crate::load::{Shared, volume::history::BlockHistory};

/// A write may have no answer for so much longer than a read: its client waits for its answer, then for the former session's end, and connects anew.
const WRITES_LATER: Duration = Duration::from_secs(40);
/// The volumes' names in violations.
const NAMES: [&str; 2] = ["the volume", "the second volume"];

/// The two volumes.
fn loads(shared: &Shared) -> [&VolumeLoad; 2] {
    [&shared.volume, &shared.second_volume]
}

impl Runner<'_> {
    /// The number of volumes.
    fn volumes(&self) -> usize {
        usize::from(self.scenario.volume) + usize::from(self.scenario.snapshots)
    }

    /// Makes the volumes; them in words.
    pub(super) fn create_volumes(&self) -> anyhow::Result<&'static str> {
        for volume in loads(&self.shared).into_iter().take(self.volumes()) {
            let size = format!("{}B", volume.size_bytes);
            let create = ["volume", "create", volume.name, "--pool", "ram", "--size"];
            self.staves(&[&create[..], &[&size]].concat())?;
        }
        Ok(["", ", a volume", ", two volumes"][self.volumes()])
    }

    /// Reads all of the volumes once more, and ends all snapshots and clones.
    pub(super) fn read_volumes(&mut self) {
        let (shared, until) = (self.shared.clone(), Instant::now() + self.healing());
        for (volume, name) in loads(&shared).into_iter().zip(NAMES).take(self.volumes()) {
            match volume::read_all(&shared, volume, until) {
                Ok(0) => self.tell(&format!("read all of {name}")),
                Ok(silent) => self.wrong(format!(
                    "{silent} places of {name} could not be read at the end"
                )),
                Err(error) => self.wrong(format!("{name} cannot be read: {error:#}")),
            }
        }
        if !self.scenario.snapshots {
            return;
        }
        match copies::settle(&shared, &self.settings.program, until) {
            Ok(wrong) => wrong.into_iter().for_each(|what| self.wrong(what)),
            Err(error) => self.wrong(format!("snapshots cannot be read: {error:#}")),
        }
        self.tell("read all snapshots and clones, and deleted them");
    }

    pub(super) fn judge_volumes(
        &mut self,
        folder: &Path,
        from: u64,
        to: u64,
    ) -> anyhow::Result<()> {
        if !self.scenario.volume {
            return Ok(());
        }
        let shared = self.shared.clone();
        let all = loads(&shared).into_iter().zip(NAMES).take(self.volumes());
        let histories: Vec<(&str, BlockHistory)> =
            all.map(|(of, name)| (name, of.history())).collect();
        let images = shared.images.histories();
        let wrong = images::judge(&histories, &images);
        let counts = shared.volume.counts();
        let of_images = shared.images.counts();
        let with_images = self.scenario.snapshots.then_some(of_images);
        let all_counts = counts.into_iter().chain(with_images.into_iter().flatten());
        self.verdict.by_kind.extend(all_counts);
        let of_blocks = images.iter().map(|image| &image.blocks);
        let blocks = of_blocks.chain(histories.iter().map(|(_, history)| history));
        self.verdict.operations += blocks
            .map(|history| history.writes.len() + history.reads.len())
            .sum::<usize>();
        if self.settings.keep || !wrong.is_empty() {
            let files = ["volume.jsonl", "second-volume.jsonl"];
            for (file, (_, history)) in files.iter().zip(&histories) {
                std::fs::write(folder.join(file), history.text())
                    .context("cannot write a volume's history")?;
            }
            std::fs::write(folder.join("snapshots.jsonl"), images::text(&images))
                .context("cannot write the snapshots' history")?;
        }
        wrong
            .into_iter()
            .for_each(|violation| self.wrong(violation));
        if self.scenario.snapshots {
            self.tell(&format!(
                "snapshots: {}",
                counted(&of_images.into_iter().collect())
            ));
        }
        self.judge_waits(from, to);
        Ok(())
    }

    /// The verdict on the times without answers.
    fn judge_waits(&mut self, from: u64, to: u64) {
        let [reads, writes] = self.shared.volume.worst_stalls(from, to);
        self.tell(&format!(
            "the volume: {}; longest without a read {:?}, without a write {:?}",
            counted(&self.shared.volume.counts().into_iter().collect()),
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
    }
}
