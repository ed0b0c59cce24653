//! Crashes, power cuts, failing and lost disks while a client writes: nothing that was acknowledged is ever lost.

use rand::Rng;
use staves_model::GroupId;

use crate::cluster::Cluster;

/// The faults of one run.
#[derive(Clone, Copy)]
pub struct Weather {
    pub nodes: u64,
    pub m: u8,
    pub width: usize,
    pub steps: u32,
    /// Nodes go on without disks that they had.
    pub swaps: bool,
}

/// Says which seed failed.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the seed is {}", self.0);
        }
    }
}

/// One run from a seed; the writes that were acknowledged.
fn storm(seed: u64, weather: Weather) -> u64 {
    let c = Cluster::new(seed, weather.nodes, 2, (weather.m, weather.width));
    storm_over(c, weather).acked
}

/// One run of a cluster that is new.
pub fn storm_over(mut c: Cluster, weather: Weather) -> Cluster {
    let _named = Named(c.seed);
    c.heal();
    c.rough = true;
    for _ in 0..weather.steps {
        one_step(&mut c, weather);
        c.check();
    }
    c.heal();
    c.check_copies();
    for group in [GroupId(1), GroupId(2)] {
        save_behind_a_write(&mut c, group);
        (0..c.nodes.len()).for_each(|at| c.crash(at, true));
        c.heal();
        c.check_copies();
    }
    // The power of all goes at once, in the middle of writes.
    for _ in 0..30 {
        let group = GroupId(c.rng.random_range(1..=2));
        c.write(group);
        for _ in 0..c.rng.random_range(0..3) {
            c.deliver();
        }
    }
    (0..c.nodes.len()).for_each(|at| c.crash(at, true));
    c.heal();
    c.check_copies();
    c
}

fn one_step(c: &mut Cluster, weather: Weather) {
    let at = c.rng.random_range(0..c.nodes.len());
    let group = GroupId(c.rng.random_range(1..=2));
    if weather.swaps && c.rng.random_bool(0.02) && may_lose(c, at) {
        return go_on_without(c, at, group);
    }
    if weather.m > 1 {
        go_on(c);
    }
    c.step_of_writeback(at, group);
    match c.rng.random_range(0..1000) {
        0..250 => c.write(group),
        250..600 => drop(c.deliver()),
        600..680 => c.commit(at),
        680..780 => c.commit_whole(at),
        780..880 => c.tick(),
        880..900 => {
            let for_room = c.rng.random_bool(0.5);
            c.save(at, group, for_room);
            // What was on its way to the journal when pages were written is gone.
            if c.nodes[at].process.is_some() && c.rng.random_bool(0.15) {
                c.crash(at, true);
            }
        }
        900..920 => c.release(at),
        920..950 => c.look(),
        950..962 if c.nodes[at].process.is_some() => {
            let power = c.rng.random_bool(0.6);
            c.crash(at, power);
        }
        962..978 if c.nodes[at].process.is_none() => c.start(at),
        978..984 => {
            let calls = c.rng.random_range(0..12);
            let files = &c.nodes[at].files;
            let device = [&files.journal, &files.pages, &files.table];
            device[calls as usize % 3].power_off_after(calls);
        }
        984..987 => {
            let files = &c.nodes[at].files;
            [&files.journal, &files.pages, &files.table][at % 3].fail_syncs(true);
        }
        987..989 => (0..c.nodes.len()).for_each(|at| c.crash(at, true)),
        989..990 => lose_behind_a_join(c, at),
        990..993 if weather.nodes > 1 && may_lose(c, at) => c.replace_disk(at),
        993..996 if weather.nodes > 1 && may_lose(c, at) => {
            c.rot(at);
            c.heal();
            c.check_disks();
            c.rough = true;
        }
        996..998 => save_behind_a_write(c, group),
        998.. => c.tell_map(at),
        _ => {}
    }
}

/// More members have to do with a write of a coded group, and more of them have to run.
fn go_on(c: &mut Cluster) {
    let at = c.rng.random_range(0..c.nodes.len());
    if c.nodes[at].process.is_none() && c.rng.random_bool(0.05) {
        c.start(at);
    }
    for _ in 0..c.rng.random_range(0..8) {
        c.deliver();
    }
    c.commit(at);
    if c.rng.random_bool(0.1) {
        c.tick();
        c.look();
    }
}

/// A node goes on without its disk, or without a member of its disk.
fn go_on_without(c: &mut Cluster, at: usize, group: GroupId) {
    match c.rng.random_bool(0.4) {
        true => c.swap_disk(at),
        false => c.empty_member(at, group),
    }
}

/// A write is saved while it is on its way, and the disk lets go of what came before; the power may go then.
fn save_behind_a_write(c: &mut Cluster, group: GroupId) {
    c.write(group);
    for _ in 0..c.rng.random_range(1..6) {
        c.deliver();
        (0..c.nodes.len()).for_each(|at| c.commit_whole(at));
    }
    for at in 0..c.nodes.len() {
        c.save(at, group, true);
        c.release(at);
    }
    c.tick();
    while c.deliver() {}
    for at in 0..c.nodes.len() {
        c.commit_whole(at);
        c.release(at);
        c.commit_whole(at);
    }
    c.tick();
    if c.rng.random_bool(0.3) {
        (0..c.nodes.len()).for_each(|at| c.crash(at, true));
    }
}

