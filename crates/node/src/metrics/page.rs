//! The page of a node's metrics.

use std::fmt::Write;

use staves_files_server::FilesPool;

use super::{Metric, Scrape, Value, all};
use crate::disk::DiskFacts;
use crate::running::Running;
use crate::volumes::VolumeOp;

/// All metrics of a node in Prometheus's text format.
pub(crate) fn text(running: &Running) -> String {
    let mut pools = running.pool_facts();
    pools.retain(|pool| pool.budget_bytes > 0);
    let scrape = Scrape {
        running,
        door: &running.door,
        figures: running.host.figures(),
        directory: running.directory.status(),
        leader: running.directory_facts().leader,
        links: running.host.peers.stats(),
        pools,
        disk: DiskFacts::sum(&running.host.disks().facts()),
        volumes: running.volumes.list(),
        logs: running.host.logs.served(&running.directory.map().borrow()),
    };
    let mut page = String::new();
    for metric in all() {
        // Writing to a string does not fail.
        let _ = metric.put(&scrape, &mut page);
    }
    page
}

impl Scrape<'_> {
    /// A figure of all pools of files together.
    pub(super) fn files(&self, of: fn(&FilesPool) -> u64) -> u64 {
        let pools = self.running.files.pools();
        pools.iter().map(|pool| of(pool)).sum()
    }
}

impl Metric {
    fn put(&self, scrape: &Scrape<'_>, page: &mut String) -> std::fmt::Result {
        let Metric {
            name, kind, help, ..
        } = self;
        writeln!(page, "# HELP {name} {help}\n# TYPE {name} {}", kind.word())?;
        match self.value {
            Value::One(count) => writeln!(page, "{name} {}", count(scrape)),
            Value::By(label, parts) => parts.iter().try_for_each(|(of, count)| {
                writeln!(page, "{name}{{{label}=\"{of}\"}} {}", count(scrape))
            }),
            Value::ByPool(count) => scrape
                .pools
                .iter()
                .try_for_each(|of| writeln!(page, "{name}{{pool=\"{}\"}} {}", of.pool, count(of))),
            Value::ByDataset(counts) => {
                counts(scrape.running).iter().try_for_each(|(of, count)| {
                    writeln!(page, "{name}{{dataset=\"{}\"}} {count}", escaped(of))
                })
            }
            Value::ByVolume(count) => scrape.volumes.iter().try_for_each(|volume| {
                let (of, count) = (escaped(&volume.name), count(volume));
                writeln!(page, "{name}{{volume=\"{of}\"}} {count}")
            }),
            Value::ByLog(count) => scrape.logs.iter().try_for_each(|log| {
                let (pool, of, count) = (escaped(&log.pool), escaped(&log.name), count(log));
                writeln!(page, "{name}{{pool=\"{pool}\",log=\"{of}\"}} {count}")
            }),
            Value::ByVolumeOp(count) => scrape.volumes.iter().try_for_each(|volume| {
                let of = escaped(&volume.name);
                VolumeOp::ALL.into_iter().try_for_each(|op| {
                    let (word, count) = (op.word(), count(volume.figures.of(op)));
                    writeln!(page, "{name}{{volume=\"{of}\",op=\"{word}\"}} {count}")
                })
            }),
            Value::VolumeSeconds => scrape.volumes.iter().try_for_each(|volume| {
                let of = escaped(&volume.name);
                volume.figures.put_seconds(name, &of, page)
            }),
        }
    }
}

/// A label's value, without what would end it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"")
}
