//! Scenarios: small files that read like sentences, one a line.
//!
//! ```text
//! # What it is about.
//! 5 nodes, pool cache 1+2          first; more behind commas: '4 clients', '8 keys', 'counted keys',
//!                                  'clocks apart' (monotonic ones), 'wall clocks apart', 'few descriptors',
//!                                  'memory 4+2' (a region, too), 'memory 1+1 on disk', 'memory 2+1 on disk' (nothing of it may ever be lost), 'files' (a dataset, and no clients but its
//!                                  readers), 'files too' (a dataset beside the other clients), 'two disks' (each node has a second one, which can fail, in
//!                                  a file system of its own), 'volume' (in memory's pool, with clients of both its doors), 'snapshots' (of that volume and a second
//!                                  one, and clones, with a client that makes, reads and deletes them),
//!                                  'log 1+1', 'log 1+2 on disk' (three logs in a pool of their own, one for each way of appending, with writers and readers; nothing of them may ever be lost),
//!                                  'wan 10ms one way' (between any two nodes), 'wan 10ms one way between zones of 2' (n1 and n2 are one); clients are near every node
//! expect stalls below 8s           how long no key may go without an answer
//! expect stalls at every node below 3s   the same, and how long no write to a key may succeed through a node
//! expect stalls at every node but n1 below 3s   the same, but what n1 is asked counts for no write
//! expect losses                    more is lost than the scheme bears: keys may be empty afterwards
//! expect no deaths                 nobody is declared dead
//! after 2s kill the directory's leader
//! cut n1 from n2 one way for 3s
//! restart it without its data
//! drain n2 and wait                within 20 s, whatever faults last
//! wait until healthy
//! ```
//!
//! With 'two disks' there are 'add a disk to WHO', and 'fail', 'drain' ('and wait'), 'resume', 'replace' and 'remove' with 'a disk of WHO' (the newest), 'the first
//! disk of WHO' (which never fails) or 'that disk' (of the last such step). With 'volume' there is 'take the volume over', with 'snapshots' also 'snapshot the volume'.
//!
//! WHO is `n1`, `n1, n2 and n3`, `a random node`, `two random nodes`, `the directory's leader`, `a random follower`
//! (not the leader), `the lowest node` (of those that are up the one with the least id, which makes copies of volumes), `the volume's door` (the node that it is written through), `the log's sequencer` (the node of that of any of the logs), `a log's unit` (another one's node), `the log's sequencer and a unit`, `every node`, or `it` and `them`: whoever the last step was about. What is cut from random nodes is none
//! of them. `the clients` (and the mount beside them) can be cut off and isolated. A step with `for 3s` is undone after that
//! time; the next begins then.

mod action;
pub mod disk;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use self::action::{Action, Who};
use crate::lab::NODES_MAX;
use crate::load::Keys;
use crate::wan::DELAY_MAX;

/// One step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// As it was written.
    pub text: String,
    /// The pause before it.
    pub after: Duration,
    /// The action.
    pub action: Action,
    /// After what time it is undone.
    pub lasting: Option<Duration>,
}

/// The delay between nodes of a scenario.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WanHeading {
    /// The time that each packet takes longer.
    pub one_way: Duration,
    /// So many nodes are one zone, within which there is no delay; 1 if the file has no zones.
    pub zone: usize,
}

/// A scenario.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scenario {
    /// Its file's name, or its seed's.
    pub name: String,
    /// The number of nodes at the beginning.
    pub nodes: usize,
    /// The pool's scheme.
    pub scheme: String,
    /// The clients on contended keys; three more than nodes if the file has no number.
    pub clients: usize,
    /// Such keys.
    pub keys: Keys,
    /// The scheme of a pool with a memory region, if there is one.
    pub memory: Option<String>,
    /// That pool keeps its bytes on the nodes' disks.
    pub on_disk: bool,
    /// Each node has a second disk for that pool, which can fail.
    pub two_disks: bool,
    /// There is a volume in that pool.
    pub volume: bool,
    /// There is a second one, and snapshots and clones of both.
    pub snapshots: bool,
    /// The scheme of a pool with logs, if there is one.
    pub log: Option<String>,
    /// That pool is on the nodes' disks.
    pub log_on_disk: bool,
    /// There is a dataset.
    pub files: bool,
    /// All clients read the dataset; there are no others.
    pub only_files: bool,
    /// Packets between nodes take longer.
    pub wan: Option<WanHeading>,
    /// Nodes' monotonic clocks begin days apart.
    pub clocks_apart: bool,
    /// Nodes' wall clocks are days apart, and can be set.
    pub wall_clocks_apart: bool,
    /// Nodes may open few files and sockets.
    pub few_descriptors: bool,
    /// More is lost than the scheme bears.
    pub losses: bool,
    /// Nodes may be declared dead.
    pub deaths: bool,
    /// The longest time that a key may go without an answer.
    pub stall_max: Duration,
    /// The same bound holds for writes through each of the nodes that there are at first.
    pub everywhere: bool,
    /// Except through this one.
    pub but_node: Option<usize>,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