/// A member joins with an empty disk; as soon as it counts as complete the disk that it was filled from is lost, and its own power.
fn lose_behind_a_join(c: &mut Cluster, at: usize) {
    let from = (at + 1) % c.nodes.len();
    if from == at || !may_lose(c, at) {
        return;
    }
    c.replace_disk(at);
    c.start(at);
    for _ in 0..40 {
        c.look();
        c.tick();
        while c.deliver() {}
        (0..c.nodes.len()).for_each(|at| c.commit_whole(at));
        if may_lose(c, from) {
            c.replace_disk(from);
            return c.crash(at, true);
        }
        if c.rng.random_bool(0.2) {
            [1, 2]
                .into_iter()
                .for_each(|group| c.save(at, GroupId(group), false));
        }
    }
}

/// So many other complete members of each last open epoch run as are enough: a disk may be lost.
fn may_lose(c: &Cluster, at: usize) -> bool {
    let id = c.nodes[at].id;
    c.directory.groups.values().all(|group| {
        let others = group.last_open.members.iter().flatten();
        let others = others.filter(|x| x.id.node.0 != id && x.complete && c.directory.runs(x.id));
        others.count() >= usize::from(group.m) && group.open
    })
}

/// So many seeds from one on; `STAVES_STORMS` times as many, from a seed that many runs further on, where that is set.
pub fn seeds(from: u64, count: u64) -> std::ops::Range<u64> {
    let times = std::env::var("STAVES_STORMS").ok();
    let times = times.and_then(|times| times.parse::<u64>().ok());
    let (from, count) = match times {
        None => (from, count),
        Some(times) => (from + 1_000_000, count * times),
    };
    from..from + count
}

fn storms(from: u64, count: u64, weather: Weather) -> u64 {
    seeds(from, count).map(|seed| storm(seed, weather)).sum()
}

const PAIR: Weather = Weather {
    nodes: 2,
    m: 1,
    width: 2,
    steps: 1500,
    swaps: false,
};

#[test]
fn nothing_acknowledged_is_lost_by_a_pair() {
    let acked = storms(1_000_001, 25, PAIR);
    assert!(acked > 150, "{acked} writes");
}

#[test]
fn nothing_acknowledged_is_lost_by_two_copies_of_three_nodes() {
    let weather = Weather {
        nodes: 3,
        m: 1,
        width: 2,
        steps: 1500,
        swaps: false,
    };
    let acked = storms(3_001_280, 20, weather);
    assert!(acked > 150, "{acked} writes");
}

#[test]
fn nothing_acknowledged_is_lost_by_three_copies() {
    let weather = Weather {
        nodes: 4,
        m: 1,
        width: 3,
        steps: 1500,
        swaps: false,
    };
    let acked = storms(200, 15, weather);
    assert!(acked > 150, "{acked} writes");
}

#[test]
fn nothing_acknowledged_is_lost_by_one_alone() {
    let weather = Weather {
        nodes: 1,
        m: 1,
        width: 1,
        steps: 1000,
        swaps: false,
    };
    let acked = storms(300, 20, weather);
    assert!(acked > 150, "{acked} writes");
}

#[test]
fn nothing_acknowledged_is_lost_where_nodes_go_on_without_disks_that_failed() {
    let pair = Weather {
        swaps: true,
        ..PAIR
    };
    let three = Weather { nodes: 3, ..pair };
    let acked = storms(3_000_001, 12, pair) + storms(4_000_001, 12, three);
    assert!(acked > 150, "{acked} writes");
}

/// A data bucket that is lost is made of the others, on a node that had none of the group, or on its own with another disk.
const CODED: Weather = Weather {
    nodes: 4,
    m: 2,
    width: 3,
    steps: 1500,
    swaps: false,
};

#[test]
fn nothing_acknowledged_is_lost_by_two_and_one() {
    let exact = Weather { nodes: 3, ..CODED };
    let acked = storms(5_000_001, 8, exact) + storms(6_000_001, 8, CODED);
    assert!(acked > 150, "{acked} writes");
}

#[test]
fn nothing_acknowledged_is_lost_by_two_and_two() {
    let weather = Weather {
        nodes: 5,
        width: 4,
        ..CODED
    };
    let acked = storms(7_000_007, 6, weather);
    assert!(acked > 150, "{acked} writes");
}

#[test]
fn nothing_acknowledged_is_lost_by_four_and_two() {
    let weather = Weather {
        nodes: 7,
        m: 4,
        width: 6,
        ..CODED
    };
    let acked = storms(8_000_001, 2, weather);
    assert!(acked > 50, "{acked} writes");
}

#[test]
fn nothing_acknowledged_is_lost_by_coded_groups_where_nodes_go_on_without_disks_that_failed() {
    let weather = Weather {
        swaps: true,
        ..CODED
    };
    let acked = storms(9_000_001, 8, weather);
    assert!(acked > 150, "{acked} writes");
}
