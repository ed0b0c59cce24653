//! A client's writes, which go on in a new session once its volume was copied.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::attachment::{Attachment, volume, writer};
use super::error::{BlockError, VolumeFault};
use crate::running::Running;

/// The time that a write waits for a copy of its volume to be made or given up.
const RENEWED_MAX: Duration = Duration::from_secs(10);
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
                    if self.renewed(running, session).await.is_none() {
                        return Err(error);
                    }
                }
                done => return done,
            }
        }
        let text = "the volume was copied again and again meanwhile";
        Err(BlockError::new(VolumeFault::NotServing, text))
    }

    /// The session in which this client goes on after the one that buckets refuse, because the volume was copied; `None` if it has none.
    async fn renewed(&self, running: &Running, after: u64) -> Option<u64> {
        let me = writer(running, &self.client);
        let mut map = running.directory.map();
        let goes_on = map.wait_for(|map| match volume(map, self.id) {
            // This node has not heard of it yet.
            Some(volume) if volume.session <= after && volume.writer.as_ref() == Some(&me) => false,
            Some(volume) if volume.writer.as_ref() == Some(&me) => !map.is_copied(self.id),
            _ => true,
        });
        let goes_on = tokio::time::timeout(RENEWED_MAX, goes_on);
        let map = goes_on.await.ok()?.ok()?.clone();
        self.follow(&map, running);
        let session = self.session.load(Ordering::Acquire);
        (session > after && !self.is_over()).then_some(session)
    }
}
