//! Remembers the blocks of another node, so that they can be fetched again when that node is lost.
//!
//! Each node asks the one before it, in the circle of the ids of the nodes that are up, which of its blocks changed since it
//! asked last: all of them at first, page by page, and then few. When the map ends this life of that node,
//! the record goes to `recovery.rs`. The other nodes need not know the rememberer; two that die
//! together take their records with them, and their blocks are fetched when they are asked for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use staves_model::mutant::{Mutant, planted};
use staves_model::{ClusterMap, Incarnation, NodeId, NodeState, PoolId, STRETCH_BLOCKS};
use staves_store::blocks::{BLOCK_PARTS, PART_BYTES};
use staves_wire::Message;
use staves_wire::files::{
    CHECKED_ALL, FILE_CHANGES_MAX, FileChange, FileChanges, FileChangesAnswer, FileId, FileKey,
};
use staves_wire::{ErrorCode, ErrorPacket};

use super::recovery::{Loss, Parts};
use super::{Files, FilesPool};

/// The interval between two questions to the node before.
const ROUND: Duration = Duration::from_secs(1);
/// Pages that are asked for in a round: more of the list waits for the next one.
const PAGES_MAX: usize = 16;
/// The bound on its answer.
const ASK: Duration = Duration::from_secs(2);
/// One block is remembered for so many bytes of this node's own budget: some 40 bytes each, one percent of it.
const BYTES_PER_BLOCK: u64 = 4096;

/// The record of one life of a node, in one pool.
struct List {
    node: NodeId,
    incarnation: Incarnation,
    /// All that changed until then is known.
    since: u64,
    /// A pass through what changed later, which has not come to its end.
    pass: Option<Pass>,
    /// By the place in that node's table.
    blocks: BTreeMap<u32, Block>,
}

#[derive(Clone, Copy)]
struct Pass {
    from: u32,
    number: u64,
}

struct Block {
    file: FileId,
    block: u32,
    parts: u32,
}

const _: () = assert!(BLOCK_PARTS == u32::BITS as usize && size_of::<Block>() == 24);

impl List {
    fn of(node: NodeId, incarnation: Incarnation) -> List {
        List {
            node,
            incarnation,
            since: 0,
            pass: None,
            blocks: BTreeMap::new(),
        }
    }

    fn question(&self, pool: PoolId) -> FileChanges {
        FileChanges {
            pool,
            since: self.since,
            from: self.pass.map_or(0, |pass| pass.from),
        }
    }

    /// Takes an answer over, and remembers no more than so many blocks. Whether there is more to ask for now.
    fn learn(&mut self, answer: &FileChangesAnswer, blocks_max: usize) -> bool {
        if answer.incarnation != self.incarnation {
            return false; // the map will say so
        }
        if answer.number < self.since {
            *self = List::of(self.node, self.incarnation);
            return true;
        }
        for FileChange { entry, key } in answer.entries.iter().take(FILE_CHANGES_MAX) {
            let parts = key.parts;
            if parts == 0 {
                self.blocks.remove(entry);
            } else if self.blocks.len() < blocks_max || self.blocks.contains_key(entry) {
                let (file, block) = (key.file, key.block);
                self.blocks.insert(*entry, Block { file, block, parts });
            }
        }
        let Pass { from, number } = self.pass.unwrap_or(Pass {
            from: 0,
            number: answer.number,
        });
        // One that leads back or nowhere ends the pass like the end.
        if answer.next == CHECKED_ALL || answer.next <= from {
            let seen = match planted(Mutant::ListJumpsAhead) {
                true => answer.number,
                false => number,
            };
            (self.since, self.pass) = (seen, None);
            return false;
        }
        self.pass = Some(Pass {
            from: answer.next,
            number,
        });
        true
    }

    /// Bytes of all parts.
    fn bytes(&self) -> u64 {
        let parts = self.blocks.values().map(|block| block.parts.count_ones());
        parts
            .map(|parts| u64::from(parts) * PART_BYTES as u64)
            .sum()
    }

    /// All that it had.
    fn parts(&self) -> Parts {
        let mut all = Parts::new();
        for block in self.blocks.values() {
            let stretch = block.block / STRETCH_BLOCKS;
            let within = block.block % STRETCH_BLOCKS * BLOCK_PARTS as u32;
            *all.entry((block.file, stretch)).or_default() |= u128::from(block.parts) << within;
        }
        all
    }
}

pub(super) async fn run(files: Arc<Files>) {
    let mut lists: BTreeMap<PoolId, List> = BTreeMap::new();
    let mut rounds = tokio::time::interval(ROUND);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        let pools = files.pools();
        lists.retain(|id, _| pools.iter().any(|pool| pool.id == *id));
        for pool in pools {
            look(&files, &pool, &mut lists).await;
            let list = lists.get(&pool.id);
            let blocks = list.map_or(0, |list| list.blocks.len() as u64);
            let bytes = list.map_or(0, List::bytes);
            let counts = &pool.counts;
            counts.remembered_blocks.store(blocks, Ordering::Relaxed);
            counts.remembered_bytes.store(bytes, Ordering::Relaxed);
        }
    }
}

