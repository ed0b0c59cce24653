//! The actions of steps, and their words.

use super::count;
use super::disk::{self, DiskAction, Whose};
use crate::lab::NODES_MAX;
use crate::load::flood;

/// The nodes of a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Who {
    /// These, counted from 0.
    Nodes(Vec<usize>),
    /// So many of those that run, by the seed.
    Random(usize),
    /// The current leader of the directory.
    Leader,
    /// So many of the others that run, by the seed.
    Followers(usize),
    /// The nodes of the last step.
    Last,
    /// All.
    Every,
    /// Of those that are up, the one with the least id: what is to be done to volumes is done by it.
    Lowest,
    /// The one through which the volume is written.
    VolumeDoor,
    /// That of the sequencer of any of the logs, by the seed.
    LogSequencer,
    /// One that answers for a unit of a log and has not its sequencer, if there is one.
    LogUnit,
    /// Both at once.
    LogBoth,
    /// Not nodes: where clients are.
    Clients,
}

/// The action of a step.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the file's own words
pub enum Action {
    Kill(Who),
    Restart { who: Who, forget: bool },
    Stop(Who),
    Pause(Who),
    Cut { from: Who, to: Who, one_way: bool },
    Isolate(Who),
    Slow { who: Who, rate: String },
    Fill(Who),
    Flood { who: Who, kind: flood::FloodKind },
    Starve(Who),
    SetClock { who: Who, to: String },
    Heal,
    Join,
    Drain { who: Who, waits: bool },
    TakeBack(Who),
    Disk { action: DiskAction, whose: Whose },
    TakeOver,
    Snapshot,
    Roll,
    SetScheme(String),
    Overwrite,
    Flip(Who),
    WaitHealthy,
    Run,
}

impl Action {
    /// The fault's kind, for counting; `None` for what is no fault.
    pub fn fault(&self) -> Option<&'static str> {
        Some(match self {
            Action::Kill(_) => "kill",
            Action::Restart { forget: true, .. } => "restart without data",
            Action::Restart { .. } => "restart",
            Action::Stop(_) => "stop",
            Action::Pause(_) => "pause",
            Action::Cut { from, to, one_way } => match (is_of(from, to), one_way) {
                (Some(Who::Clients), _) => "cut of clients",
                (Some(_), true) => "one-way cut of the leader",
                (Some(_), false) => "cut of the leader",
                (None, true) => "one-way cut",
                (None, false) => "cut",
            },
            Action::Isolate(_) => "isolation",
            Action::Slow { .. } => "slow link",
            Action::Fill(_) => "full disk",
            Action::Flood { kind, .. } => match kind {
                flood::FloodKind::Connections => "flood of connections",
                flood::FloodKind::Unfinished => "flood of unfinished values",
                flood::FloodKind::Reads => "flood of reads",
                flood::FloodKind::Idle => "idle clients",
            },
            Action::Starve(_) => "starvation",
            Action::SetClock { .. } => "wall clock set",
            Action::Join => "join",
            Action::Drain { .. } => "drain",
            Action::Disk { action, .. } => action.fault(),
            Action::TakeOver => "take-over of the volume",
            Action::Snapshot => "snapshot",
            Action::Roll => "rolling restart",
            Action::SetScheme(_) => "scheme change",
            Action::Overwrite => "overwriting",
            Action::Flip(_) => "bit flips",
            Action::Heal | Action::TakeBack(_) | Action::WaitHealthy | Action::Run => return None,
        })
    }
}

/// The clients or the directory's leader, if a cut is of theirs.
fn is_of<'a>(from: &'a Who, to: &'a Who) -> Option<&'a Who> {
    let special = |who: &&Who| matches!(who, Who::Clients | Who::Leader);
    [from, to].into_iter().find(special)
}

