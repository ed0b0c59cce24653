//! Writes that are recorded, and looked for at the end.
//!
//! Each task has blocks of its own and writes them in turn, with the block's number and a version. A write without an answer may be done or not; one that was
//! acknowledged is there, until a later one of that block is acknowledged.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use serde_json::{Value, json};
use staves_grpc::{AttachedVolume, VolumesClient, VolumesError};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::{ATTACH, client};

/// Bytes of a block.
const BLOCK: usize = 4096;
/// A time without an answer that is worth telling.
const GAP: Duration = Duration::from_millis(50);
/// The pause after a failure.
const PAUSE: Duration = Duration::from_millis(10);

/// The options of a record.
#[derive(clap::Args)]
pub struct BlockRecord {
    #[arg(long)]
    volume: String,
    /// Blocks of 4 KiB that are written, from the volume's beginning.
    #[arg(long, default_value_t = 4096)]
    blocks: u64,
    /// Writes under way.
    #[arg(long, default_value_t = 4)]
    depth: u64,
}

/// The versions that a block may have.
#[derive(Default)]
struct BlockVersions {
    /// The newest that was acknowledged; 0: none.
    acknowledged: u64,
    /// Later ones without an answer.
    perhaps: Vec<u64>,
}

impl BlockVersions {
    /// True if no acknowledged write is lost where this version is found.
    fn may_be(&self, version: u64) -> bool {
        version == self.acknowledged || self.perhaps.contains(&version)
    }

    /// Notes that a write was acknowledged: it is there, whatever became of the ones before it.
    fn acknowledge(&mut self, version: u64) {
        self.acknowledged = version;
        self.perhaps.clear();
    }
}

/// The results of one task.
#[derive(Default)]
struct TaskRecord {
    acknowledged: u64,
    unanswered: u64,
    longest: Duration,
    blocks: Vec<(u64, BlockVersions)>,
    /// Times of answers, in seconds since 1970, that came long after the one before: that one's, and their own.
    answers: Vec<[f64; 2]>,
    refused: Option<String>,
}

/// The session that all tasks write in.
struct SharedSession {
    client: VolumesClient,
    volume: String,
    attached: Mutex<Option<Arc<AttachedVolume>>>,
    sessions: std::sync::atomic::AtomicU64,
    ends: AtomicBool,
}

impl BlockRecord {
    /// Runs it until stdin ends, and gives the figures.
    pub async fn run(self, nodes: &[String]) -> anyhow::Result<Value> {
        let session = Arc::new(SharedSession {
            client: client(nodes)?,
            volume: self.volume.clone(),
            attached: Mutex::new(None),
            sessions: Default::default(),
            ends: AtomicBool::new(false),
        });
        let depth = self.depth.clamp(1, self.blocks.max(1));
        let mut tasks = JoinSet::new();
        for first in 0..depth {
            let own = (first..self.blocks).step_by(depth as usize).collect();
            tasks.spawn(write(session.clone(), own));
        }
        let ends = session.clone();
        // A thread of its own: a read of stdin cannot be given up.
        std::thread::spawn(move || {
            let mut ignored = [0; 64];
            while std::io::stdin().read(&mut ignored).is_ok_and(|len| len > 0) {}
            ends.ends.store(true, Relaxed);
        });
        let mut all = Vec::new();
        while let Some(done) = tasks.join_next().await {
            all.push(done.context("a task panicked")?);
        }
        let (lost, torn, examples) = look_for(&session, &all).await?;
        let answers: Vec<[f64; 2]> = all.iter().flat_map(|w| w.answers.clone()).collect();
        let sum = |f: fn(&TaskRecord) -> u64| all.iter().map(f).sum::<u64>();
        let longest = all.iter().map(|w| w.longest).max().unwrap_or_default();
        Ok(json!({
            "acknowledged": sum(|w| w.acknowledged), "unanswered": sum(|w| w.unanswered),
            "sessions": session.sessions.load(Relaxed), "longest_ms": longest.as_secs_f64() * 1000.0,
            "lost": lost, "torn": torn, "examples": examples, "answers": answers,
            "refused": all.iter().find_map(|w| w.refused.clone()),
        }))
    }
}

impl SharedSession {
    /// The present session, or a new one if `over` is the present one.
    async fn get(
        &self,
        over: Option<&Arc<AttachedVolume>>,
    ) -> Result<Arc<AttachedVolume>, VolumesError> {
        let mut attached = self.attached.lock().await;
        match (&*attached, over) {
            (Some(now), over) if !over.is_some_and(|over| Arc::ptr_eq(now, over)) => {
                Ok(now.clone())
            }
            _ => {
                *attached = None;
                let new = Arc::new(self.client.attach(&self.volume, ATTACH).await?);
                self.sessions.fetch_add(1, Relaxed);
                *attached = Some(new.clone());
                Ok(new)
            }
        }
    }
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |time| time.as_secs_f64())
}

