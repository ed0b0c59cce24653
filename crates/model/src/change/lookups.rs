//! Lookups by a change that names a thing.

use super::outcome::Refusal;
use crate::ids::{GroupId, NodeId};
use crate::map::{ClusterMap, Group, Node, Pool};

impl ClusterMap {
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
