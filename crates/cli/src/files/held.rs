//! What of files is in memory, as the nodes say it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use staves_client::{Client, OpenFile};
use staves_model::{ClusterMap, NodeId, PoolId};
use staves_wire::Message;
use staves_wire::files::{ALL_BUCKETS, FileId, FileKeys, FileKeysAnswer};
use tokio::task::JoinSet;

/// Bytes of a block, and of a part of it.
const BLOCK_BYTES: u64 = staves_store::blocks::BLOCK_BYTES as u64;
const PART_BYTES: u64 = staves_store::blocks::PART_BYTES as u64;

/// What is in memory.
#[derive(Default)]
pub struct Held {
    /// By file and block: the parts that each node has.
    files: BTreeMap<FileId, BTreeMap<u32, BTreeMap<NodeId, u32>>>,
    /// Nodes that are up and did not say what they have.
    pub silent: Vec<NodeId>,
}

/// Asks all nodes that are up what they have, all at once. Who has not said it by then is silent.
pub async fn held(client: &Client, map: &ClusterMap, pool: PoolId, until: Instant) -> Held {
    let mut asked = JoinSet::new();
    for node in map.nodes.values() {
        if !map.is_up(node.id, node.incarnation) {
            continue;
        }
        let (client, node) = (client.clone(), node.id);
        let bucket = ALL_BUCKETS;
        let ask = Message::FileKeys(FileKeys { pool, bucket });
        asked.spawn(async move { (node, client.ask(node, ask, until).await) });
    }
    let mut held = Held::default();
    while let Some(answer) = asked.join_next().await {
        let (node, answer) = answer.expect("asking does not panic");
        let Ok(Message::FileKeysAnswer(FileKeysAnswer { keys, .. })) = answer else {
            held.silent.push(node);
            continue;
        };
        for key in keys {
            let blocks = held.files.entry(key.file).or_default();
            let parts = blocks.entry(key.block).or_default();
            parts.insert(node, key.parts);
        }
    }
    held.silent.sort_unstable();
    held
}

impl Held {
    /// Who did not say what it has.
    pub fn silence(&self) -> String {
        let nodes: Vec<String> = self.silent.iter().map(ToString::to_string).collect();
        let who = match nodes.len() {
            1 => "node",
            _ => "nodes",
        };
        format!(
            "{who} {} did not say in time what is there: there may be more in memory",
            nodes.join(", ")
        )
    }

    /// Whether not all of a file is in memory.
    pub fn lacks(&self, file: &OpenFile) -> bool {
        self.here(file) < file.size()
    }

    /// Bytes of a file that any node has.
    pub fn here(&self, file: &OpenFile) -> u64 {
        self.bytes(file, |nodes| {
            nodes.values().fold(0, |all, parts| all | parts)
        })
    }

    /// Bytes of a file that each node has.
    pub fn by_node(&self, file: &OpenFile) -> BTreeMap<NodeId, u64> {
        let blocks = self.files.get(&file.id()).into_iter().flatten();
        let nodes: BTreeSet<NodeId> = blocks.flat_map(|(_, by)| by.keys().copied()).collect();
        let of = |node| self.bytes(file, |by| by.get(&node).copied().unwrap_or(0));
        nodes.into_iter().map(|node| (node, of(node))).collect()
    }

    fn bytes(&self, file: &OpenFile, parts: impl Fn(&BTreeMap<NodeId, u32>) -> u32) -> u64 {
        let blocks = self.files.get(&file.id()).into_iter().flatten();
        let bytes = blocks.map(|(block, by)| parts_bytes(file.size(), *block, parts(by)));
        bytes.sum()
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
}
