//! Random scenarios: one table of episodes, and what each of them asks of the cluster.

#[cfg(test)]
mod tests;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::scenario::{Scenario, parse};

/// The scenarios that an episode belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Topic {
    /// All.
    Any,
    /// Those in which every pool has a node to spare; once, for a drained node stays so.
    Members,
    /// Those in which nothing else happens: every node reaches some that reach a majority.
    Cuts,
    /// Those with files.
    Files,
    /// Those whose nodes have wall clocks that can be set.
    Clocks,
    /// Those whose nodes have few descriptors.
    Descriptors,
    /// Those whose nodes have two disks.
    Disks,
    /// Those with a volume.
    Volume,
    /// Those with snapshots.
    Snapshots,
    /// Those with logs: one of them comes last.
    Logs,
    /// Those in which more is lost than any scheme bears.
    Losses,
    /// The same, whose nodes have two disks.
    DiskLosses,
}

/// A few steps that leave the cluster so that the next may follow once it is healthy.
struct Episode {
    topic: Topic,
    /// The least nodes.
    nodes: usize,
    /// Nodes that are dead or cut off from the majority at once.
    away: usize,
    /// The seconds without a majority.
    outage: u64,
    steps: &'static str,
}

const fn episode(
    topic: Topic,
    nodes: usize,
    away: usize,
    outage: u64,
    steps: &'static str,
) -> Episode {
    Episode {
        topic,
        nodes,
        away,
        outage,
        steps,
    }
}

use Topic::{
    Any, Clocks, Cuts, Descriptors, DiskLosses, Disks, Files, Logs, Losses, Members, Snapshots,
    Volume,
};

