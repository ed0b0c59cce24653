//! A client's writes, which go on in a new session once its volume was copied.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use staves_model::ClusterMap;

use super::attachment::{Attachment, volume};
use super::error::{BlockError, VolumeFault};
use crate::running::Running;

/// The time that a write waits for a copy of its volume to be made or given up: another node may have to go on with it.
const RENEWED_MAX: Duration = Duration::from_secs(30);
/// Most copies of a volume that one write waits for.
const COPIES_MAX: usize = 8;

impl Attachment {
    /// Changes bytes of a range in the session of that time. What buckets refuse because the volume is being copied is done once that has ended.
    pub(crate) async fn change<F>(
        &self,
        running: &Arc<Running>,
        range: (u64, u64),
        mut change: impl FnMut(u64) -> F,
    ) -> Result<(), BlockError>
    where
        F: Future<Output = Result<(), BlockError>>,
    {
        for _ in 0..COPIES_MAX {
            let before = self.session.load(Ordering::Acquire);
            let (session, done) = match self.session_for(running, range).await {
                Ok(session) => (session, change(session).await),
                Err(error) => (before, Err(error)),
            };
            match done {
                Err(error) if error.fault == VolumeFault::SessionOver && session != 0 => {
                    if !self.renewed(running, session).await {
                        // Its door must not leave the client without an answer and with a connection.
                        self.set_over();
                        return Err(error);
                    }
                }
                // It has a session by now, and goes on as above.
                Err(error) if error.fault == VolumeFault::SessionOver && !self.is_over() => {}
                done => return done,
            }
        }
        let text = "the volume was copied again and again meanwhile";
        Err(BlockError::new(VolumeFault::NotServing, text))
    }

    /// Goes on in the session after the one that buckets refuse, because the volume was copied; false if there is none for this client.
    async fn renewed(&self, running: &Running, after: u64) -> bool {
        let Some(map) = self.was_copied(running, after).await else {
            return false;
        };
        self.follow(&map, running);
        self.session.load(Ordering::Acquire) > after && !self.is_over()
    }

    /// A map in which this client has the volume in a later session than this one, and no copy of it is under way; `None` if somebody else has it.
    pub(super) async fn was_copied(
        &self,
        running: &Running,
        after: u64,
    ) -> Option<Arc<ClusterMap>> {
        let mut map = running.directory.map();
        let goes_on = map.wait_for(|map| match volume(map, self.id) {
            // This node has not heard of it yet.
            Some(volume) if volume.session <= after && self.is_mine(map, running) => false,
            Some(_) if self.is_mine(map, running) => !map.is_copied(self.id),
            _ => true,
        });
        let goes_on = tokio::time::timeout(RENEWED_MAX, goes_on);
        let map = goes_on.await.ok()?.ok()?.clone();
        self.is_mine(&map, running).then_some(map)
    }
}