impl Action {
    /// The word that the first line must have for it.
    pub(super) fn wants(&self) -> Option<&'static str> {
        match self {
            Action::Overwrite | Action::Flip(_) => Some("files"),
            Action::SetClock { .. } => Some("wall clocks apart"),
            Action::Disk { .. } => Some("two disks"),
            Action::TakeOver => Some("volume"),
            Action::Snapshot => Some("snapshots"),
            action if action.is_of_log() => Some("log"),
            _ => None,
        }
    }

    /// True if it is done to nodes of a log.
    fn is_of_log(&self) -> bool {
        let who = match self {
            Action::Kill(who)
            | Action::Restart { who, .. }
            | Action::Stop(who)
            | Action::Pause(who)
            | Action::Isolate(who)
            | Action::Slow { who, .. }
            | Action::Fill(who)
            | Action::Starve(who)
            | Action::Drain { who, .. }
            | Action::Cut { from: who, .. } => who,
            _ => return false,
        };
        matches!(who, Who::LogSequencer | Who::LogUnit | Who::LogBoth)
    }

    /// True if it lasts until it is undone.
    pub(super) fn is_undone(&self) -> bool {
        matches!(
            self,
            Action::Pause(_)
                | Action::Cut { .. }
                | Action::Isolate(_)
                | Action::Slow { .. }
                | Action::Fill(_)
                | Action::Flood { .. }
                | Action::Starve(_)
                | Action::Run
        )
    }
}

pub(super) fn action(words: &[&str]) -> Result<Action, String> {
    let Some((verb, rest)) = words.split_first() else {
        return Err("nothing is to be done".into());
    };
    if let Some(of_disk) = disk::action(verb, rest) {
        return of_disk;
    }
    Ok(match (*verb, rest) {
        (verb, [.., "the", "clients"]) if !matches!(verb, "cut" | "isolate") => {
            return Err("clients can only be isolated, and cut off".into());
        }
        ("kill", rest) => Action::Kill(who(rest)?),
        ("restart", [rest @ .., "without", "its" | "their", "data"]) => Action::Restart {
            who: who(rest)?,
            forget: true,
        },
        ("restart", rest) => Action::Restart {
            who: who(rest)?,
            forget: false,
        },
        ("stop", rest) => Action::Stop(who(rest)?),
        ("pause", rest) => Action::Pause(who(rest)?),
        ("isolate", rest) => Action::Isolate(who(rest)?),
        ("cut", rest) => cut(rest)?,
        ("slow", [rest @ .., "to", rate]) => Action::Slow {
            who: who(rest)?,
            rate: (*rate).to_owned(),
        },
        ("fill", ["the", "disk", "of", rest @ ..]) => Action::Fill(who(rest)?),
        ("flood", rest) => flood(rest)?,
        ("starve", rest) => Action::Starve(who(rest)?),
        ("set", ["the", "clock", "of", rest @ ..]) => set_clock(rest)?,
        ("drain", [rest @ .., "and", "wait"]) => Action::Drain {
            who: who(rest)?,
            waits: true,
        },
        ("drain", rest) => Action::Drain {
            who: who(rest)?,
            waits: false,
        },
        ("take", ["the", "volume", "over"]) => Action::TakeOver,
        ("snapshot", ["the", "volume"]) => Action::Snapshot,
        ("take", [rest @ .., "back"]) => Action::TakeBack(who(rest)?),
        ("set", ["pool", "cache", "to", scheme]) => Action::SetScheme((*scheme).to_owned()),
        ("overwrite", ["the", "files"]) => Action::Overwrite,
        ("flip", ["bits", "of", rest @ ..]) => Action::Flip(who(rest)?),
        ("heal", []) => Action::Heal,
        ("join", ["a", "node"]) => Action::Join,
        ("roll", ["every", "node"]) => Action::Roll,
        ("wait", ["until", "healthy"]) => Action::WaitHealthy,
        ("run", []) => Action::Run,
        _ => {
            return Err("one can kill, restart, stop, pause, isolate, drain WHO; drain WHO and wait; take WHO back; cut WHO from WHO [one way]; slow WHO to 1mbit; \
                 fill the disk of WHO; flood WHO with connections, unfinished values, reads or idle clients; \
                 starve WHO; set the clock of WHO 2d ahead, 3d behind or right; join a node; roll every node; set pool cache to 1+1; overwrite the files; flip bits of WHO; \
                 add a disk to WHO; fail, drain [and wait], resume, replace, remove a disk of WHO, the first disk of WHO or that disk; take the volume over; snapshot the volume; heal; wait until healthy; run for 5s"
                .into());
        }
    })
}