async fn look(files: &Files, pool: &FilesPool, lists: &mut BTreeMap<PoolId, List>) {
    let map = files.map();
    if let Some(list) = lists.get(&pool.id)
        && !map.is_up(list.node, list.incarnation)
    {
        files.recovery.lost(Loss {
            pool: pool.id,
            node: list.node,
            parts: list.parts(),
        });
        lists.remove(&pool.id);
    }
    let Some((node, incarnation)) = before(&map, files.life.node) else {
        lists.remove(&pool.id);
        return;
    };
    let list = lists
        .entry(pool.id)
        .or_insert_with(|| List::of(node, incarnation));
    if list.node != node {
        *list = List::of(node, incarnation);
    }
    let blocks_max = (pool.budget_bytes() / BYTES_PER_BLOCK) as usize;
    for _ in 0..PAGES_MAX {
        let ask = Message::FileChanges(list.question(pool.id));
        let answer = files.peers.call(node, &ask, Instant::now() + ASK).await;
        match answer {
            Ok(Message::FileChangesAnswer(answer)) if list.learn(&answer, blocks_max) => {}
            Ok(_) => return,
            Err(error) => {
                tracing::debug!(pool = %pool.id, %node, %error, "it does not say what it has");
                return;
            }
        }
    }
}

/// The node whose blocks this one remembers.
fn before(map: &ClusterMap, me: NodeId) -> Option<(NodeId, Incarnation)> {
    let up = |n: &&staves_model::Node| n.state == NodeState::Up && n.id != me;
    let below = map.nodes.range(..me).map(|(_, n)| n).rfind(up);
    let node = below.or_else(|| map.nodes.values().rfind(up))?;
    Some((node.id, node.incarnation))
}

/// The changes that a node's neighbour is sent.
pub(super) fn changes(
    files: &Files,
    pool: &FilesPool,
    ask: FileChanges,
) -> Result<FileChangesAnswer, ErrorPacket> {
    let from = usize::try_from(ask.from).map_err(|_| {
        ErrorPacket::new(ErrorCode::Malformed, "a place beyond any table".to_owned())
    })?;
    let changed = pool.blocks.changed(ask.since, from, FILE_CHANGES_MAX);
    let entries = changed.entries.into_iter().map(|(entry, listed)| {
        let (file, block) = listed.map_or(([0; 2], 0), |l| (l.key.file, l.key.block));
        let key = FileKey {
            file: FileId {
                high: file[0],
                low: file[1],
            },
            block,
            bytes: listed.map_or(0, |l| l.bytes),
            parts: listed.map_or(0, |l| l.parts),
        };
        FileChange { entry, key }
    });
    Ok(FileChangesAnswer {
        incarnation: files.life.incarnation,
        number: changed.number,
        next: changed.next.map_or(CHECKED_ALL, |next| next as u32),
        entries: entries.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId { high: 7, low: 9 };

    fn change(entry: u32, block: u32, parts: u32) -> FileChange {
        let key = FileKey {
            file: FILE,
            block,
            bytes: 1 << 18,
            parts,
        };
        FileChange { entry, key }
    }

    fn answer(number: u64, next: u32, entries: Vec<FileChange>) -> FileChangesAnswer {
        FileChangesAnswer {
            incarnation: Incarnation(5),
            number,
            next,
            entries,
        }
    }

    fn list() -> List {
        List::of(NodeId(2), Incarnation(5))
    }

    #[test]
    fn a_list_follows_what_comes_and_goes_and_knows_it_by_stretches() {
        let (mut list, pool) = (list(), PoolId(1));
        let asked = |list: &List| (list.question(pool).since, list.question(pool).from);
        assert!(list.learn(&answer(10, 64, vec![change(3, 0, 0b1)]), 100));
        assert_eq!(asked(&list), (0, 64), "the pass goes on");
        // Its end: what came meanwhile is asked for next time, from the number that the pass began with.
        let rest = vec![change(70, 1, u32::MAX), change(80, 4, 0b10)];
        assert!(!list.learn(&answer(12, CHECKED_ALL, rest), 100));
        assert_eq!(asked(&list), (10, 0));
        let parts = |list: &List| list.parts().into_iter().collect::<Vec<_>>();
        assert_eq!(
            parts(&list),
            [((FILE, 0), 0xffff_ffff_0000_0001), ((FILE, 1), 0b10)]
        );
        // A part more, one gone, and another block in an entry.
        let later = vec![change(3, 0, 0b11), change(70, 0, 0), change(80, 7, 1)];
        assert!(!list.learn(&answer(20, CHECKED_ALL, later), 100));
        assert_eq!(parts(&list), [((FILE, 0), 0b11), ((FILE, 1), 1 << 96)]);
        assert_eq!(asked(&list), (20, 0));
    }

    /// Nothing in a node's answer takes more memory than is meant for it, or keeps the asker asking.
    #[test]
    fn a_node_that_lies_takes_no_more_than_its_share() {
        let mut list = list();
        let flood = |from: u32| (from..from + 9000).map(|at| change(at, at, u32::MAX));
        assert!(list.learn(&answer(1, 9, flood(0).collect()), usize::MAX));
        assert_eq!(list.blocks.len(), FILE_CHANGES_MAX, "a page at a time");
        assert!(list.learn(&answer(1, 10, flood(1 << 20).collect()), 5000));
        assert_eq!(list.blocks.len(), 5000);
        // What is known already is kept up to date all the same.
        assert!(list.learn(&answer(1, 11, vec![change(3, 1 << 30, 0b1)]), 10));
        assert_eq!(list.blocks.len(), 5000);
        assert_eq!(list.parts()[&(FILE, 1 << 28)], 1);
        // Back to where it was: that is the end.
        assert!(!list.learn(&answer(1, 11, Vec::new()), 10));
        // Numbers that go back: all that is known is of another table.
        list.since = 8;
        assert!(list.learn(&answer(7, CHECKED_ALL, vec![change(1, 1, 1)]), 10));
        assert_eq!((list.blocks.len(), list.since), (0, 0));
        // Another life is no evidence about this one.
        let mut other = answer(9, CHECKED_ALL, vec![change(1, 1, 1)]);
        other.incarnation = Incarnation(6);
        assert!(!list.learn(&other, 10) && list.blocks.is_empty());
    }
}
