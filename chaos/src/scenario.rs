//! Scenarios: small files that read like sentences, one a line.
//!
//! ```text
//! # What it is about.
//! 5 nodes, pool cache 1+2          first; more behind commas: '4 clients', '8 keys', 'counted keys',
//!                                  'clocks apart' (monotonic ones), 'wall clocks apart', 'few descriptors',
//!                                  'memory 4+2' (a region, too), 'memory 1+1 on disk' (nothing of it may ever be lost), 'files' (a dataset, and no clients but its
//!                                  readers), 'files too' (a dataset beside the other clients)
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
//! WHO is `n1`, `n1, n2 and n3`, `a random node`, `two random nodes`, `the directory's leader`, `a random follower`
//! (not the leader), `every node`, or `it` and `them`: whoever the last step was about. What is cut from random nodes is none
//! of them. `the clients` (and the mount beside them) can be cut off and isolated. A step with `for 3s` is undone after that
//! time; the next begins then.

mod action;

use std::time::Duration;

pub use self::action::{Action, Who};
use crate::lab::NODES_MAX;
use crate::load::Keys;

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
    /// There is a dataset.
    pub files: bool,
    /// All clients read the dataset; there are no others.
    pub only_files: bool,
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
        _ => !scenario.wall_clocks_apart,
    };
    let mut wanted = scenario.steps.iter().filter_map(|s| s.action.wants());
    match (
        scenario.nodes,
        scenario.steps.is_empty(),
        wanted.find(lacks),
    ) {
        (0, ..) => Err(whole("it never says how many nodes there are ('5 nodes')")),
        (_, true, _) => Err(whole("nothing happens in it")),
        (.., Some(word)) => Err(whole(&format!(
            "there are no {word} in it: the first line does not say '{word}'"
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
            ["files"] => (scenario.files, scenario.only_files) = (true, true),
            ["files", "too"] => scenario.files = true,
            ["clocks", "apart"] => scenario.clocks_apart = true,
            ["wall", "clocks", "apart"] => scenario.wall_clocks_apart = true,
            ["few", "descriptors"] => scenario.few_descriptors = true,
            _ => {
                return Err(format!(
                    "'{part}' is not known here; the first line is like '5 nodes, pool cache 1+2, 6 clients, 10 keys, counted keys, memory 4+2, memory 1+1 on disk, files too, clocks apart, wall clocks apart, few descriptors'"
                ));
            }
        }
    }
    match scenario.nodes {
        0 => Err("the first line says how many nodes there are: '5 nodes'".into()),
        _ => Ok(()),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::flood::FloodKind;

    #[test]
    fn sentences_are_understood() {
        let text = "# about\n5 nodes, pool cache 1+1, 7 keys, counted keys, clocks apart\nexpect stalls below 9s\n\
            after 2s kill the directory's leader\nrestart it without its data\n\
            cut n1, n2 from n3 and n4 one way for 3s\nslow a random node to 1mbit for 500ms # comment\n\
            fill the disk of n2 for 1s\nrun for 5s\n";
        let s = parse("x", text).expect("it parses");
        assert_eq!(
            (s.nodes, s.scheme.as_str(), s.clocks_apart),
            (5, "1+1", true)
        );
        assert_eq!((s.keys.count, s.keys.counted), (7, true));
        assert_eq!(s.stall_max, Duration::from_secs(9));
        assert_eq!(s.steps[0].after, Duration::from_secs(2));
        assert_eq!(s.steps[0].action, Action::Kill(Who::Leader));
        assert_eq!(
            s.steps[1].action,
            Action::Restart {
                who: Who::Last,
                forget: true
            }
        );
        let (from, to) = (Who::Nodes(vec![0, 1]), Who::Nodes(vec![2, 3]));
        assert_eq!(
            s.steps[2].action,
            Action::Cut {
                from,
                to,
                one_way: true
            }
        );
        assert_eq!(s.steps[2].lasting, Some(Duration::from_secs(3)));
        assert_eq!(s.steps.len(), 6);
    }

    #[test]
    fn sentences_about_files_are_understood() {
        let text = "3 nodes, files\ncut the clients from n1 and n2 for 1s\noverwrite the files\nflip bits of n3\n";
        let s = parse("x", text).expect("it parses");
        assert!(s.files);
        let actions: Vec<Action> = s.steps.into_iter().map(|step| step.action).collect();
        let cut = Action::Cut {
            from: Who::Clients,
            to: Who::Nodes(vec![0, 1]),
            one_way: false,
        };
        let flip = Action::Flip(Who::Nodes(vec![2]));
        assert_eq!(actions, [cut, Action::Overwrite, flip]);
    }

    #[test]
    fn sentences_about_floods_and_clocks_are_understood() {
        let text = "5 nodes, memory 2+1, files too, wall clocks apart, few descriptors\nexpect no deaths\n\
            expect stalls at every node but n2 below 3s\nflood the directory's leader with unfinished values for 3s\nflood n1 and n2 with reads\nstarve every node for 2s\n\
            set the clock of n2 3d behind\nset the clock of every node right\ncut two random followers from the directory's leader one way for 1s\n";
        let s = parse("x", text).expect("it parses");
        assert!(s.files && !s.only_files && s.wall_clocks_apart && s.few_descriptors && !s.deaths);
        assert!(s.everywhere && s.but_node == Some(1));
        let actions: Vec<Action> = s.steps.into_iter().map(|step| step.action).collect();
        let flood = |who, kind| Action::Flood { who, kind };
        let clock = |who, to: &str| Action::SetClock { who, to: to.into() };
        let cut = Action::Cut {
            from: Who::Followers(2),
            to: Who::Leader,
            one_way: true,
        };
        assert_eq!(
            actions,
            [
                flood(Who::Leader, FloodKind::Unfinished),
                flood(Who::Nodes(vec![0, 1]), FloodKind::Reads),
                Action::Starve(Who::Every),
                clock(Who::Nodes(vec![1]), "-3d"),
                clock(Who::Every, "+0d"),
                cut
            ]
        );
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, line, says) in [
            ("5 node\nfly n1", 2, "one can kill"),
            ("5 nodes\nkill x1", 2, "nobody"),
            ("5 nodes\nkill n0", 2, "nobody"),
            ("5 nodes\nkill", 2, "who?"),
            ("5 nodes\nkill n1 for 3s", 2, "'for' goes with"),
            ("5 nodes\nafter soon kill n1", 2, "no time"),
            ("5 nodes\nafter", 2, "after what"),
            ("5 nodes\nafter 3s", 2, "nothing is to be done"),
            ("5 nodes\nrun", 2, "how long"),
            ("5 nodes\nexpect miracles", 2, "one can expect"),
            ("5 nodes\nkill the clients", 2, "clients can only be"),
            ("5 nodes\noverwrite the files", 2, "no files in it"),
            ("5 nodes\nflip bits of n1", 2, "no files in it"),
            ("5 nodes\nset the clock of n1 2d ahead", 2, "no wall"),
            ("5 nodes\nset the clock of n1 2 ahead", 2, "from 1 to"),
            ("5 nodes\nflood n1 with tears", 2, "can be flooded with"),
            ("5 nodes\nflood with reads", 2, "who?"),
            ("99 nodes\nkill n1", 1, "from 1 to"),
            ("kill n1", 1, "first line"),
            ("5 nodes\n", 1, "nothing happens"),
            ("", 0, "how many nodes"),
        ] {
            let wrong = parse("x", text).expect_err(text);
            assert!(
                wrong.line == line && wrong.to_string().contains(says),
                "{text:?}: {wrong}"
            );
        }
    }
}
