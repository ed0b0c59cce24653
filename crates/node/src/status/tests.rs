//! Many maps, and their reports.

mod directory;
mod nodes;
mod pools;
mod regions;
mod room;
mod waits;

use staves_model::{
    ClusterId, Epoch, GroupId, Incarnation, LastOpen, Medium, Member, MemberId, MemberSlot, PoolId,
    PoolKind, Revision,
};

use staves_store::EXTENT_BYTES;

use super::*;

struct Cluster {
    map: ClusterMap,
    directory: DirectoryFacts,
}

/// `nodes` nodes and a pool of 8 buckets whose members go round the nodes.
fn cluster(nodes: u64, scheme: &str) -> Cluster {
    let scheme: staves_model::Scheme = scheme.parse().expect("a scheme");
    let width = scheme.width().min(nodes as usize) as u64;
    let group = |bucket: u32| {
        let members: Vec<Option<Member>> = (0..width)
            .map(|slot| {
                let node = (u64::from(bucket) + slot) % nodes + 1;
                Some(Member {
                    id: MemberId::new(NodeId(node), Incarnation(node)),
                    complete: true,
                })
            })
            .collect();
        Group {
            id: GroupId(bucket),
            pool: PoolId(1),
            bucket,
            m: scheme.m,
            epoch: Epoch(1),
            open: true,
            coordinator: MemberSlot(0),
            kept: vec![None; members.len()],
            last_open: LastOpen {
                epoch: Epoch(1),
                members: members.clone(),
            },
            members,
            fresh: false,
            lost: false,
            revision: Revision(1),
        }
    };
    let node = |id: u64| Node {
        id: NodeId(id),
        incarnation: Incarnation(id),
        name: format!("n{id}"),
        zone: None,
        native: format!("10.0.0.{id}:1600"),
        resp: format!("10.0.0.{id}:6379"),
        admin: format!("10.0.0.{id}:1680"),
        memory_bytes: 1 << 30,
        disk_bytes: 0,
        durable: true,
        state: NodeState::Up,
        draining: false,
    };
    let pool = Pool {
        id: PoolId(1),
        name: "cache".into(),
        kind: PoolKind::Cache,
        scheme,
        medium: Medium::Ram,
        node_budget_bytes: 1 << 29,
        groups: (0..8).map(GroupId).collect(),
        may_start_empty: true,
    };
    let voters = match nodes {
        1 | 2 => 1,
        3 | 4 => 3,
        _ => 5,
    };
    Cluster {
        map: ClusterMap {
            cluster: ClusterId(7),
            revision: Revision(9),
            nodes: (1..=nodes).map(|id| (NodeId(id), node(id))).collect(),
            pools: [(PoolId(1), pool)].into(),
            groups: (0..8).map(|b| (GroupId(b), group(b))).collect(),
            ..ClusterMap::default()
        },
        directory: DirectoryFacts {
            leader: Some(1),
            voters: (1..=voters).collect(),
            term: 3,
            ..DirectoryFacts::default()
        },
    }
}

impl Cluster {
    fn report(&self) -> StatusReport {
        StatusReport::new(&self.map, NodeId(1), self.directory.clone(), [])
    }

    fn says(&self) -> (State, String) {
        let report = self.report();
        (report.state, report.sentence)
    }

    fn down(&mut self, node: u64) {
        self.map.nodes.get_mut(&NodeId(node)).expect("a node").state = NodeState::Down;
    }

    /// Its buckets go on with the members that are left.
    fn taken_over(&mut self, node: u64) {
        for group in self.groups() {
            group
                .members
                .retain(|m| m.is_none_or(|m| m.id.node != NodeId(node)));
            group.last_open.members = group.members.clone();
        }
    }

    fn groups(&mut self) -> impl Iterator<Item = &mut Group> {
        self.map.groups.values_mut()
    }
}

fn said(state: State, sentence: &str) -> (State, String) {
    (state, sentence.to_owned())
}
