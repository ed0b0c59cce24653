//! The costs of a request: a part of its volume's limit, and time.

use std::time::Instant;

use staves_nbd::{Incoming, NbdCommand};

use crate::volumes::{ServedVolume, VolumeOp};

/// A request whose time is taken.
pub(super) struct TimedRequest {
    counts_as: Option<(VolumeOp, u64)>,
    began: Instant,
}

impl TimedRequest {
    /// Begins with a request that has come whole.
    pub(super) fn begin(command: &NbdCommand) -> TimedRequest {
        TimedRequest {
            counts_as: kind(command),
            began: Instant::now(),
        }
    }

    /// Counts it, once it was done or refused.
    pub(super) fn end(&self, volume: &ServedVolume, is_ok: bool) {
        if let Some((op, bytes)) = self.counts_as {
            let figures = volume.figures.of(op);
            figures.done(bytes, self.began.elapsed(), is_ok);
        }
    }
}

/// The figure that a request counts for, and its bytes.
fn kind(command: &NbdCommand) -> Option<(VolumeOp, u64)> {
    match command {
        NbdCommand::Read { len, .. } => Some((VolumeOp::Read, u64::from(*len))),
        NbdCommand::Write { bytes, .. } => Some((VolumeOp::Write, bytes.len() as u64)),
        NbdCommand::WriteZeroes { len, .. } => Some((VolumeOp::Zero, u64::from(*len))),
        NbdCommand::Trim { len, .. } => Some((VolumeOp::Discard, u64::from(*len))),
        NbdCommand::Flush => Some((VolumeOp::Flush, 0)),
        NbdCommand::Cache { .. } | NbdCommand::BlockStatus { .. } | NbdCommand::Disconnect => None,
    }
}

/// The bytes that count for the volume's limit; `None` for what is not limited.
pub(super) fn limited_bytes(incoming: &Incoming) -> Option<u64> {
    let Incoming::Request(request) = incoming else {
        return None;
    };
    let (op, bytes) = kind(&request.command)?;
    op.limited_bytes(bytes)
}
