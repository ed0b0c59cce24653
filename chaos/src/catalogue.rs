//! The scenarios that come with the program.

use crate::scenario::{Scenario, parse};

macro_rules! scenarios {
    ($($name:literal)*) => {
        const FILES: &[(&str, &str)] = &[$(($name, include_str!(concat!("../scenarios/", $name, ".txt")))),*];
    };
}

scenarios! {
    "kill-two-in-turn" "kill-and-come-straight-back" "pause-past-the-lease" "cut-off-but-asked" "partial-and-one-way"
    "slow-link" "full-disk" "members-come-and-go" "drain-beside-a-cut" "rolling-restart" "roll-without-waits" "roll-three-without-waits" "new-folder" "clocks-apart" "catch-up"
    "all-restart" "all-copies-die" "majority-lost" "a-bit-of-each" "heard-but-deaf" "moved-while-deaf" "kill-two-at-once"
    "starved" "flooded" "wall-clocks" "leader-cut-from-one" "leader-cut-from-two" "leader-unheard-by-two" "leader-reaches-one" "followers-cut" "ring-of-cuts" "star-of-cuts" "memory-cut-from-three"
    "memory-loses-two" "memory-troubles" "disks-lose-power" "disk-fails" "disks-change" "disk-drains-without-power" "coded-disks-lose-power" "volume-moves" "snapshots-in-trouble" "log-sequencer-killed" "log-unit-killed" "log-both-killed" "log-in-trouble" "logs-lose-power" "wide-area" "wide-area-zones" "files-lose-all-but-one" "files-cut-off" "files-change"
}

/// Scenarios that `cargo test --workspace` runs (`crates/cli/tests/chaos`).
pub const TESTED: [&str; 6] = [
    "a-bit-of-each",
    "all-restart",
    "kill-two-at-once",
    "files-lose-all-but-one",
    "files-cut-off",
    "files-change",
];

/// Their names.
pub fn names() -> Vec<&'static str> {
    FILES.iter().map(|(name, _)| *name).collect()
}

/// All of them.
pub fn all() -> anyhow::Result<Vec<Scenario>> {
    FILES
        .iter()
        .map(|(name, text)| parse(name, text).map_err(|e| anyhow::anyhow!("{name}: {e}")))
        .collect()
}

/// One of them.
pub fn named(name: &str) -> anyhow::Result<Option<Scenario>> {
    let file = FILES.iter().find(|(known, _)| *known == name);
    file.map(|(name, text)| parse(name, text).map_err(|e| anyhow::anyhow!("{name}: {e}")))
        .transpose()
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_file_is_in_the_list_and_reads() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
        let files = std::fs::read_dir(folder)
            .expect("the folder is there")
            .count();
        assert_eq!(files, super::names().len());
        for scenario in super::all().expect("they read") {
            assert!(scenario.steps.len() > 1, "{}", scenario.name);
        }
    }
}
