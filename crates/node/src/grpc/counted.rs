//! Calls as their volume's limit lets them go, and as its figures count them.

use std::sync::Arc;
use std::time::Instant;

use tokio::time::timeout;

use crate::volumes::blocks::PATIENCE;
use crate::volumes::error::{BlockError, VolumeFault};
use crate::volumes::{ServedVolume, VolumeOp};

/// A call that the limit has let go, and whose time is taken. One that is given up is not counted.
pub(super) struct CountedCall {
    volume: Arc<ServedVolume>,
    op: VolumeOp,
    bytes: u64,
    began: Instant,
}

impl CountedCall {
    /// Waits for the limit, no longer than a request may take, nor than until `over`: the call finds out itself then what is over.
    pub(super) async fn begin(
        volume: &Arc<ServedVolume>,
        (op, bytes): (VolumeOp, u64),
        over: impl Future<Output = ()>,
    ) -> Result<CountedCall, BlockError> {
        if let Some(limited) = op.limited_bytes(bytes) {
            tokio::select! {
                passed = timeout(PATIENCE, volume.throttle.pass(limited)) => passed.map_err(|_| late())?,
                () = over => {}
            }
        }
        Ok(CountedCall {
            volume: volume.clone(),
            op,
            bytes,
            began: Instant::now(),
        })
    }

    /// It was done, or refused.
    pub(super) fn end(self, is_ok: bool) {
        let figures = self.volume.figures.of(self.op);
        figures.done(self.bytes, self.began.elapsed(), is_ok);
    }
}

fn late() -> BlockError {
    let text = format!(
        "the volume's limit did not let the call go within {PATIENCE:?}; nothing was done: ask for less at a time, or for a wider limit ('staves volume limit')"
    );
    BlockError::new(VolumeFault::Late, text)
}
