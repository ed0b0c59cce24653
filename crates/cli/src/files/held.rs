//! What of a dataset's files is in memory, as the nodes say it: page by page, and summed up as it comes, for a node may have tens of
//! millions of blocks. What is held here is four bytes for each block of the files that were asked for.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use staves_client::OpenFile;
use staves_model::{ClusterMap, NodeId, PoolId};
use staves_wire::Message;
use staves_wire::files::{CHECKED_ALL, FileChanges, FileId, FileKey};

use super::Found;
use crate::memory::Session;

/// How long a node may take for a page.
const PAGE: Duration = Duration::from_secs(5);
/// Bytes of a block, and of a part of it.
const BLOCK_BYTES: u64 = staves_store::blocks::BLOCK_BYTES as u64;
const PART_BYTES: u64 = staves_store::blocks::PART_BYTES as u64;

/// What is in memory.
#[derive(Default)]
pub struct Held {
    files: BTreeMap<FileId, Share>,
    /// Nodes that are up and did not say all that they have.
    pub silent: Vec<NodeId>,
}

/// What is in memory of one file.
struct Share {
    size: u64,
    /// By block: the parts that any node has.
    parts: Vec<u32>,
    /// Bytes that each node has.
    nodes: BTreeMap<NodeId, u64>,
}

/// Asks all nodes that are up what they have of some files.
pub fn held(session: &Session, map: &ClusterMap, pool: PoolId, files: &[Found]) -> Held {
    let mut held = Held::of(files.iter().map(|found| &found.file));
    let nodes = map.nodes.values();
    for node in nodes.filter(|n| map.is_up(n.id, n.incarnation)) {
        if !held.ask(session, node.id, pool) {
            held.silent.push(node.id);
        }
    }
    held
}

impl Held {
    fn of<'a>(files: impl Iterator<Item = &'a OpenFile>) -> Held {
        let share = |file: &OpenFile| Share {
            size: file.size(),
            parts: Vec::new(),
            nodes: BTreeMap::new(),
        };
        Held {
            files: files.map(|file| (file.id(), share(file))).collect(),
            silent: Vec::new(),
        }
    }

    /// Goes through a node's whole table. Whether it said all of it.
    fn ask(&mut self, session: &Session, node: NodeId, pool: PoolId) -> bool {
        let mut from = 0;
        loop {
            let since = 0;
            let ask = Message::FileChanges(FileChanges { pool, since, from });
            let asked = session.client.ask(node, ask, Instant::now() + PAGE);
            let Ok(Message::FileChangesAnswer(page)) = session.runtime.block_on(asked) else {
                return false;
            };
            for change in &page.entries {
                self.add(node, &change.key);
            }
            match page.next {
                CHECKED_ALL => return true,
                next if next > from => from = next,
                // One that leads back would never end.
                _ => return false,
            }
        }
    }

    fn add(&mut self, node: NodeId, key: &FileKey) {
        let Some(share) = self.files.get_mut(&key.file).filter(|_| key.parts != 0) else {
            return;
        };
        let blocks = share.size.div_ceil(BLOCK_BYTES) as usize;
        if key.block as usize >= blocks {
            return;
        }
        share.parts.resize(blocks, 0);
        share.parts[key.block as usize] |= key.parts;
        let bytes = share.nodes.entry(node).or_default();
        // A block that went and came meanwhile is told twice.
        *bytes = (*bytes + parts_bytes(share.size, key.block, key.parts)).min(share.size);
    }

    /// What to say of the nodes that are silent.
    pub fn silence(&self) -> String {
        let nodes: Vec<String> = self.silent.iter().map(ToString::to_string).collect();
        format!(
            "node {} did not say what it has: there may be more in memory",
            nodes.join(", ")
        )
    }

    /// Whether not all of a file is in memory.
    pub fn lacks(&self, file: &OpenFile) -> bool {
        self.here(file) < file.size()
    }

    /// Bytes of a file that any node has.
    pub fn here(&self, file: &OpenFile) -> u64 {
        let parts = self.files.get(&file.id()).map(|share| &share.parts);
        let blocks = (0..).zip(parts.into_iter().flatten());
        let bytes = blocks.map(|(block, parts)| parts_bytes(file.size(), block, *parts));
        bytes.sum()
    }

    /// Bytes of a file that each node has.
    pub fn by_node(&self, file: &OpenFile) -> BTreeMap<NodeId, u64> {
        let share = self.files.get(&file.id());
        share.map_or_else(BTreeMap::new, |share| share.nodes.clone())
    }
}

/// Bytes of some parts of a block of a file that ends where it does.
fn parts_bytes(size: u64, block: u32, parts: u32) -> u64 {
    let start = u64::from(block) * BLOCK_BYTES;
    let there = (0..32u64).filter(|part| parts & 1 << part != 0);
    there
        .map(|part| {
            size.saturating_sub(start + part * PART_BYTES)
                .min(PART_BYTES)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_memory_is_counted_to_the_byte() {
        let size = BLOCK_BYTES + PART_BYTES + 100;
        assert_eq!(parts_bytes(size, 0, 0b101), 2 * PART_BYTES);
        assert_eq!(parts_bytes(size, 1, 0b11), PART_BYTES + 100);
        assert_eq!(parts_bytes(size, 1, 0b10), 100);
        assert_eq!(parts_bytes(size, 2, 0b1), 0);
    }

    /// What two nodes have counts once; what is of no file that was asked for, or beyond its end, takes no memory.
    #[test]
    fn what_nodes_say_is_summed_up_and_takes_no_more_than_the_files_blocks() {
        let size = BLOCK_BYTES + PART_BYTES;
        let (file, other) = (FileId { high: 1, low: 2 }, FileId { high: 3, low: 4 });
        let mut held = Held::default();
        let share = Share {
            size,
            parts: Vec::new(),
            nodes: BTreeMap::new(),
        };
        held.files.insert(file, share);
        let key = |file, block, parts| FileKey {
            file,
            block,
            bytes: 0,
            parts,
        };
        held.add(NodeId(1), &key(file, 0, 0b11));
        held.add(NodeId(2), &key(file, 0, 0b10));
        held.add(NodeId(2), &key(file, 1, 0b1));
        for (file, block, parts) in [(other, 0, 1), (file, u32::MAX, 1), (file, 1, 0)] {
            held.add(NodeId(3), &key(file, block, parts));
        }
        let share = &held.files[&file];
        assert_eq!((held.files.len(), &share.parts[..]), (1, &[0b11, 0b1][..]));
        let nodes = [(NodeId(1), 2 * PART_BYTES), (NodeId(2), 2 * PART_BYTES)];
        assert_eq!(share.nodes, BTreeMap::from(nodes));
        for _ in 0..100 {
            held.add(NodeId(1), &key(file, 0, u32::MAX));
        }
        assert_eq!(held.files[&file].nodes[&NodeId(1)], size);
    }
}
