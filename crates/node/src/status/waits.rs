//! Buckets without a node that perhaps only an operator can bring.

use staves_model::{ClusterMap, Group, MemberSlot, Pool, whole_buckets};

use super::WaitingBucket;

/// True if no node answers for a data bucket of a group that serves, and none will until a node has room for it: where
/// there is parity to spare, that gives its place up.
pub(super) fn unanswered(map: &ClusterMap, group: &Group) -> bool {
    let m = usize::from(group.m);
    let whole = whole_buckets(group.m, &group.members, |x| map.runs(x.id));
    let vacant = || group.members.iter().take(m).any(Option::is_none);
    group.open && !group.lost && whole == m && vacant()
}

/// Most waiting buckets of a pool that are listed one by one.
const WAITING_MAX: usize = 64;

/// The buckets of a pool's groups that no node holds, as far as the nodes there are could hold them (m > 1). With
/// m = 1 a copy that is missing is one less; it is reported as such.
pub(super) fn waiting(map: &ClusterMap, pool: &Pool) -> Vec<WaitingBucket> {
    let mut waiting = Vec::new();
    let groups = map.groups_of(pool);
    for group in groups.filter(|g| g.open && !g.lost && g.m > 1) {
        let width = match pool.is_loading(group.id) {
            true => group.m.into(),
            false => pool.scheme.width(),
        };
        let free = map.homes().filter(|home| !group.lists(home.id)).count();
        let vacant = (0..width).filter(|s| group.member(MemberSlot(*s as u8)).is_none());
        // Parity that there are no nodes for is no bucket that anybody expects.
        let expected = |s: &usize| *s < usize::from(group.m) || free > 0;
        waiting.extend(vacant.filter(expected).map(|slot| WaitingBucket {
            group: group.id.0,
            bucket: slot as u8,
            has_nodes: free > 0,
        }));
        if waiting.len() >= WAITING_MAX {
            waiting.truncate(WAITING_MAX);
            break;
        }
    }
    waiting
}
