//! Lookups by a change that names a thing, and of what it was decided on.

use super::Change;
use super::outcome::Refusal;
use crate::ids::{GroupId, NodeId, Revision};
use crate::map::{ClusterMap, Group, Node, Pool};

impl ClusterMap {
    /// Refuses a change that was decided on a map of which too much has changed since.
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

    pub(super) fn known_node(&mut self, node: NodeId) -> Result<&mut Node, Refusal> {
        let known = self.nodes.get_mut(&node);
        known.ok_or(Refusal::UnknownNode { node })
    }

    pub(super) fn known_pool(&self, name: &str) -> Result<&Pool, Refusal> {
        let known = self.pool_named(name);
        known.ok_or_else(|| Refusal::UnknownPool { name: name.into() })
    }

    pub(super) fn known_group(&self, group: GroupId) -> Result<&Group, Refusal> {
        let known = self.groups.get(&group);
        known.ok_or(Refusal::UnknownGroup { group })
    }

    /// The files pool that a dataset is in.
    pub(super) fn pool_of_dataset(&self, name: &str) -> Result<&Pool, Refusal> {
        let found = self.dataset(name).map(|(pool, _)| pool);
        found.ok_or_else(|| Refusal::UnknownDataset { name: name.into() })
    }
}