/// The bytes of a block in a version.
fn content(block: u64, version: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BLOCK);
    let mut word = block.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ version;
    bytes.extend(block.to_le_bytes());
    bytes.extend(version.to_le_bytes());
    while bytes.len() < BLOCK {
        word = word
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        bytes.extend(word.to_le_bytes());
    }
    bytes
}

async fn write(session: Arc<SharedSession>, own: Vec<u64>) -> TaskRecord {
    let mut written = TaskRecord {
        blocks: own
            .into_iter()
            .map(|block| (block, BlockVersions::default()))
            .collect(),
        ..TaskRecord::default()
    };
    let mut over = None;
    let (mut turn, mut version) = (0, 0);
    let mut before = now();
    while !session.ends.load(Relaxed) {
        let attached = match session.get(over.as_ref()).await {
            Ok(attached) => attached,
            Err(error) => {
                written.refused = Some(error.to_string());
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        over = None;
        let count = written.blocks.len();
        let Some((block, versions)) = written.blocks.get_mut(turn % count.max(1)) else {
            break;
        };
        turn += 1;
        version += 1;
        versions.perhaps.push(version);
        let offset = *block * BLOCK as u64;
        match attached.write(offset, content(*block, version)).await {
            Ok(()) => {
                versions.acknowledge(version);
                written.acknowledged += 1;
                let answered = now();
                let gap = Duration::from_secs_f64((answered - before).max(0.0));
                if gap >= GAP {
                    written.answers.push([before, answered]);
                }
                written.longest = written.longest.max(gap);
                before = answered;
            }
            Err(error) => {
                written.unanswered += 1;
                if !matches!(error, VolumesError::SessionOver(_)) {
                    written.refused = Some(error.to_string());
                }
                over = Some(attached);
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    written
}

/// Reads all blocks: acknowledged writes that are gone, blocks that were never written as they are, and some of them in words.
async fn look_for(
    session: &SharedSession,
    all: &[TaskRecord],
) -> anyhow::Result<(u64, u64, Vec<String>)> {
    let (mut lost, mut torn, mut examples) = (0, 0, Vec::new());
    for (block, versions) in all.iter().flat_map(|written| &written.blocks) {
        let offset = block * BLOCK as u64;
        let read = session.client.read(&session.volume, offset, BLOCK).await;
        let read = read.with_context(|| format!("block {block} cannot be read"))?;
        let found = version_of(&read, *block);
        let text = match found {
            Some(version) if versions.may_be(version) => continue,
            Some(version) => {
                lost += 1;
                format!("version {version}")
            }
            None => {
                torn += 1;
                "no version as it was written".to_owned()
            }
        };
        if examples.len() < 10 {
            let acknowledged = versions.acknowledged;
            examples.push(format!(
                "block {block}: {text}, acknowledged was {acknowledged}"
            ));
        }
    }
    Ok((lost, torn, examples))
}

/// The version that a block has, 0 if it was never written; `None` if no write made it so.
fn version_of(bytes: &[u8], block: u64) -> Option<u64> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Some(0);
    }
    let version = u64::from_le_bytes(bytes.get(8..16)?.try_into().ok()?);
    (bytes == content(block, version)).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledged_write_that_is_gone_is_lost_and_one_without_an_answer_is_not() {
        let mut versions = BlockVersions::default();
        assert!(versions.may_be(0) && !versions.may_be(1), "never written");
        versions.perhaps.push(1);
        assert!(versions.may_be(0) && versions.may_be(1));
        versions.perhaps.push(2);
        versions.acknowledge(2);
        assert!(versions.may_be(2));
        assert!(!versions.may_be(1) && !versions.may_be(0), "lost");
        versions.perhaps.push(3);
        assert!(versions.may_be(3) && versions.may_be(2) && !versions.may_be(1));
    }

    #[test]
    fn a_block_says_its_version_and_a_torn_one_none() {
        let old = content(7, 3);
        assert_eq!(version_of(&old, 7), Some(3));
        assert_eq!(version_of(&old, 8), None, "of another block");
        assert_eq!(version_of(&[0; BLOCK], 7), Some(0));
        let torn = [&content(7, 4)[..512], &old[512..]].concat();
        assert_eq!(version_of(&torn, 7), None);
    }
}