/// The reason that a file is no scenario.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wrong {
    line: usize,
    text: String,
    reason: String,
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}, '{}': {}", self.line, self.text, self.reason)
    }
}

impl std::error::Error for Wrong {}

/// Reads a scenario.
pub fn parse(name: &str, text: &str) -> Result<Scenario, Wrong> {
    let mut scenario = Scenario {
        name: name.to_owned(),
        scheme: "1+2".to_owned(),
        keys: Keys {
            count: 10,
            counted: false,
        },
        deaths: true,
        stall_max: Duration::from_secs(12),
        ..Scenario::default()
    };
    let mut last = 0;
    for (at, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let wrong = |reason: String| Wrong {
            line: at + 1,
            text: line.to_owned(),
            reason,
        };
        last = at + 1;
        if line.is_empty() {
        } else if scenario.nodes == 0 {
            heading(&mut scenario, line).map_err(wrong)?;
        } else if let Some(rest) = line.strip_prefix("expect ") {
            expectation(&mut scenario, rest).map_err(wrong)?;
        } else {
            scenario.steps.push(step(line).map_err(wrong)?);
        }
    }
    complete(scenario, last)
}

/// Looks at a scenario as a whole; the number of its last line is for what is missing.
fn complete(mut scenario: Scenario, last: usize) -> Result<Scenario, Wrong> {
    let whole = |reason: &str| Wrong {
        line: last,
        text: "the end of the file".into(),
        reason: reason.into(),
    };
    let lacks = |word: &&str| match *word {
        "files" => !scenario.files,
        "two disks" => !scenario.two_disks,
        "volume" => !scenario.volume,
        "snapshots" => !scenario.snapshots,
        "log" => scenario.log.is_none(),
        "log on disk" => !scenario.log_on_disk,
        "memory" => scenario.memory.is_none(),
        "memory on disk" => !scenario.on_disk,
        _ => !scenario.wall_clocks_apart,
    };
    let of_heading = [
        scenario.two_disks.then_some("memory on disk"),
        scenario.volume.then_some("memory"),
        scenario.snapshots.then_some("volume"),
        (scenario.losses && scenario.log.is_some()).then_some("log on disk"),
    ];
    let of_steps = scenario.steps.iter().filter_map(|s| s.action.wants());
    let mut wanted = of_heading.into_iter().flatten().chain(of_steps);
    match (
        scenario.nodes,
        scenario.steps.is_empty(),
        wanted.find(lacks),
    ) {
        (0, ..) => Err(whole("it never says how many nodes there are ('5 nodes')")),
        (_, true, _) => Err(whole("nothing happens in it")),
        (.., Some(word)) => Err(whole(&format!(
            "there is no '{word}' in it: the first line does not say so"
        ))),
        (nodes, false, None) => {
            if scenario.clients == 0 {
                scenario.clients = nodes + 3;
            }
            Ok(scenario)
        }
    }
}

