//! The grammar reaches all of its words, and its expectations follow from its faults.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::load::flood;
use crate::scenario::disk::DiskAction;
use crate::scenario::{Action, Step, Who};

const SEEDS: u64 = 3000;

#[test]
fn every_seed_gives_a_scenario_and_always_the_same() {
    for seed in 0..SEEDS {
        let scenario = scenario(seed);
        assert!(scenario.steps.len() >= 3, "{seed}");
        assert_eq!(seed_of(&scenario.name), Some(seed));
    }
    assert_eq!(scenario(7), scenario(7));
    assert_ne!(scenario(7), scenario(8));
    assert_eq!(seed_of("all-restart"), None);
}

#[test]
fn the_grammar_reaches_all_of_its_words() {
    let all: Vec<String> = (0..SEEDS).map(text).collect();
    let all = all.concat();
    for episode in &EPISODES {
        assert!(all.contains(episode.steps), "{}", episode.steps);
    }
    let headings = [
        ", memory 4+2",
        ", memory 2+1",
        ", memory 1+1 on disk",
        ", memory 1+2 on disk",
        ", memory 2+1 on disk",
        ", memory 4+2 on disk",
        ", files too",
        ", clocks apart",
        ", wall clocks apart",
        ", few descriptors",
        ", two disks",
        ", volume",
        ", snapshots",
        ", log 1+1",
        ", log 1+2",
        ", log 1+1 on disk",
        ", log 1+2 on disk",
        FAR,
        "expect losses",
        "expect stalls at every node",
    ];
    for words in headings {
        assert!(all.contains(words), "{words}");
    }
}

#[test]
fn every_kind_of_fault_appears() {
    let steps: Vec<Step> = (0..SEEDS).flat_map(|seed| scenario(seed).steps).collect();
    let kinds: BTreeSet<&str> = steps
        .iter()
        .filter_map(|step| step.action.fault())
        .collect();
    let floods = flood::KINDS.map(|(kind, _)| Action::Flood {
        who: Who::Every,
        kind,
    });
    let expected = [
        "kill",
        "restart",
        "restart without data",
        "stop",
        "pause",
        "starvation",
        "isolation",
        "cut",
        "one-way cut",
        "cut of the leader",
        "one-way cut of the leader",
        "cut of clients",
        "slow link",
        "full disk",
        "join",
        "drain",
        "scheme change",
        "overwriting",
        "bit flips",
        "wall clock set",
        "disk added",
        "failing disk",
        "disk drained",
        "disk resumed",
        "disk replaced",
        "disk removed",
        "take-over of the volume",
        "snapshot",
    ];
    let floods = floods.iter().filter_map(Action::fault);
    for kind in expected.into_iter().chain(floods) {
        assert!(kinds.contains(kind), "{kind}: {kinds:?}");
    }
}

/// The choices that a step's words leave, among nodes of which the first leads the directory.
fn choices(who: &Who, nodes: usize, but: &[usize]) -> Vec<Vec<usize>> {
    // As the runner has it: whoever is chosen is none of the others, if there are others.
    let free = |at: &usize| !but.contains(at) || (0..nodes).all(|at| but.contains(&at));
    let some = |n: usize, first: usize| {
        let sets = (0_usize..1 << nodes).map(|set| members(set, nodes));
        let fits =
            |set: &Vec<usize>| set.len() == n && set.iter().all(|at| *at >= first && free(at));
        sets.filter(fits).collect::<Vec<Vec<usize>>>()
    };
    match who {
        Who::Nodes(nodes) => vec![nodes.clone()],
        Who::Random(n) => some(*n, 0),
        Who::VolumeDoor | Who::LogSequencer | Who::LogUnit => some(1, 0),
        Who::LogBoth => some(2, 0),
        Who::Followers(n) => some(*n, 1),
        Who::Leader | Who::Lowest => vec![vec![0]],
        Who::Every => vec![(0..nodes).collect()],
        Who::Last => panic!("nothing is cut from 'it'"),
        Who::Clients => vec![Vec::new()],
    }
}

fn members(set: usize, nodes: usize) -> Vec<usize> {
    (0..nodes).filter(|at| set >> at & 1 == 1).collect()
}

/// The cuts that a step may make, each with the direction.
fn cuts(action: &Action, nodes: usize) -> Vec<BTreeSet<(usize, usize)>> {
    let pairs = |from: &[usize], to: &[usize], one_way: bool| {
        let pairs = from.iter().flat_map(|a| to.iter().map(|b| (*a, *b)));
        let both = pairs.flat_map(|(a, b)| [(a, b), if one_way { (a, b) } else { (b, a) }]);
        both.filter(|(a, b)| a != b).collect::<BTreeSet<_>>()
    };
    match action {
        Action::Cut { from, to, one_way } => {
            let from = choices(from, nodes, &[]).into_iter();
            let both = from.flat_map(|from| {
                let to = choices(to, nodes, &from).into_iter();
                to.map(move |to| (from.clone(), to))
            });
            both.map(|(from, to)| pairs(&from, &to, *one_way)).collect()
        }
        Action::Isolate(who) => {
            let alone = choices(who, nodes, &[]).into_iter();
            let others = |who: &[usize]| {
                let all = (0..nodes).filter(|at| !who.contains(at));
                all.collect::<Vec<_>>()
            };
            alone.map(|who| pairs(&who, &others(&who), false)).collect()
        }
        _ => vec![BTreeSet::new()],
    }
}

/// The sets of nodes that all reach each other and are a majority.
fn majorities(nodes: usize, cut: &BTreeSet<(usize, usize)>) -> Vec<Vec<usize>> {
    let sets = (0_usize..1 << nodes).map(|set| members(set, nodes));
    let connected = |set: &Vec<usize>| !cut.iter().any(|(a, b)| set.contains(a) && set.contains(b));
    sets.filter(|set| set.len() * 2 > nodes && connected(set))
        .collect()
}