#[rustfmt::skip]
const EPISODES: [Episode; 93] = [
    episode(Any, 3, 1, 0, "kill a random node\nafter 3s restart it"),
    episode(Any, 3, 1, 0, "kill the directory's leader\nafter 3s restart it"),
    episode(Any, 3, 1, 0, "kill a random node\nafter 200ms restart it"),
    episode(Any, 3, 1, 0, "kill a random node\nafter 3s restart it without its data"),
    episode(Any, 5, 2, 0, "kill two random nodes\nafter 3s restart them"),
    episode(Any, 3, 1, 0, "restart a random node"),
    episode(Any, 3, 1, 0, "restart the directory's leader"),
    episode(Any, 3, 1, 0, "stop a random node\nafter 1s restart it"),
    episode(Any, 3, 1, 0, "pause a random node for 3s"),
    episode(Any, 3, 1, 0, "pause the directory's leader for 2s"),
    episode(Any, 3, 0, 0, "starve a random node for 4s"),
    episode(Any, 3, 0, 0, "starve every node for 4s"),
    episode(Any, 3, 1, 0, "isolate a random node for 4s"),
    episode(Any, 3, 1, 0, "isolate the directory's leader for 4s"),
    episode(Any, 5, 2, 0, "isolate two random nodes for 4s"),
    episode(Any, 3, 1, 0, "cut a random node from every node one way for 4s"),
    episode(Any, 3, 1, 0, "cut every node from a random node one way for 4s"),
    episode(Any, 3, 1, 0, "cut the directory's leader from a random follower for 4s"),
    episode(Any, 3, 1, 0, "cut the directory's leader from a random follower one way for 4s"),
    episode(Any, 3, 1, 0, "cut a random follower from the directory's leader one way for 4s"),
    episode(Any, 4, 1, 0, "cut a random follower from a random follower for 4s"),
    episode(Any, 3, 3, 6, "cut every node from every node for 6s"),
    episode(Any, 3, 0, 0, "cut the clients from a random node for 2s"),
    episode(Any, 3, 0, 0, "cut a random node from the clients one way for 2s"),
    episode(Any, 3, 1, 0, "slow a random node to 1mbit for 4s"),
    episode(Any, 3, 1, 0, "fill the disk of a random node\nafter 3s heal\nrestart it"),
    episode(Any, 3, 0, 0, "flood a random node with connections for 4s"),
    episode(Any, 3, 0, 0, "flood the directory's leader with connections for 4s"),
    episode(Any, 3, 0, 0, "flood a random node with unfinished values for 4s"),
    episode(Any, 3, 0, 0, "flood a random node with reads for 5s"),
    episode(Any, 3, 1, 0, "flood a random node with reads\nafter 1s kill a random node\nafter 3s restart it\nheal"),
    episode(Members, 4, 1, 0, "drain a random node\nafter 300ms kill a random node\nafter 3s restart it"),
    episode(Members, 4, 1, 0, "join a node\nafter 300ms kill a random node\nafter 3s restart it"),
    episode(Members, 4, 1, 0, "set pool cache to 1+1\nafter 300ms kill a random node\nafter 3s restart it\nwait until healthy\nset pool cache to 1+2"),
    episode(Cuts, 5, 1, 0, "cut the directory's leader from a random follower for 12s"),
    episode(Cuts, 5, 1, 0, "cut the directory's leader from a random follower one way for 12s"),
    episode(Cuts, 5, 1, 0, "cut a random follower from the directory's leader one way for 12s"),
    episode(Cuts, 5, 2, 0, "cut the directory's leader from two random followers for 12s"),
    episode(Cuts, 5, 2, 0, "cut the directory's leader from two random followers one way for 12s"),
    episode(Cuts, 5, 2, 0, "cut two random followers from the directory's leader one way for 12s"),
    episode(Cuts, 5, 1, 0, "cut a random follower from a random follower for 12s"),
    episode(Cuts, 5, 1, 0, "cut a random follower from a random follower one way for 12s"),
    episode(Files, 3, 0, 0, "overwrite the files\nafter 500ms overwrite the files"),
    episode(Files, 3, 0, 0, "run for 2s\nflip bits of every node"),
    episode(Files, 3, 1, 0, "kill a random node\noverwrite the files\nafter 2s restart it"),
    episode(Files, 3, 0, 0, "isolate the clients for 2s"),
    episode(Clocks, 3, 0, 0, "set the clock of a random node 2d ahead\nafter 1s set the clock of a random node 3d behind"),
    episode(Clocks, 3, 0, 0, "set the clock of the directory's leader 9d behind\nafter 1s set the clock of every node right"),
    episode(Clocks, 3, 1, 0, "set the clock of a random node 30d ahead\nkill a random node\nafter 3s restart it"),
    episode(Descriptors, 3, 1, 0, "flood a random node with idle clients\nafter 500ms restart a random node\nafter 3s heal"),
    episode(Descriptors, 3, 1, 0, "flood the directory's leader with idle clients\nafter 500ms kill a random follower\nafter 3s restart it\nafter 2s heal"),
    // A disk that fails or is emptied takes a copy away until its groups are whole again.
    episode(Disks, 3, 1, 0, "fail a disk of a random node\nwait until healthy\nreplace that disk"),
    episode(Disks, 3, 1, 0, "fail a disk of a random node\nwait until healthy\nkill a random node\nafter 3s restart it"),
    episode(Disks, 3, 1, 0, "fail a disk of a random node\nafter 500ms replace that disk\nwait until healthy\ndrain the first disk of a random node and wait\nresume that disk"),
    episode(Disks, 3, 2, 0, "fail a disk of a random node\nafter 100ms kill a random node\nafter 3s restart it"),
    episode(Disks, 3, 1, 0, "fail a disk of a random node\nafter 200ms restart it"),
    episode(Disks, 3, 1, 0, "fail a disk of a random node\nwait until healthy\nremove that disk"),
    episode(Disks, 3, 1, 0, "add a disk to a random node\ndrain the first disk of it and wait\nresume the first disk of it"),
    episode(Disks, 3, 1, 0, "add a disk to a random node\nafter 200ms kill a random node\nafter 3s restart it"),
    episode(Disks, 3, 1, 0, "drain a disk of a random node\nafter 1s resume that disk"),
    episode(Disks, 3, 2, 0, "drain a disk of a random node\nafter 300ms kill a random node\nafter 3s restart it\nwait until healthy\nresume that disk"),
    episode(Disks, 3, 1, 0, "drain a disk of a random node\nafter 300ms kill it\nafter 2s restart it\nwait until healthy\nremove that disk"),
    episode(Disks, 3, 1, 0, "replace a disk of a random node"),
    episode(Disks, 3, 2, 0, "replace a disk of a random node\nafter 300ms kill a random node\nafter 3s restart it"),
    episode(Disks, 3, 1, 0, "replace a disk of a random node\nafter 300ms kill it\nafter 1s restart it"),
    episode(Disks, 3, 2, 0, "drain a disk of a random node\nafter 300ms fail that disk\nafter 300ms pause a random node for 3s"),
    episode(Volume, 3, 0, 0, "take the volume over\nafter 1s take the volume over"),
    episode(Volume, 3, 1, 0, "kill the volume's door\ntake the volume over\nafter 3s restart it"),
    episode(Volume, 3, 1, 0, "isolate the volume's door\nafter 300ms take the volume over\nafter 4s heal"),
    episode(Volume, 3, 1, 0, "pause the volume's door\nafter 300ms take the volume over\nafter 3s heal"),
    episode(Snapshots, 3, 1, 0, "snapshot the volume\nafter 20ms kill the lowest node\nafter 3s restart it"),
    episode(Snapshots, 3, 1, 0, "snapshot the volume\nafter 20ms kill the directory's leader\nafter 3s restart it"),
    episode(Snapshots, 3, 1, 0, "snapshot the volume\nafter 20ms pause the lowest node for 3s"),
    episode(Snapshots, 3, 1, 0, "snapshot the volume\nafter 20ms isolate the volume's door for 3s"),
    episode(Snapshots, 3, 1, 0, "snapshot the volume\nafter 30ms kill a random node\nafter 200ms snapshot the volume\nafter 3s restart it"),
    episode(Logs, 3, 1, 0, "kill the log's sequencer\nafter 3s restart it"),
    episode(Logs, 3, 1, 0, "kill the log's sequencer\nafter 200ms restart it"),
    episode(Logs, 3, 1, 0, "kill a log's unit\nafter 3s restart it"),
    episode(Logs, 4, 2, 0, "kill the log's sequencer and a unit\nafter 3s restart them"),
    episode(Logs, 3, 1, 0, "stop the log's sequencer\nafter 1s restart it"),
    episode(Logs, 3, 1, 0, "pause the log's sequencer for 4s"),
    episode(Logs, 3, 1, 0, "pause a log's unit for 3s"),
    episode(Logs, 3, 1, 0, "isolate the log's sequencer for 4s"),
    episode(Logs, 3, 1, 0, "cut the log's sequencer from every node one way for 4s"),
    episode(Logs, 3, 0, 0, "starve the log's sequencer for 4s"),
    episode(DiskLosses, 5, 5, 0, "drain a disk of a random node\nafter 300ms kill every node\nafter 1s restart them\nwait until healthy\nresume that disk"),
    episode(DiskLosses, 5, 5, 0, "replace a disk of a random node\nafter 500ms kill every node\nrestart them"),
    episode(DiskLosses, 5, 5, 0, "fail a disk of a random node\nafter 300ms kill every node\nafter 500ms restart them\nwait until healthy\nremove that disk"),
    episode(DiskLosses, 5, 5, 0, "add a disk to a random node\ndrain the first disk of it\nafter 200ms kill every node\nafter 1s restart them\nwait until healthy\nresume that disk"),
    episode(Losses, 5, 3, 0, "kill three random nodes\nafter 6s restart them"),
    episode(Losses, 5, 5, 0, "kill every node\nafter 1s restart them"),
    episode(Losses, 5, 5, 0, "kill every node\nrestart them\nafter 400ms kill every node\nafter 200ms restart them\nafter 1200ms kill every node\nrestart them"),
    episode(Losses, 5, 5, 0, "kill two random nodes\nafter 900ms kill every node\nafter 1s restart them"),
];

