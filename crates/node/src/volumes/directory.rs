//! The directory, as doors of volumes need it: changes, and maps that have them.

use std::time::{Duration, Instant};

use staves_directory::{DirectoryError, Proposal};
use staves_model::{Change, Revision};

use super::error::{BlockError, VolumeFault};
use crate::running::Running;

/// The pause between two looks for a map.
const LOOK: Duration = Duration::from_millis(2);

/// Has the directory make a change; the revision of the map that has it.
pub(super) async fn propose(
    running: &Running,
    change: Change,
    deadline: Instant,
) -> Result<Revision, DirectoryError> {
    let proposal = Proposal {
        expected: None,
        term: None,
        change,
    };
    let left = deadline.saturating_duration_since(Instant::now());
    let (_, revision) = running.directory.propose(proposal, left).await?;
    Ok(revision)
}

/// Waits until this node goes by a map that is so new.
pub(super) async fn follow(
    running: &Running,
    revision: Revision,
    deadline: Instant,
) -> Result<(), BlockError> {
    while running.host.routes().map.revision < revision {
        if Instant::now() >= deadline {
            let text = "the directory has a newer map, of which this node has not heard in time";
            return Err(BlockError::new(VolumeFault::NotServing, text));
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}