fn heading(scenario: &mut Scenario, line: &str) -> Result<(), String> {
    for part in line.split(',').map(str::trim) {
        let words: Vec<&str> = part.split_whitespace().collect();
        match words[..] {
            [n, "nodes" | "node"] => scenario.nodes = count(n, NODES_MAX)?,
            [n, "clients" | "client"] => scenario.clients = count(n, 64)?,
            ["counted", "keys"] => scenario.keys.counted = true,
            [n, "keys" | "key"] => scenario.keys.count = count(n, 1000)?,
            ["pool", "cache", scheme] => scenario.scheme = scheme.to_owned(),
            ["memory", scheme] => scenario.memory = Some(scheme.to_owned()),
            ["memory", scheme, "on", "disk"] => {
                (scenario.memory, scenario.on_disk) = (Some(scheme.to_owned()), true);
            }
            ["two", "disks"] => scenario.two_disks = true,
            ["log", scheme] => scenario.log = Some(scheme.to_owned()),
            ["log", scheme, "on", "disk"] => {
                (scenario.log, scenario.log_on_disk) = (Some(scheme.to_owned()), true);
            }
            ["volume"] => scenario.volume = true,
            ["snapshots"] => scenario.snapshots = true,
            ["wan", t, "one", "way", ref zones @ ..] => scenario.wan = Some(wan(t, zones)?),
            ["files"] => (scenario.files, scenario.only_files) = (true, true),
            ["files", "too"] => scenario.files = true,
            ["clocks", "apart"] => scenario.clocks_apart = true,
            ["wall", "clocks", "apart"] => scenario.wall_clocks_apart = true,
            ["few", "descriptors"] => scenario.few_descriptors = true,
            _ => {
                return Err(format!(
                    "'{part}' is not known here; the first line is like '5 nodes, pool cache 1+2, 6 clients, 10 keys, counted keys, memory 4+2, memory 1+1 on disk, two disks, volume, snapshots, log 1+2, log 1+1 on disk, files too, wan 10ms one way, wan 10ms one way between zones of 2, clocks apart, wall clocks apart, few descriptors'"
                ));
            }
        }
    }
    match scenario.nodes {
        0 => Err("the first line says how many nodes there are: '5 nodes'".into()),
        _ => Ok(()),
    }
}

fn wan(one_way: &str, zones: &[&str]) -> Result<WanHeading, String> {
    let one_way = time(one_way).ok().filter(|t| *t <= DELAY_MAX);
    let one_way = one_way.ok_or("a delay is a time like 10ms, and at most 2s")?;
    let zone = match zones {
        [] => 1,
        ["between", "zones", "of", n] => count(n, NODES_MAX)?,
        _ => return Err("packets can be delayed 'between zones of 2'".into()),
    };
    Ok(WanHeading { one_way, zone })
}

fn expectation(scenario: &mut Scenario, text: &str) -> Result<(), String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        ["losses"] => scenario.losses = true,
        ["no", "deaths"] => scenario.deaths = false,
        ["stalls", "below", t] => scenario.stall_max = time(t)?,
        ["stalls", "at", "every", "node", "below", t] => {
            (scenario.stall_max, scenario.everywhere) = (time(t)?, true);
        }
        ["stalls", "at", "every", "node", "but", n, "below", t] => {
            (scenario.stall_max, scenario.everywhere) = (time(t)?, true);
            scenario.but_node = Some(count(n.trim_start_matches('n'), NODES_MAX)? - 1);
        }
        _ => {
            let all = "'losses', 'no deaths', 'stalls below 8s', 'stalls at every node below 3s' and 'stalls at every node but n1 below 3s'";
            return Err(format!("one can expect {all}"));
        }
    }
    Ok(())
}

fn count(text: &str, max: usize) -> Result<usize, String> {
    let n = text.parse().ok().filter(|n| (1..=max).contains(n));
    n.ok_or_else(|| format!("'{text}' is no number from 1 to {max}"))
}

fn time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is no time; write 500ms, 3s or 2m");
    let (digits, unit) = text.split_at(
        text.find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len()),
    );
    let n: u64 = digits.parse().map_err(|_| wrong())?;
    let ms = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        _ => return Err(wrong()),
    };
    n.checked_mul(ms)
        .filter(|ms| *ms <= 3_600_000)
        .map(Duration::from_millis)
        .ok_or_else(wrong)
}

fn step(line: &str) -> Result<Step, String> {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    let mut after = Duration::ZERO;
    if words[0] == "after" {
        after = time(words.get(1).ok_or("after what time?")?)?;
        words.drain(..2);
    }
    let mut lasting = None;
    if let [.., "for", t] = words[..] {
        lasting = Some(time(t)?);
        words.truncate(words.len() - 2);
    }
    let action = action::action(&words)?;
    match lasting {
        Some(_) if !action.is_undone() => {
            return Err(
                "'for' goes with pause, cut, isolate, slow, fill, flood, starve and run".into(),
            );
        }
        None if action == Action::Run => return Err("run for how long? 'run for 5s'".into()),
        _ => {}
    }
    Ok(Step {
        text: line.to_owned(),
        after,
        action,
        lasting,
    })
}
