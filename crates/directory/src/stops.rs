//! Who stops, as the nodes themselves know it.
//!
//! A leader tells a node that it may stop, and counts it as gone from then on. The next leader knows nothing of that, and leaders
//! change just when nodes stop. So each node remembers what it was told, and a leader asks all of them before it lets another go.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use staves_model::{NodeId, NodeState};
use tokio::task::JoinSet;

use crate::ask::PingFailed;
use crate::directory::Inner;

/// How long who was told that it may stop counts as good as gone: longer than a stop takes.
pub(crate) const STOPS: Duration = Duration::from_secs(30);
/// What a former leader said is on its way for no longer than this.
pub(crate) const YOUNG: Duration = Duration::from_secs(5);
/// How long a node may take to say whether it stops.
const PATIENCE: Duration = Duration::from_millis(300);

/// Whether a node stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) enum Stops {
    #[default]
    No,
    /// It asks whether it may, or has not heard yet that it may.
    Asks,
    /// It may.
    Told,
}

/// What a node knows of its own stop.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OwnStop {
    asks: u32,
    told: Option<Instant>,
}

impl OwnStop {
    pub fn now(&self) -> Stops {
        match self.told.is_some_and(|told| told.elapsed() < STOPS) {
            true => Stops::Told,
            false if self.asks > 0 => Stops::Asks,
            false => Stops::No,
        }
    }

    /// To be said before the leader is asked: whatever becomes of the answer, nobody takes this node for one that stays.
    pub fn asks(&mut self) {
        self.asks += 1;
    }

    pub fn heard(&mut self, may: bool) {
        self.asks -= 1;
        if may {
            self.told = Some(Instant::now());
        }
    }
}

impl Inner {
    /// Who but the one that asks stops. Of a leader that is `young` those that ask have perhaps been told by the one before, and who says
    /// nothing may be on its way out.
    pub async fn who_stops(self: &Arc<Self>, asking: NodeId, young: bool) -> BTreeSet<NodeId> {
        let me = self.life().map(|(node, _)| node).ok();
        let map = self.map();
        let mut asked = JoinSet::new();
        for node in map.nodes.values() {
            if node.state != NodeState::Up || node.id == asking {
                continue;
            }
            let (id, life, addr) = (node.id, node.incarnation, node.native.clone());
            let inner = self.clone();
            asked.spawn(async move {
                let said = match Some(id) == me {
                    true => Ok(inner.own_stop.lock().now()),
                    false => inner.pinged(id, life, &addr, PATIENCE).await,
                };
                let goes = match said {
                    Ok(Stops::Told) | Err(PingFailed::Over) => true,
                    Ok(Stops::Asks) | Err(PingFailed::Silent) => young,
                    Ok(Stops::No) => false,
                };
                goes.then_some(id)
            });
        }
        let mut all = BTreeSet::new();
        while let Some(one) = asked.join_next().await {
            all.extend(one.ok().flatten());
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_remembers_what_it_asked_and_was_told() {
        let mut own = OwnStop::default();
        assert_eq!(own.now(), Stops::No);
        own.asks();
        own.asks();
        assert_eq!(own.now(), Stops::Asks);
        own.heard(false);
        assert_eq!(own.now(), Stops::Asks, "the other question is under way");
        own.heard(true);
        assert_eq!(own.now(), Stops::Told);
        own.asks();
        own.heard(false);
        assert_eq!(own.now(), Stops::Told, "it was told before");
        own.told = Instant::now().checked_sub(STOPS);
        assert_eq!(own.now(), Stops::No, "it did not go");
    }
}
