//! The report in one plain sentence: how it is, why, what is done about it, what may still happen.

use staves_model::Medium;

use super::names::full_name;
use super::unheard::cut_links;
use super::waits::{doubled, waits_for_copies, waits_for_disks, waits_for_unflushed};
use super::{PoolStatus, State, StatusReport, rebuild, room};

pub(super) fn sentence(report: &StatusReport) -> String {
    if report.cluster.is_empty() {
        return "Starting: the node has not joined a cluster yet.".into();
    }
    let head = match report.state {
        State::Healthy => "Healthy",
        State::Degraded => "Degraded",
        State::Critical => "Critical",
    };
    let mut parts = vec![nodes(report)];
    if report.has_no_home() {
        parts.push("no node may hold buckets: start one, or resume one".into());
    }
    if report.pools.is_empty() {
        parts.push("there is no pool, so nothing is served: 'staves pool create' makes one".into());
    }
    parts.extend(report.pools.iter().flat_map(|of| pool(report, of)));
    let mut with_buckets = report
        .pools
        .iter()
        .filter(|pool| pool.buckets > 0)
        .peekable();
    if report.state == State::Healthy && with_buckets.peek().is_some() {
        let lacks = with_buckets.any(|pool| report.lacks(pool).is_some());
        parts.push(match lacks {
            true => "every bucket has the copies that there are nodes for".into(),
            false => "every bucket has all its copies".into(),
        });
    }
    parts.extend(room::sentences(report));
    parts.extend(refused(report));
    parts.extend(rebuild::rebuild(report));
    parts.extend(directory(report));
    parts.push(tolerance(report));
    format!("{head}: {}.", parts.join("; "))
}

/// The number of nodes, and the names of those that are not well.
fn nodes(report: &StatusReport) -> String {
    let up = report.nodes.iter().filter(|node| node.up).count();
    let named = |which: &dyn Fn(&super::NodeStatus) -> bool| {
        let names = report
            .nodes
            .iter()
            .filter(|node| which(node))
            .map(|node| full_name(&report.nodes, node));
        names.collect::<Vec<_>>()
    };
    let mut text = format!("{} up", count(up as u32, "node"));
    if report.directory.leader.is_none() {
        // Nobody can find a node dead: the map stays as it was.
        text += " by the last map that a majority knew";
        let silent = named(&|node| node.up && node.silent);
        if !silent.is_empty() {
            text += &format!(
                ", of which {} {} not answer",
                listed(&silent),
                do_(silent.len())
            );
        }
    }
    // Who does not answer a tool may only be out of its reach; pings are the nodes' own.
    let unheard = named(&|node| node.up && node.silent_ms.is_some());
    if report.directory.leader.is_some() && !unheard.is_empty() {
        text += &format!(", {}", silent_ones(report, &unheard));
    }
    let down = named(&|node| !node.up);
    if !down.is_empty() {
        text += &format!(", {} down", listed(&down));
    }
    let stopping = named(&|node| node.state() == "stopping");
    if !stopping.is_empty() {
        text += &format!(", {} stopping", listed(&stopping));
    }
    let holds = |node: &super::NodeStatus| node.depending;
    let drains = |node: &super::NodeStatus| node.up && node.draining && !node.is_stopping();
    let drained = named(&|node| drains(node) && holds(node) == 0);
    if !drained.is_empty() {
        text += &format!(
            ", {} drained (to give buckets again: 'staves node resume')",
            listed(&drained)
        );
    }
    let draining = named(&|node| drains(node) && holds(node) > 0);
    if !draining.is_empty() {
        let of_draining = report.nodes.iter().filter(|node| drains(node));
        let left: u32 = of_draining.map(holds).sum();
        text += &format!(
            ", {} draining ({} left to move)",
            listed(&draining),
            count(left, "bucket")
        );
    }
    for node in report.nodes.iter().filter(|node| drains(node)) {
        if let Some(what) = &node.waits_for {
            text += &format!(" ({} waits: {what})", full_name(&report.nodes, node));
        }
    }
    text
}

