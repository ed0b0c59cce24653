//! The slowness of other nodes: a member of a node that answers late is late, and not stuck.
//!
//! Where a machine lacks processor time, each answer of it takes long, and to replace its members costs more of what is lacking:
//! their groups need new epochs, and new members whole buckets. Who is cut off answers nothing, so that this tells the two apart.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use staves_model::{NodeId, Time, mutant::Mutant, mutant::planted};

/// A member is stuck after so many times the time that its node lately took for an answer.
const TIMES: u32 = 4;
/// And after so many times `stuck_after` at most.
const TIMES_MAX: u32 = 8;
/// An answer counts for so many times `stuck_after`.
const KEPT_TIMES: u32 = 4;

/// The slowest answers of nodes of late. The members of a node share it.
#[derive(Debug, Default)]
pub struct Slowness(Mutex<BTreeMap<NodeId, SlowAnswer>>);

#[derive(Clone, Copy, Debug)]
struct SlowAnswer {
    took: Duration,
    at: Time,
}

impl Slowness {
    /// A node has answered now, after so long. Those that need no longer patience are not counted, and take no lock.
    pub(crate) fn answered(&self, node: NodeId, now: Time, took: Duration, stuck_after: Duration) {
        if took * TIMES <= stuck_after {
            return;
        }
        let mut slow = self.0.lock();
        slow.retain(|_, answer| answer.counts(now, stuck_after));
        let took = slow.get(&node).map_or(took, |known| known.took.max(took));
        slow.insert(node, SlowAnswer { took, at: now });
    }

    /// The time after which a member of this node is stuck.
    pub(crate) fn patience(&self, node: NodeId, now: Time, stuck_after: Duration) -> Duration {
        let slow = self.0.lock().get(&node).copied();
        let counts = |answer: &SlowAnswer| {
            answer.counts(now, stuck_after) && !planted(Mutant::SlownessForgotten)
        };
        let took = slow.filter(counts).map_or(Duration::ZERO, |slow| slow.took);
        (took * TIMES).clamp(stuck_after, stuck_after * TIMES_MAX)
    }
}

impl SlowAnswer {
    fn counts(&self, now: Time, stuck_after: Duration) -> bool {
        now.since(self.at) < stuck_after * KEPT_TIMES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_as_long_as_answers_take_for_a_while() {
        let (slowness, stuck_after) = (Slowness::default(), Duration::from_millis(800));
        let (slow, other) = (NodeId(1), NodeId(2));
        let at = |ms: u64| Time::from_millis(10_000 + ms);
        let answered = |node, ms, took| {
            slowness.answered(node, at(ms), Duration::from_millis(took), stuck_after);
        };
        let patience = |node, ms| slowness.patience(node, at(ms), stuck_after).as_millis();
        answered(slow, 0, 200);
        assert_eq!(patience(slow, 0), 800, "four times that is not more");
        answered(slow, 100, 500);
        answered(slow, 200, 300);
        assert_eq!((patience(slow, 200), patience(other, 200)), (2000, 800));
        answered(slow, 300, 60_000);
        assert_eq!(patience(slow, 300), 6400, "it has an end");
        assert_eq!(patience(slow, 300 + 3200), 800, "and is not for good");
        answered(other, 9000, 500);
        assert_eq!(slowness.0.lock().len(), 1, "what is over is forgotten");
    }
}
