//! Clients of a memory region, through the native client.
//!
//! The objects of the load are chunks of the region, a few of them contended. Those of the [`LEDGER`] are written by one
//! client each, in turn, so that every data bucket holds something that must not get lost.

use std::ops::Range;
use std::sync::Arc;

use anyhow::Context;
use staves_client::{ClientError, ErrorCode, Region};
use staves_conformance::memory::{self, ChunkLoad};
use staves_conformance::{Begun, Ended};
use staves_history::Record;
use staves_history::chunk::OnChunk;
use staves_model::CHUNK_BYTES;
use staves_testkit::load::Door;
use staves_wire::memory::Action;
use staves_wire::service::Answer;

use super::{Shared, Timed};

/// The region's name and size.
pub const REGION: &str = "chaos";
/// See [`REGION`].
pub const REGION_BYTES: u64 = 64 << 20;
/// Chunks that nobody contends for.
pub const LEDGER: Range<u64> = 64..REGION_BYTES / CHUNK_BYTES;

/// The name of a chunk in the history.
pub fn name(chunk: u64) -> String {
    match LEDGER.contains(&chunk) {
        true => format!("ledger-chunk-{chunk}"),
        false => format!("chunk-{chunk}"),
    }
}

/// An operation, as the history's file has it.
pub fn record(ended: &Ended<OnChunk>) -> Record {
    memory::record(name(ended.begun.object), ended)
}

/// The region, as a client of it.
pub struct RegionDoor(Region);

impl RegionDoor {
    /// Connects.
    pub async fn open(shared: Arc<Shared>) -> anyhow::Result<Timed<RegionDoor>> {
        let region = super::connect(&shared).await?.region(REGION).await;
        let door = RegionDoor(region.context("cannot open the region")?);
        Ok(Timed { door, shared })
    }

    async fn act(&self, action: Action) -> Result<Answer, ClientError> {
        let RegionDoor(region) = self;
        Ok(match action {
            Action::Read { offset, len, .. } => {
                Answer::Value(region.read(offset, u64::from(len)).await?)
            }
            Action::Write { offset, bytes } | Action::Load { offset, bytes } => {
                region.write(offset, bytes).await?;
                Answer::Ok
            }
            Action::CompareSwap {
                offset,
                expected,
                new,
            } => Answer::Int(region.compare_and_swap(offset, expected, new).await? as i64),
            Action::FetchAdd { offset, by } => {
                Answer::Int(region.fetch_add(offset, by).await? as i64)
            }
            Action::Zero { offset, len, .. } => {
                region.zero(offset, u64::from(len)).await?;
                Answer::Ok
            }
            Action::Put { .. }
            | Action::Fence { .. }
            | Action::Allocated { .. }
            | Action::Copy { .. }
            | Action::Drop { .. }
            | Action::Changed { .. }
            | Action::Sync { .. } => Answer::error(ErrorCode::Unsupported, "a region is no volume"),
        })
    }
}

impl Door<ChunkLoad> for RegionDoor {
    async fn execute(&mut self, begun: &Begun<OnChunk>) -> Answer {
        // Not where the load has it in a bucket: the region ends before.
        let action = memory::action(begun.object, &begun.operation);
        let answer = self.act(action).await;
        answer.unwrap_or_else(|error| Answer::error(error.code(), error.to_string()))
    }
}