/// Nodes that do not answer, and have not been found dead, with the longest silence.
fn silent_ones(report: &StatusReport, names: &[String]) -> String {
    let silence = report.nodes.iter().filter_map(|node| node.silent_ms);
    let (nodes, ms) = (
        count(names.len() as u32, "node"),
        silence.max().unwrap_or(0),
    );
    let since = format!(" for {}.{} s", ms / 1000, ms % 1000 / 100);
    format!("of which {nodes} silent{since} ({})", listed(names))
}

/// The faults of a pool's buckets, the worst first.
fn pool(report: &StatusReport, pool: &PoolStatus) -> Vec<String> {
    let end = if pool.may_start_empty {
        "and start empty"
    } else {
        "and wait for the return of a node that holds their data"
    };
    let have_lost = match &pool.lost_regions[..] {
        [] => format!("lost more members than {} bears {end}", pool.scheme),
        regions => {
            let (noun, them) = match regions {
                [_] => ("region", "it"),
                _ => ("regions", "them"),
            };
            let regions: Vec<String> = regions.iter().map(|name| format!("'{name}'")).collect();
            format!(
                "lost more members than {} bears: bytes of {noun} {} are gone, unless a node that was only cut off \
                 comes back ('staves memory delete', or of a volume 'staves volume delete', gives {them} up)",
                pool.scheme,
                listed(&regions)
            )
        }
    };
    let doubled = doubled(report, pool);
    let unwritable = waits_for_copies(pool);
    let cases = [
        (pool.lost, have_lost.as_str()),
        (pool.starting, "not begun yet"),
        (
            pool.unanswered,
            "with a data bucket that nobody answers for",
        ),
        (
            pool.changing.saturating_sub(pool.unanswered),
            "moving on to new members",
        ),
        (pool.short, "short of complete copies"),
        (pool.unwritable, &unwritable),
        (pool.doubled, &doubled),
    ];
    let of = |many: u32, what: &str| {
        format!(
            "{many} of {} of pool '{}' {what}",
            count(pool.buckets, "bucket"),
            pool.name
        )
    };
    let cases = cases.into_iter().filter(|(many, _)| *many > 0);
    let cases = cases.map(|(many, what)| of(many, what));
    let more = [
        waiting(report, pool),
        waits_for_disks(report, pool),
        waits_for_unflushed(report, pool),
        loading(pool),
    ];
    cases.chain(more.into_iter().flatten()).collect()
}

/// Buckets that no node holds: the first of them, data before parity.
fn waiting(report: &StatusReport, pool: &PoolStatus) -> Option<String> {
    let first = pool.waiting.iter().min_by_key(|w| (w.bucket, w.group))?;
    let others = match pool.waiting.len() - 1 {
        0 => " waits".to_owned(),
        1 => " and 1 other wait".to_owned(),
        n => format!(" and {n} others wait"),
    };
    let what = match first.has_nodes {
        true if pool.medium == Medium::Disk.word() => {
            "a node with room on its disks: add a disk or a node with one, or give the pool more room"
        }
        false if pool.medium == Medium::Disk.word() => {
            "another node with a disk: add one, or bring one back that is down"
        }
        true if cut_links(report).is_some() => {
            "a node with room that its others reach: mend the network, add one, or give the pool more memory"
        }
        true => "a node with room: add one, or give the pool more memory",
        false => "another node: add one, or give the pool more memory",
    };
    Some(format!(
        "bucket {} of group {} of pool '{}'{others} for {what}",
        first.bucket, first.group, pool.name
    ))
}

/// Regions that are partly without parity: a load goes on, or was broken off, which nobody but its owner can know.
fn loading(pool: &PoolStatus) -> Option<String> {
    let names: Vec<String> = pool
        .loading_regions
        .iter()
        .map(|name| format!("'{name}'"))
        .collect();
    let (noun, verb, them) = match names.len() {
        0 => return None,
        1 => ("region", "has", "it"),
        _ => ("regions", "have", "each"),
    };
    Some(format!(
        "{noun} {} {verb} no parity where it is being loaded, or where a load was broken off ('staves memory protect' ends \
         that for {them})",
        listed(&names)
    ))
}

