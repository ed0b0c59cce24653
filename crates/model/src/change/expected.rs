//! The first change of a map, and the revision that later ones were decided on.

use super::Change;
use super::outcome::{Outcome, Refusal, bad_name};
use crate::ids::{ClusterId, GroupId, Incarnation, NodeId, PoolId, Revision};
use crate::map::ClusterMap;

impl ClusterMap {
    pub(super) fn bootstrap(&mut self, cluster: ClusterId) -> Result<Outcome, Refusal> {
        if self.cluster != ClusterId(0) {
            return Err(Refusal::AlreadyBootstrapped {
                cluster: self.cluster,
            });
        }
        if cluster == ClusterId(0) {
            return Err(bad_name("cluster id", "0", "0 stands for no cluster"));
        }
        self.cluster = cluster;
        self.next_node = NodeId(1);
        self.next_pool = PoolId(1);
        self.next_group = GroupId(1);
        self.next_incarnation = Incarnation(1);
        self.moved(Outcome::Done)
    }

    pub(super) fn check_expected(
        &self,
        expected: Option<Revision>,
        change: &Change,
    ) -> Result<(), Refusal> {
        let Some(expected) = expected else {
            return Ok(());
        };
        let newest_of = |groups: &mut dyn Iterator<Item = GroupId>| {
            let known = groups.filter_map(|g| self.groups.get(&g));
            known.map(|g| g.revision).max().unwrap_or_default()
        };
        let stands = expected <= self.revision
            && match change {
                Change::CommitEpochs(new) | Change::GiveUpUnflushed(new) => {
                    newest_of(&mut new.iter().map(|n| n.group)) <= expected
                }
                Change::MarkLost { groups } => newest_of(&mut groups.iter().copied()) <= expected,
                Change::Hold(new) => {
                    let pool = self.pools.get(&new.pool).and_then(|p| p.holdings());
                    pool.is_none_or(|h| h.revision <= expected)
                }
                _ => expected == self.revision,
            };
        if stands {
            Ok(())
        } else {
            Err(Refusal::MapMovedOn {
                expected,
                found: self.revision,
            })
        }
    }
}
