//! The node that serves a hash slot, and the redirect for a client that asks another node.
//!
//! By default a node passes on what is not its own to answer. With `resp_redirect = moved` it does as a
//! node of Redis Cluster does: it names the node that serves the slot, and the client goes there itself.
//!
//! `ASK` is never needed. Redis moves a slot key by key, so that for a while some of its keys are here and
//! some there. A bucket moves as a whole: the new member receives everything before an epoch makes it the
//! data bucket, and at any moment one node answers for all keys of the slot. For the same reason several
//! keys of one slot are never refused with `TRYAGAIN`.

use staves_model::{ClusterMap, HashSlot, Node, NodeId, Pool};
use staves_wire::cache::Op;

/// The treatment of a key that another node serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Redirect {
    /// Passes it on, and the answer back: any client works with any node.
    #[default]
    Forward,
    /// Answers `-MOVED slot host:port`, for clients that know Redis Cluster.
    Moved,
}

impl Redirect {
    /// `redis_mode`, and `mode` of HELLO.
    pub(super) fn mode(self) -> &'static str {
        match self {
            Redirect::Forward => "standalone",
            Redirect::Moved => "cluster",
        }
    }
}

/// The node of a bucket's data bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner<'a> {
    pub(super) node: &'a Node,
    /// It runs, as far as the directory knows, in the life that holds the bucket.
    pub(super) up: bool,
    /// Its epoch is open; if not, a takeover is under way and requests wait for its end.
    pub(super) open: bool,
}

/// The node that serves a bucket by this map. `None`: its bytes are lost, or no member is listed.
pub(super) fn owner<'a>(map: &'a ClusterMap, pool: &Pool, bucket: usize) -> Option<Owner<'a>> {
    let group = map.groups.get(pool.groups.get(bucket)?)?;
    let data = group.members.first().copied().flatten()?;
    if group.lost {
        return None;
    }
    Some(Owner {
        node: map.node_of(&data)?,
        up: map.runs(data.id),
        open: group.open,
    })
}

/// The error for a client that asks node `me` for a slot which is not its own; `None` if it is.
///
/// A client is sent only to a node that lives. One that is dead still stands in the map for a moment;
/// The answer is `CLUSTERDOWN` then, as Redis's is, and clients fetch the slots anew.
pub fn elsewhere(map: &ClusterMap, pool: &Pool, slot: HashSlot, me: NodeId) -> Option<String> {
    match owner(map, pool, pool.bucket_of(slot)) {
        Some(owner) if owner.node.id == me => None,
        Some(owner) if owner.up => {
            let (host, port) = address(owner.node);
            Some(format!("MOVED {slot} {host}:{port}"))
        }
        _ => Some("CLUSTERDOWN Hash slot not served".into()),
    }
}

/// The refusal of a command whose keys are of several slots, where a client is meant to ask the nodes
/// of each.
pub fn cross_slot(ops: &[Op<'_>]) -> Option<&'static str> {
    let mut slots = ops.iter().map(Op::slot);
    let first = slots.next()?;
    slots
        .any(|slot| slot != first)
        .then_some("CROSSSLOT Keys in request don't hash to the same slot")
}

/// Host and port, as the node advertises its RESP door. An IPv6 address has no brackets, as in Redis.
pub(super) fn address(node: &Node) -> (&str, i64) {
    let (host, port) = node.resp.rsplit_once(':').unwrap_or((&node.resp, "0"));
    (host.trim_matches(['[', ']']), port.parse().unwrap_or(0))
}
