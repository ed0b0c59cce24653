//! Nodes that have become silent: asked once for a pair of nodes, whatever the number of groups that they share.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{NodeId, Time};

/// One node's knowledge of how long others have not answered it.
#[derive(Debug)]
pub struct Silences {
    /// Silence that is told.
    after: Duration,
    /// Ticks come at least so often, unless this process stands still.
    tick_max: Duration,
    ticked_at: Option<Time>,
    /// The time in which this process stood still, in all: then it heard nobody.
    still: Duration,
    nodes: BTreeMap<NodeId, LastHeard>,
}

#[derive(Clone, Copy, Debug)]
struct LastHeard {
    at: Time,
    /// The time in which this process had stood still by then.
    still: Duration,
    told: bool,
}

impl Silences {
    /// Tells silence after so long, not counting what passes between two ticks beyond `tick_max`.
    pub fn new(after: Duration, tick_max: Duration) -> Silences {
        Silences {
            after,
            tick_max,
            ticked_at: None,
            still: Duration::ZERO,
            nodes: BTreeMap::new(),
        }
    }

    /// Time has passed; `heard` says of each node when it was last heard. The nodes that have become silent since the last
    /// tick, each with the time from which on its silence counts.
    pub fn tick(
        &mut self,
        now: Time,
        heard: impl IntoIterator<Item = (NodeId, Time)>,
    ) -> Vec<(NodeId, Time)> {
        let since = now.since(self.ticked_at.replace(now).unwrap_or(now));
        self.still += since.saturating_sub(self.tick_max);
        let (still, after) = (self.still, self.after);
        let mut nodes = std::mem::take(&mut self.nodes);
        let mut silent = Vec::new();
        for (node, at) in heard {
            let fresh = LastHeard {
                at,
                still,
                told: false,
            };
            let mut known = nodes.remove(&node).filter(|known| known.at >= at);
            let known = known.get_or_insert(fresh);
            let since = (known.at + (still - known.still)).min(now);
            if now.since(since) >= after && !std::mem::replace(&mut known.told, true) {
                silent.push((node, since));
            }
            self.nodes.insert(node, *known);
        }
        silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_millis(400);
    const TICK: Duration = Duration::from_millis(50);

    fn ms(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    #[test]
    fn a_silence_is_told_once_and_the_next_one_again() {
        let mut silences = Silences::new(AFTER, TICK);
        let mut told = Vec::new();
        for now in (0..2000).step_by(25) {
            // It answers until 300, and between 1,000 and 1,200.
            let heard = match now {
                0..300 => now,
                300..1000 => 300,
                1000..1200 => now,
                _ => 1200,
            };
            let silent = silences.tick(ms(now), [(NodeId(1), ms(heard)), (NodeId(2), ms(now))]);
            told.extend(silent.into_iter().map(|(node, since)| (now, node, since)));
        }
        let one = NodeId(1);
        assert_eq!(told, [(700, one, ms(300)), (1600, one, ms(1200))]);
    }

    #[test]
    fn who_stands_still_has_heard_nobody_and_tells_of_nobody() {
        let mut silences = Silences::new(AFTER, TICK);
        assert_eq!(silences.tick(ms(0), [(NodeId(1), ms(0))]), []);
        assert_eq!(silences.tick(ms(5000), [(NodeId(1), ms(0))]), []);
        let told = (5025..5500).step_by(25).find_map(|now| {
            let silent = silences.tick(ms(now), [(NodeId(1), ms(0))]);
            silent.first().map(|_| now)
        });
        assert_eq!(told, Some(5350), "50 ms before it stood still count");
    }
}
