//! Random scenarios from a grammar: never more at once than the scheme bears.

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::scenario::{Scenario, parse};

/// Each leaves the cluster so that the next may follow once it is healthy.
const EPISODES: [&str; 14] = [
    "kill a random node\nafter 3s restart it",
    "kill the directory's leader\nafter 3s restart it",
    "kill a random node\nafter 200ms restart it",
    "kill a random node\nafter 3s restart it without its data",
    "restart a random node",
    "restart the directory's leader",
    "pause a random node for 3s",
    "pause the directory's leader for 2s",
    "isolate a random node for 4s",
    "isolate the directory's leader for 4s",
    "cut a random node from the directory's leader for 4s",
    "cut the directory's leader from a random node one way for 4s",
    "slow a random node to 1mbit for 4s",
    "stop a random node\nafter 1s restart it",
];
/// These need three nodes and a pool that bears one loss, whatever comes of the second.
const PAIRS: [&str; 3] = [
    "drain a random node\nafter 300ms kill a random node\nafter 3s restart it",
    "join a node\nafter 300ms kill a random node\nafter 3s restart it",
    "set pool cache to 1+1\nafter 300ms kill a random node\nafter 3s restart it\nwait until healthy\nset pool cache to 1+2",
];

/// The scenario of a seed.
pub fn scenario(seed: u64) -> Scenario {
    let text = text(seed);
    // The grammar yields nothing else; a test reads thousands.
    parse(&format!("random-{seed}"), &text).unwrap_or_else(|e| unreachable!("{e} in\n{text}"))
}

fn text(seed: u64) -> String {
    let mut rng = SmallRng::seed_from_u64(seed);
    let nodes = [3, 3, 4, 5, 5, 7].choose(&mut rng).copied().unwrap_or(5);
    let clocks = if rng.random_range(0..4) == 0 {
        ", clocks apart"
    } else {
        ""
    };
    let mut text = format!("{nodes} nodes, pool cache 1+2{clocks}\nexpect stalls below 20s\n");
    let mut paired = false;
    for _ in 0..rng.random_range(3..=6) {
        let after = rng.random_range(200..2500);
        // A drained node stays so, and a lab has only so many places: once is enough.
        let pair = nodes > 3 && !paired && rng.random_range(0..4) == 0;
        paired |= pair;
        let from: &[&str] = if pair { &PAIRS } else { &EPISODES };
        let episode = from.choose(&mut rng).copied().unwrap_or(EPISODES[0]);
        text += &format!("after {after}ms {episode}\nwait until healthy\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_gives_a_scenario_and_always_the_same() {
        for seed in 0..2000 {
            assert!(scenario(seed).steps.len() >= 6);
        }
        assert_eq!(scenario(7), scenario(7));
        assert_ne!(scenario(7), scenario(8));
    }

    #[test]
    fn the_grammar_reaches_all_of_its_words() {
        let all: String = (0..500).map(text).collect();
        for episode in EPISODES.iter().chain(&PAIRS) {
            assert!(all.contains(episode), "{episode}");
        }
    }
}
