//! The blocks of files pools: each node compares the checksums of what it has, and drops what is damaged. It comes from
//! its source again when it is read.

use std::time::Duration;

use staves_model::{ClusterMap, Node, Pool};
use staves_wire::Message;
use staves_wire::files::{CHECKED_ALL, FileCheck};

use super::tally::ScrubTally;
use staves_cli_common::cluster::Cluster;

/// A node that is busy is asked again, so often and after so long.
const TRIES: usize = 5;
const REST: Duration = Duration::from_millis(200);

/// Has every node that is up look through all its blocks of a pool.
pub fn scrub(cluster: &Cluster, map: &ClusterMap, pool: &Pool, tally: &mut ScrubTally) {
    let up = map.nodes.values();
    for node in up.filter(|n| map.is_up(n.id, n.incarnation)) {
        if !look(cluster, node, pool, tally) {
            tally.silent(node.id.0);
        }
    }
}

/// False: the node did not answer to the end.
fn look(cluster: &Cluster, node: &Node, pool: &Pool, tally: &mut ScrubTally) -> bool {
    let mut from = 0;
    while from != CHECKED_ALL {
        let ask = FileCheck {
            pool: pool.id,
            from,
        };
        let answered = (0..TRIES).find_map(|at| {
            if at > 0 {
                std::thread::sleep(REST);
            }
            let ask = (node.native.clone(), Message::FileCheck(ask));
            match cluster.ask_all(vec![ask]).pop() {
                Some(Ok(Message::FileChecked(found))) => Some(found),
                _ => None,
            }
        });
        // An answer that does not go on would be asked for for ever.
        let Some(found) = answered.filter(|found| found.next > from) else {
            return false;
        };
        tally.blocks(found.bytes, found.damaged);
        from = found.next;
    }
    true
}
