//! The mounts that use what a pool holds.

use std::collections::BTreeSet;

use staves_node::status::StatusReport;

/// The mounts that use datasets, by their last reports to nodes.
pub fn in_use(report: &StatusReport, which: impl Fn(&str) -> bool) -> Option<String> {
    let facts = report.nodes.iter().filter_map(|node| node.facts.as_ref());
    let uses = facts.flat_map(|facts| &facts.uses);
    let mounts: BTreeSet<&str> = uses
        .filter(|one| which(&one.dataset))
        .map(|one| one.by.as_str())
        .collect();
    let mounts: Vec<&str> = mounts.into_iter().collect();
    (!mounts.is_empty()).then(|| format!("mounted at {}", mounts.join(", ")))
}

/// Describes the fate of mounts whose memory is taken away.
pub fn goes_on(mounted: String) -> String {
    format!(
        "it is still {mounted}: what is read there comes from the source from now on, as slowly as that is"
    )
}