/// The longest time that a key may go without an answer, while a majority is connected.
const STALL_S: u64 = 20;
/// The same through each node, where nothing but links is cut: a write that waited for a deadline, 5 s, and was tried again.
const STALL_EVERYWHERE_S: u64 = 9;
/// The beginning of the names of random scenarios.
const NAME: &str = "random-";

/// The words for nodes that are far apart.
const FAR: &str = ", wan 10ms one way";
/// The words for memory whose pool is on disk.
const ON_DISK: &str = " on disk";

/// The data and the parity buckets of memory, and its medium.
type DrawnMemory = (usize, usize, &'static str);

/// The first line of a scenario, as it is drawn.
struct Setting {
    nodes: usize,
    memory: Option<DrawnMemory>,
    topics: Vec<Topic>,
    text: String,
}

/// The number of nodes, and memory if there is any.
fn draw_memory(topic: Topic, rng: &mut SmallRng) -> (usize, Option<DrawnMemory>) {
    match (topic, rng.random_range(0..11)) {
        (Any, 0) => (6, Some((4, 2, ""))),
        (Any, 1) => (7, Some((4, 2, ""))),
        (Any, 2) => (4, Some((2, 1, ""))),
        (Any, 3..5) => (4, Some((1, 1, ON_DISK))),
        (Any, 5..7) => (5, Some((1, 2, ON_DISK))),
        (Any, 7) => (4, Some((2, 1, ON_DISK))),
        (Any, 8) => (7, Some((4, 2, ON_DISK))),
        (Any, _) => ([3, 3, 4, 5, 7].choose(rng).copied().unwrap_or(5), None),
        (Losses, 0..3) => (5, Some((1, 1, ON_DISK))),
        (Losses, 3..5) => (5, Some((1, 2, ON_DISK))),
        (Losses, 5..7) => (5, Some((2, 1, ON_DISK))),
        _ => (5, None),
    }
}

impl Setting {
    fn draw(rng: &mut SmallRng) -> Setting {
        let mut text = String::new();
        let topic = match rng.random_range(0..8) {
            0 => Cuts,
            1 => Losses,
            _ => Any,
        };
        let (nodes, memory) = draw_memory(topic, rng);
        if let Some((m, k, medium)) = memory {
            text += &format!(", memory {m}+{k}{medium}");
        }
        let mut topics = vec![topic];
        let is_on_disk = memory.is_some_and(|(.., medium)| medium == ON_DISK);
        let of_disks = if topic == Losses { DiskLosses } else { Disks };
        let of_pools_on_disk = [
            (", two disks", of_disks),
            (", volume", Volume),
            (", snapshots", Snapshots),
        ];
        for (words, unlocked) in of_pools_on_disk {
            let is_possible = unlocked != Snapshots || text.contains(", volume");
            if is_on_disk && is_possible && rng.random_range(0..3) > 0 {
                text += words;
                // Each of the others' steps loses too little.
                topics.extend((topic == Any || unlocked == DiskLosses).then_some(unlocked));
            }
        }
        let options = [
            (", files too", Some(Files)),
            (", clocks apart", None),
            (", wall clocks apart", Some(Clocks)),
            (", few descriptors", Some(Descriptors)),
        ];
        for (words, unlocked) in options {
            // What happens beside cuts, or beside losses, is not told by their bounds.
            let is_drawn = topic == Any && rng.random_range(0..4) == 0;
            // A volume's clients have a place for sure.
            let has_places = unlocked != Some(Descriptors) || !text.contains("volume");
            if is_drawn && has_places {
                text += words;
                topics.extend(unlocked);
            }
        }
        if topic == Any {
            topics.push(Members);
        }
        Setting {
            nodes,
            memory,
            topics,
            text: format!("{nodes} nodes, pool cache 1+2{text}\n"),
        }
    }

    /// The losses that every pool bears.
    fn bears(&self) -> usize {
        self.memory.map_or(2, |(_, k, _)| k.min(2))
    }

    /// The words for logs, or none. They bear what was drawn without them. On disk they fit beside a region, and not beside a volume.
    fn draw_log(&self, rng: &mut SmallRng) -> String {
        let k = self.bears();
        let fits_on_disk = !self.text.contains("volume");
        let on_disk = format!(", log 1+{k}{ON_DISK}");
        match (self.topics[0], rng.random_range(0..6)) {
            (Any | Losses, 0..2) if fits_on_disk => on_disk,
            (Any, 2..4) => format!(", log 1+{k}"),
            _ => String::new(),
        }
    }

    fn allows_of_log(&self, episode: &Episode) -> bool {
        let fits = self.nodes >= episode.nodes && episode.away <= self.bears();
        episode.topic == Logs && fits
    }

    fn allows(&self, episode: &Episode) -> bool {
        let to_spare = self.memory.is_none_or(|(m, k, _)| self.nodes > m + k);
        let beyond = matches!(episode.topic, Losses | DiskLosses) || episode.outage > 0;
        self.topics.contains(&episode.topic)
            && self.nodes >= episode.nodes
            && (episode.away <= self.bears() || beyond)
            && (episode.topic != Members || to_spare)
    }
}

/// The scenario of a seed.
pub fn scenario(seed: u64) -> Scenario {
    let text = text(seed);
    // The grammar yields nothing else; a test reads thousands.
    parse(&format!("{NAME}{seed}"), &text).unwrap_or_else(|e| unreachable!("{e} in\n{text}"))
}

/// The seed of the random scenario of this name.
pub fn seed_of(name: &str) -> Option<u64> {
    name.strip_prefix(NAME)?.parse().ok()
}

/// The words of a seed's scenario.
pub fn text(seed: u64) -> String {
    let mut rng = SmallRng::seed_from_u64(seed);
    let setting = Setting::draw(&mut rng);
    let allowed: Vec<&Episode> = EPISODES.iter().filter(|e| setting.allows(e)).collect();
    let (mut steps, mut outage, mut members) = (String::new(), 0, false);
    for _ in 0..rng.random_range(3..=6) {
        let after = rng.random_range(200..2500);
        let Some(episode) = allowed.choose(&mut rng) else {
            continue;
        };
        // A lab has only so many places, too.
        if episode.topic == Members && std::mem::replace(&mut members, true) {
            continue;
        }
        outage += episode.outage;
        steps += &format!("after {after}ms {}\nwait until healthy\n", episode.steps);
    }
    let expected = match setting.topics[0] {
        Losses => "expect losses\n".to_owned(),
        Cuts => format!("expect stalls at every node below {STALL_EVERYWHERE_S}s\n"),
        _ => format!("expect stalls below {}s\n", STALL_S + outage),
    };
    // Drawn last, so that a seed has the steps that it had before there were delays, or logs.
    let is_far = setting.topics[0] == Any && rng.random_range(0..5) == 0;
    let far = if is_far { FAR } else { "" };
    let log = setting.draw_log(&mut rng);
    if !log.is_empty() && setting.topics[0] == Any {
        let of_logs: Vec<&Episode> = EPISODES
            .iter()
            .filter(|e| setting.allows_of_log(e))
            .collect();
        let steps_of_log = of_logs.choose(&mut rng).map_or("", |episode| episode.steps);
        steps += &format!("after 1s {steps_of_log}\nwait until healthy\n");
    }
    let heading = setting.text.trim_end();
    format!("{heading}{far}{log}\n{expected}{steps}run for 1s\n")
}