/// True if every node reaches a majority, or a node that does, in both directions.
fn all_reach(nodes: usize, cut: &BTreeSet<(usize, usize)>) -> bool {
    let majorities = majorities(nodes, cut);
    let open = |a: usize, b: usize| !cut.contains(&(a, b)) && !cut.contains(&(b, a));
    (0..nodes).all(|at| {
        let near = |set: &Vec<usize>| set.iter().any(|other| at == *other || open(at, *other));
        majorities.iter().any(near)
    })
}

/// The most nodes of a step at once.
fn most(who: &Who, nodes: usize) -> usize {
    if *who == Who::Last {
        return 1;
    }
    let sizes = choices(who, nodes, &[]).into_iter().map(|set| set.len());
    sizes.max().unwrap_or(0)
}

/// The time without a majority, and the most nodes that die at once, whoever is chosen. What is cut off is no more than every
/// pool bears, and where writes must go on through every node nothing happens but cuts that leave each a majority.
fn outage_and_deaths(scenario: &Scenario, k: usize, seed: u64) -> (Duration, usize) {
    let nodes = scenario.nodes;
    let (mut outage, mut killed) = (Duration::ZERO, 0);
    for step in &scenario.steps {
        let cuts = cuts(&step.action, nodes);
        if cuts.iter().any(|cut| majorities(nodes, cut).is_empty()) {
            outage += step.lasting.unwrap_or_default();
        } else if !cuts.iter().all(BTreeSet::is_empty) {
            let connected = cuts.iter().map(|cut| majorities(nodes, cut));
            let largest = connected.map(|sets| sets.iter().map(Vec::len).max().unwrap_or(0));
            let away = nodes - largest.min().unwrap_or(nodes);
            assert!(away <= k, "{seed}: {} cuts {away} off, of {k}", step.text);
        }
        if let Action::Kill(who) | Action::Pause(who) = &step.action {
            killed = killed.max(most(who, nodes));
        }
        if scenario.everywhere {
            assert!(
                cuts.iter().all(|cut| all_reach(nodes, cut)),
                "{seed}: {}",
                step.text
            );
            let others = [Action::WaitHealthy, Action::Run];
            let cut = matches!(step.action, Action::Cut { .. });
            assert!(
                cut || others.contains(&step.action),
                "{seed}: {}",
                step.text
            );
        }
    }
    (outage, killed)
}

/// The most copies of a group that are away at once, for a node is down or a disk does not have them.
fn copies_away(scenario: &Scenario) -> usize {
    let (mut most_away, mut by_disks, mut by_nodes) = (0, 0, 0);
    for step in &scenario.steps {
        match &step.action {
            Action::Disk { action, .. } => match action {
                DiskAction::Fail | DiskAction::Replace | DiskAction::Drain { .. } => by_disks = 1,
                DiskAction::Add | DiskAction::Resume | DiskAction::Remove => {}
            },
            // That of the disk is away as it is.
            Action::Kill(Who::Last) | Action::Restart { who: Who::Last, .. } => {}
            Action::Kill(who) | Action::Pause(who) => by_nodes = most(who, scenario.nodes),
            Action::WaitHealthy => (by_disks, by_nodes) = (0, 0),
            _ => {}
        }
        most_away = most_away.max(by_disks + by_nodes);
    }
    most_away
}

#[test]
fn disks_that_go_take_no_more_copies_than_the_scheme_bears() {
    let mut with_both = 0;
    for seed in 0..SEEDS {
        let scenario = scenario(seed);
        if !scenario.two_disks || scenario.losses {
            continue;
        }
        let memory = scenario.memory.as_deref().and_then(|s| s.split_once('+'));
        let k = memory.map_or(0, |(_, k)| k.parse::<usize>().expect("a number"));
        let away = copies_away(&scenario);
        assert!(away <= k, "{seed}: {away} copies are away, of {k}");
        with_both += usize::from(away > 1);
    }
    assert!(with_both > 50, "{with_both}");
}

/// The expectations of a scenario follow from its faults, whoever is chosen for them.
#[test]
fn a_scenario_expects_what_its_faults_leave_and_no_more() {
    let (mut without_majority, mut with_losses, mut everywhere) = (0, 0, 0);
    for seed in 0..SEEDS {
        let scenario = scenario(seed);
        let memory = scenario
            .memory
            .as_deref()
            .and_then(|scheme| scheme.split_once('+'));
        let k = memory.map_or(2, |(_, k)| k.parse::<usize>().expect("a number").min(2));
        let (outage, killed) = outage_and_deaths(&scenario, k, seed);
        assert_eq!(scenario.losses, killed > k, "{seed}: {killed} die, of {k}");
        assert!(scenario.deaths, "{seed}");
        if !scenario.losses {
            let bound = Duration::from_secs(STALL_S) + outage;
            assert!(
                scenario.stall_max <= bound,
                "{seed}: {:?}",
                scenario.stall_max
            );
            let least = if outage.is_zero() {
                Duration::ZERO
            } else {
                bound
            };
            assert!(
                scenario.stall_max >= least,
                "{seed}: {:?}",
                scenario.stall_max
            );
        }
        without_majority += usize::from(!outage.is_zero());
        with_losses += usize::from(scenario.losses);
        everywhere += usize::from(scenario.everywhere);
    }
    for count in [without_majority, with_losses, everywhere] {
        assert!(
            count > 50,
            "{without_majority}, {with_losses}, {everywhere}"
        );
    }
}
