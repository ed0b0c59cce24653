//! Shared volumes: all clients write in one session, which this node's door joins and leaves.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use staves_directory::DirectoryError;
use staves_model::mutant::{Mutant, planted};
use staves_model::{Change, ClusterMap, Refusal, RegionId, SharedDoor};

use super::attachment::{AGAIN, Attachment, over, volume, writer};
use super::attachments::Attachments;
use super::directory::{follow, propose};
use super::error::{BlockError, VolumeFault};
use crate::running::Running;

impl Attachment {
    /// True if a map says that the volume is this client's: of a shared one, that its door is part of the use that it joined.
    pub(super) fn is_mine(&self, map: &ClusterMap, running: &Running) -> bool {
        let Some(shared) = map.volumes.shared.get(&self.id) else {
            let me = writer(running, &self.client);
            return volume(map, self.id).is_some_and(|v| v.writer.as_ref() == Some(&me));
        };
        // A client that was sent away stays so, though its node's door has joined again since for another one.
        let is_same_use = shared.began == self.began.load(Ordering::Acquire);
        let is_open = door(map, self.id, running).is_some();
        (is_same_use && is_open) || planted(Mutant::SharedOutlivesDetach)
    }

    /// Joins the session in which others write, or begins one.
    pub(super) async fn join_shared(
        &self,
        running: &Arc<Running>,
        deadline: Instant,
    ) -> Result<u64, BlockError> {
        loop {
            if self.is_over() {
                return Err(over());
            }
            let join = Change::AttachVolume {
                volume: self.id,
                after: 0,
                writer: writer(running, &self.client),
            };
            match propose(running, join, deadline).await {
                Ok(revision) => {
                    follow(running, revision, deadline).await?;
                    if let Some(session) = self.joined(running) {
                        return Ok(session);
                    }
                }
                Err(DirectoryError::Refused(Refusal::VolumeIsCopied { .. })) => {}
                Err(DirectoryError::Refused(refusal)) => {
                    return Err(BlockError::new(VolumeFault::Attached, refusal.to_string()));
                }
                Err(error) => {
                    let text = format!("the volume cannot be attached: {error}");
                    return Err(BlockError::new(VolumeFault::NotServing, text));
                }
            }
            if Instant::now() + AGAIN >= deadline {
                let text = "the volume could not be joined in time";
                return Err(BlockError::new(VolumeFault::NotServing, text));
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// The session that this node's door has joined. `None` while the volume is copied: a bucket that heard of the next session before it
    /// has its copy would take writes that are to come after it.
    fn joined(&self, running: &Running) -> Option<u64> {
        let map = running.host.routes().map.clone();
        let volume = volume(&map, self.id)?;
        let shared = map.volumes.shared.get(&self.id)?;
        door(&map, self.id, running)?;
        if map.is_copied(self.id) {
            return None;
        }
        self.began.store(shared.began, Ordering::Release);
        Some(volume.session)
    }
}

impl Attachments {
    /// The change for a shared volume that nobody has open here any more, though this node's door is part of its session.
    pub(super) fn left_door(
        &self,
        map: &ClusterMap,
        id: RegionId,
        running: &Running,
    ) -> Option<(RegionId, Change)> {
        let joined = door(map, id, running)?.joined;
        let life = running.host.life;
        let leave = Change::LeaveVolume {
            volume: id,
            node: life.node,
            incarnation: life.incarnation,
            joined,
        };
        (!self.has(id, |_| true)).then_some((id, leave))
    }
}

/// This node's door of a shared volume, as a map has it.
fn door<'a>(map: &'a ClusterMap, id: RegionId, running: &Running) -> Option<&'a SharedDoor> {
    let life = running.host.life;
    let door = map.volumes.shared.get(&id)?.doors.get(&life.node)?;
    (door.incarnation == life.incarnation).then_some(door)
}
