//! Warnings of disks: one that failed, a journal without room, and a disk that is nearly full.

use staves_model::units::{bytes, count};

use super::names::full_name;
use super::{NodeStatus, StatusReport};
use crate::disk::{DiskFacts, DiskState};

/// Updates that waited for so long did not just wait for pages to be saved.
const HELD_MS: u64 = 5_000;
/// A disk with so many percent of its pages in use is warned of.
const NEARLY_FULL: u64 = 85;

/// The disks that are not used, hold writers up, or soon refuse them.
pub(super) fn disks(report: &StatusReport) -> Vec<String> {
    let of = |node: &NodeStatus| {
        let name = full_name(&report.nodes, node);
        let disks = node.facts.as_ref().map(|facts| &facts.disks[..]);
        let disks = disks.unwrap_or_default();
        let warnings = disks.iter().flat_map(|disk| {
            let which = disk_name(&name, disk, disks.len());
            [
                failed(&which, disk),
                rotten(&which, disk),
                held(&name, disk),
                nearly_full(&which, disk),
            ]
        });
        warnings.flatten().collect::<Vec<_>>()
    };
    report.nodes.iter().flat_map(of).collect()
}

/// A disk as people know it: by its folder, where the node has several.
pub fn disk_name(node: &str, disk: &DiskFacts, of: usize) -> String {
    match of {
        1 => format!("the disk of {node}"),
        _ => format!("the disk {} of {node}", disk.folder),
    }
}

fn failed(which: &str, disk: &DiskFacts) -> Option<String> {
    (disk.state == DiskState::Failed).then(|| {
        format!(
            "{which} has failed, and is not used: {}; what it had is filled again from other nodes: 'staves disk remove' takes it out, and a node that starts tries it again",
            disk.why
        )
    })
}

fn rotten(which: &str, disk: &DiskFacts) -> Option<String> {
    (disk.bad_pages > 0).then(|| {
        format!(
            "{} of {which} could not be read, or were not what was written, since its node started; the buckets were filled again from other nodes: \
             replace the disk ('staves disk replace') if they become more",
            count(disk.bad_pages, "page"),
        )
    })
}

fn held(name: &str, disk: &DiskFacts) -> Option<String> {
    let why = match disk.waiting {
        0 => "they go as pages are saved, and as the other members of their groups sync them"
            .to_owned(),
        waiting => format!(
            "{} that nobody serves are among them, and stay",
            count(waiting, "bucket")
        ),
    };
    let what = match disk.in_memory_bytes > disk.memory_bytes + disk.memory_bytes / 4 {
        true => format!(
            "pages that are not saved yet take {} of memory, and {} may be there (disk_memory)",
            bytes(disk.in_memory_bytes),
            bytes(disk.memory_bytes)
        ),
        false => format!(
            "records take {} of its journal of {}",
            bytes(disk.journal_taken_bytes),
            bytes(disk.journal_bytes)
        ),
    };
    (disk.held_ms >= HELD_MS).then(|| {
        format!(
            "{name} has had no room for updates of pools on disk for {} s: {what}; {why}",
            disk.held_ms / 1000,
        )
    })
}

fn nearly_full(which: &str, disk: &DiskFacts) -> Option<String> {
    let percent = (disk.used_bytes * 100).checked_div(disk.bytes)?;
    (percent >= NEARLY_FULL).then(|| {
        format!(
            "{which} keeps {percent} % of the pages that it takes ({} of {}): writes that need further pages are refused once it is full (ENOSPC); \
             add disks ('staves disk add') or nodes with disks, or delete volumes",
            bytes(disk.used_bytes),
            bytes(disk.bytes),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_that_hold_writers_up_are_warned_of() {
        let disk = DiskFacts {
            bytes: 100 << 20,
            used_bytes: 84 << 20,
            journal_bytes: 128 << 20,
            journal_taken_bytes: 70 << 20,
            held_ms: 4_999,
            ..DiskFacts::default()
        };
        assert_eq!((held("a", &disk), nearly_full("a", &disk)), (None, None));
        let disk = DiskFacts {
            used_bytes: 85 << 20,
            held_ms: 61_000,
            waiting: 2,
            ..disk
        };
        let text = held("a", &disk).expect("for a minute");
        for part in [
            "a has had",
            "61 s",
            "70.0 MiB of its journal of 128 MiB",
            "2 buckets",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = nearly_full("a", &disk).expect("nearly");
        assert!(
            text.contains("85 %") && text.contains("85.0 MiB of 100 MiB"),
            "{text}"
        );
        assert_eq!(nearly_full("a", &DiskFacts::default()), None, "no disk");
    }

    #[test]
    fn a_disk_that_failed_is_warned_of_by_its_folder() {
        let disk = DiskFacts {
            folder: "/mnt/b".into(),
            state: DiskState::Failed,
            why: "a sync failed".into(),
            ..DiskFacts::default()
        };
        let which = disk_name("a", &disk, 2);
        let text = failed(&which, &disk).expect("it failed");
        assert!(
            text.starts_with("the disk /mnt/b of a has failed"),
            "{text}"
        );
        assert!(text.contains("a sync failed"), "{text}");
        assert_eq!(disk_name("a", &disk, 1), "the disk of a");
        let state = DiskState::Draining;
        let disk = DiskFacts { state, ..disk };
        assert_eq!((failed(&which, &disk), rotten(&which, &disk)), (None, None));
        let bad_pages = 1;
        let text = rotten(&which, &DiskFacts { bad_pages, ..disk });
        let text = text.expect("a page is bad");
        assert!(
            text.starts_with("1 page of the disk /mnt/b of a could not be read"),
            "{text}"
        );
    }
}
