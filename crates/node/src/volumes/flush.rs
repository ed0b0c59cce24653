//! Flushes of volumes whose writes are answered before disks have them.

use std::sync::atomic::Ordering;

use staves_client::{Piece, pieces};
use staves_model::{Stretch, StretchState};
use staves_wire::memory::Action;

use super::attachment::{Attachment, over};
use super::blocks::VolumeBytes;
use super::error::BlockError;

impl VolumeBytes {
    /// Waits until all that any door has answered before is on the disks of all members; at once where every answer says that already.
    /// In a session that is over, because something that it had not flushed may be gone, it is refused; 0 for none.
    pub(crate) async fn flush(&self, session: u64) -> Result<(), BlockError> {
        let map = self.map();
        let (_, region) = self.entry(&map)?;
        if map.writeback(self.id).is_none() {
            return Ok(());
        }
        // In a session this node knows of all that was written in it or before; without one its map may lack a mark.
        let may_hold = |s: &&Stretch| session == 0 || s.state == StretchState::Written;
        let stretches: Vec<Stretch> = region.stretches.iter().filter(may_hold).copied().collect();
        let (image, buckets) = self.buckets(&stretches)?;
        self.sync(&buckets, (image, session)).await
    }

    /// The same for what lies in a range.
    pub(crate) async fn flush_range(
        &self,
        session: u64,
        (offset, len): (u64, u64),
    ) -> Result<(), BlockError> {
        let map = self.map();
        let (pool, region) = self.entry(&map)?;
        if map.writeback(self.id).is_none() {
            return Ok(());
        }
        let pieces = pieces(pool, region, &[(offset, len)]);
        let pieces = pieces.map_err(|e| BlockError::of_client(&e, false))?;
        // Each bucket once, however many chunks of it are in the range.
        let mut buckets: Vec<Piece> = Vec::new();
        for piece in pieces {
            if !buckets.iter().any(|known| known.to == piece.to) {
                buckets.push(piece);
            }
        }
        self.sync(&buckets, (map.image_number(self.id), session))
            .await
    }

    async fn sync(
        &self,
        buckets: &[Piece],
        (image, session): (u32, u64),
    ) -> Result<(), BlockError> {
        self.change(buckets, |_| Action::Sync { image, session })
            .await
    }
}

impl Attachment {
    /// Flushes a volume in the session of its client, if it has one.
    pub(crate) async fn flush(&self, bytes: &VolumeBytes) -> Result<(), BlockError> {
        match self.is_over() {
            true => Err(over()),
            false => bytes.flush(self.session.load(Ordering::Acquire)).await,
        }
    }

    /// Flushes what was just written to a range, if there is one.
    pub(crate) async fn flush_written(
        &self,
        bytes: &VolumeBytes,
        range: Option<(u64, u64)>,
    ) -> Result<(), BlockError> {
        let session = self.session.load(Ordering::Acquire);
        match range {
            Some(range) => bytes.flush_range(session, range).await,
            None => Ok(()),
        }
    }
}