/// The nodes that have refused clients in the last minute.
fn refused(report: &StatusReport) -> Option<String> {
    let refuse = |node: &&super::NodeStatus| {
        let facts = node.facts.as_ref();
        facts.is_some_and(|facts| facts.clients_refused > 0)
    };
    let nodes: Vec<String> = report
        .nodes
        .iter()
        .filter(refuse)
        .map(|node| full_name(&report.nodes, node))
        .collect();
    (!nodes.is_empty()).then(|| {
        format!(
            "{} refused clients in the last minute (all of clients_max or of the file descriptors are taken: see the log)",
            listed(&nodes)
        )
    })
}

fn directory(report: &StatusReport) -> Option<String> {
    let down = report.voters_down();
    let voters = count(report.directory.voters.len() as u32, "voter");
    match report.undecided() {
        Some(text) => Some(format!(
            "{text}: nothing can be repaired, and what needs a repair does not answer"
        )),
        None if down > 0 => Some(format!("{down} of the directory's {voters} down")),
        None => None,
    }
}

/// The reason why no node leads the directory, as far as can be seen.
pub(super) fn no_leader(report: &StatusReport) -> String {
    let missed = report.voters_missed();
    let all = report.directory.voters.len();
    let voters = count(all as u32, "voter");
    let name = |id: &u64| {
        let node = report.nodes.iter().find(|node| node.id == *id);
        node.map_or(format!("node {id}"), |node| full_name(&report.nodes, node))
    };
    let names = listed(&missed.iter().map(name).collect::<Vec<_>>());
    let who = format!("of its {voters} {names} {} not answer", do_(missed.len()));
    match missed.len() {
        0 => format!("the directory has no leader that answers, of {voters}"),
        n if all - n < all / 2 + 1 => format!("the directory has no majority: {who}"),
        _ => format!("the directory has no leader that answers: {who}"),
    }
}

fn do_(nodes: usize) -> &'static str {
    if nodes == 1 { "does" } else { "do" }
}

/// The number of nodes that may still be lost, and its limit if that is not the scheme.
fn tolerance(report: &StatusReport) -> String {
    let Some(nodes) = report.tolerates else {
        return "no further loss is borne".into();
    };
    let text = match nodes {
        0 => "no node may be lost".to_owned(),
        1 => "any 1 more node may be lost".to_owned(),
        n => format!("any {n} more nodes may be lost"),
    };
    let pools = || report.pools.iter().filter(|pool| pool.buckets > 0);
    let by_data = pools().filter_map(|pool| pool.tolerates).min();
    if by_data.is_some_and(|by_data| by_data > nodes) {
        let voters = count(report.directory.voters.len() as u32, "voter");
        return format!("{text} (the directory has {voters})");
    }
    let parity = |pool: &PoolStatus| {
        let (_, k) = pool.scheme.rsplit_once('+')?;
        k.parse::<u8>().ok()
    };
    let least = || pools().filter(|pool| pool.tolerates == by_data && !pool.has_sources());
    if let Some(pool) = least().find(|pool| parity(pool) > Some(pool.parity_possible)) {
        return format!(
            "{text} (pool '{}' asks for {}: add nodes)",
            pool.name, pool.scheme
        );
    }
    match least().find(|pool| parity(pool) == Some(0)) {
        Some(pool) => format!(
            "{text} (pool '{}' has {}: what a node holds of it is gone with the node)",
            pool.name, pool.scheme
        ),
        None => text,
    }
}

/// A number and its noun.
fn count(number: u32, noun: &str) -> String {
    if number == 1 {
        format!("1 {noun}")
    } else {
        format!("{number} {noun}s")
    }
}

/// Names, as a sentence lists them; the first few of many.
pub(super) fn listed(names: &[String]) -> String {
    const SHOWN: usize = 5;
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [most @ .., last] if names.len() <= SHOWN => format!("{} and {last}", most.join(", ")),
        _ => format!(
            "{} and {} others",
            names[..SHOWN].join(", "),
            names.len() - SHOWN
        ),
    }
}
