//! The parts of a dataset's files that are in memory, as nodes report them.
//!
//! Reports come page by page and are summed up at once, for a node may have tens of millions of blocks. Four bytes are kept for
//! each block of the files that were asked for.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use staves_client::{Client, OpenFile};
use staves_model::{ClusterMap, NodeId, PoolId};
use staves_wire::Message;
use staves_wire::files::{CHECKED_ALL, FileChange, FileChanges, FileId, FileKey};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::FoundFile;

/// Bytes of a block, and of a part of it.
const BLOCK_BYTES: u64 = staves_store::blocks::BLOCK_BYTES as u64;
const PART_BYTES: u64 = staves_store::blocks::PART_BYTES as u64;
/// Pages that wait to be summed up.
const PAGES_WAITING_MAX: usize = 8;

/// The blocks in memory.
#[derive(Default)]
pub struct ResidentBlocks {
    files: HashMap<FileId, Share>,
    /// Nodes that are up and did not say all that they have.
    pub silent: Vec<NodeId>,
}

/// The blocks in memory of one file.
struct Share {
    size: u64,
    /// By block: the parts that any node has.
    parts: Vec<u32>,
    /// Bytes that each node has.
    nodes: BTreeMap<NodeId, u64>,
}

/// Asks all nodes that are up what they have of some files, all at once. Who has not said all of it by then is silent.
pub async fn held(
    client: &Client,
    map: &ClusterMap,
    pool: PoolId,
    files: &[FoundFile],
    until: Instant,
) -> ResidentBlocks {
    let mut held = ResidentBlocks::of(files.iter().map(|found| &found.file));
    let (says, mut said) = mpsc::channel(PAGES_WAITING_MAX);
    let mut asked = JoinSet::new();
    for node in map.nodes.values() {
        if map.is_up(node.id, node.incarnation) {
            let (client, node, says) = (client.clone(), node.id, says.clone());
            asked.spawn(async move { (node, ask(&client, node, pool, until, says).await) });
        }
    }
    drop(says);
    while let Some((node, page)) = said.recv().await {
        for change in &page {
            held.add(node, &change.key);
        }
    }
    while let Some(asked) = asked.join_next().await {
        let (node, all) = asked.expect("asking does not panic");
        if !all {
            held.silent.push(node);
        }
    }
    held.silent.sort_unstable();
    held
}

/// Goes through a node's whole table. Whether it said all of it.
async fn ask(
    client: &Client,
    node: NodeId,
    pool: PoolId,
    until: Instant,
    says: mpsc::Sender<(NodeId, Vec<FileChange>)>,
) -> bool {
    let mut from = 0;
    loop {
        let since = 0;
        let ask = Message::FileChanges(FileChanges { pool, since, from });
        let Ok(Message::FileChangesAnswer(page)) = client.ask(node, ask, until).await else {
            return false;
        };
        if says.send((node, page.entries)).await.is_err() {
            return false;
        }
        match page.next {
            CHECKED_ALL => return true,
            next if next > from => from = next,
            // One that leads back would never end.
            _ => return false,
        }
    }
}

impl ResidentBlocks {
    fn of<'a>(files: impl Iterator<Item = &'a OpenFile>) -> ResidentBlocks {
        let share = |file: &OpenFile| Share {
            size: file.size(),
            parts: Vec::new(),
            nodes: BTreeMap::new(),
        };
        ResidentBlocks {
            files: files.map(|file| (file.id(), share(file))).collect(),
            silent: Vec::new(),
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

    /// The nodes that did not report their blocks, by name.
    pub fn silence(&self, map: &ClusterMap) -> String {
        let nodes = self.silent.iter().map(|node| name_of(map, *node));
        let nodes: Vec<String> = nodes.collect();
        let who = match nodes.len() {
            1 => "node",
            _ => "nodes",
        };
        format!(
            "{who} {} did not say in time what is there: there may be more in memory",
            nodes.join(", ")
        )
    }

    /// Returns whether not all of a file is in memory.
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
    pub fn by_node(&self, file: &OpenFile) -> impl Iterator<Item = (NodeId, u64)> + '_ {
        let share = self.files.get(&file.id());
        let nodes = share.into_iter().flat_map(|share| &share.nodes);
        nodes.map(|(node, bytes)| (*node, *bytes))
    }
}

/// A node's name for people: its id, if the map has no such node, and both, if another has that name.
pub fn name_of(map: &ClusterMap, node: NodeId) -> String {
    let Some(known) = map.nodes.get(&node) else {
        return node.to_string();
    };
    let same = map.nodes.values().filter(|other| other.name == known.name);
    match same.count() {
        0 | 1 => known.name.clone(),
        _ => format!("{} (node {node})", known.name),
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

/// A share for people.
pub fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "100 %".to_owned(),
        // What is not all there is never told as all.
        _ if part < whole => format!("{} %", u128::from(part) * 100 / u128::from(whole)),
        _ => "100 %".to_owned(),
    }
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
        assert_eq!(
            (percent(999, 1000), percent(1000, 1000)),
            ("99 %".into(), "100 %".into())
        );
    }

    /// A block of two nodes counts once; one of no file that was asked for, or beyond its end, takes no memory.
    #[test]
    fn what_nodes_say_is_summed_up_and_takes_no_more_than_the_files_blocks() {
        let size = BLOCK_BYTES + PART_BYTES;
        let (file, other) = (FileId { high: 1, low: 2 }, FileId { high: 3, low: 4 });
        let mut held = ResidentBlocks::default();
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