fn flood(words: &[&str]) -> Result<Action, String> {
    let words = words.join(" ");
    let known = flood::KINDS.into_iter().find_map(|(kind, name)| {
        let nodes = words.strip_suffix(name)?.trim_end().strip_suffix("with")?;
        Some((nodes, kind))
    });
    let (nodes, kind) = known.ok_or_else(|| {
        let all = flood::KINDS.map(|(_, name)| name).join(", ");
        format!("a node can be flooded with {all}: 'flood n1 with reads'")
    })?;
    let nodes: Vec<&str> = nodes.split_whitespace().collect();
    let who = who(&nodes)?;
    Ok(Action::Flood { who, kind })
}

/// The clock's offset, in the words of `faketime`.
fn set_clock(words: &[&str]) -> Result<Action, String> {
    let days = |text: &str| count(text.strip_suffix('d').unwrap_or_default(), 1000);
    let (nodes, to) = match words {
        [nodes @ .., "right"] => (nodes, "+0d".to_owned()),
        [nodes @ .., by, "ahead"] => (nodes, format!("+{}d", days(by)?)),
        [nodes @ .., by, "behind"] => (nodes, format!("-{}d", days(by)?)),
        _ => return Err("set the clock of WHO 2d ahead, 3d behind, or right".into()),
    };
    let who = who(nodes)?;
    Ok(Action::SetClock { who, to })
}

fn cut(words: &[&str]) -> Result<Action, String> {
    let (words, one_way) = match words {
        [rest @ .., "one", "way"] => (rest, true),
        rest => (rest, false),
    };
    let at = words
        .iter()
        .position(|w| *w == "from")
        .ok_or("cut WHO from WHO")?;
    Ok(Action::Cut {
        from: who(&words[..at])?,
        to: who(&words[at + 1..])?,
        one_way,
    })
}

fn number(text: &str) -> Result<usize, String> {
    match text {
        "two" => Ok(2),
        "three" => Ok(3),
        text => count(text, NODES_MAX),
    }
}

pub(super) fn who(words: &[&str]) -> Result<Who, String> {
    Ok(match words {
        ["a", "random", "node"] => Who::Random(1),
        ["a", "random", "follower"] => Who::Followers(1),
        [n, "random", "nodes"] => Who::Random(number(n)?),
        [n, "random", "followers"] => Who::Followers(number(n)?),
        ["the", "directory's", "leader"] => Who::Leader,
        ["it" | "them"] => Who::Last,
        ["every", "node"] => Who::Every,
        ["the", "lowest", "node"] => Who::Lowest,
        ["the", "volume's", "door"] => Who::VolumeDoor,
        ["the", "log's", "sequencer"] => Who::LogSequencer,
        ["a", "log's", "unit"] => Who::LogUnit,
        ["the", "log's", "sequencer", "and", "a", "unit"] => Who::LogBoth,
        ["the", "clients"] => Who::Clients,
        names => {
            let names = names.iter().filter(|n| **n != "and");
            let one = |name: &&str| {
                let name = name.trim_end_matches(',');
                let n = name
                    .strip_prefix('n')
                    .and_then(|n| count(n, NODES_MAX).ok());
                n.map(|n| n - 1).ok_or_else(|| {
                    format!("'{name}' is nobody; say n1, 'a random node', 'a random follower', 'the directory's leader', 'the lowest node', 'every node' or 'it'")
                })
            };
            match names.map(one).collect::<Result<Vec<_>, _>>()? {
                nobody if nobody.is_empty() => return Err("who?".into()),
                nodes => Who::Nodes(nodes),
            }
        }
    })
}
