//! The clients that have volumes through this node's doors.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use staves_model::{Change, ClusterMap, RegionId};
use tokio::sync::Notify;

use super::attachment::Attachment;
use super::directory::propose;
use crate::entry::Entry;
use crate::running::Running;

/// The time that the directory may take to hear that a volume is free again.
pub(super) const DETACH_MAX: Duration = Duration::from_secs(5);
/// The pause between two looks for volumes that nobody here has any more.
const SWEEP: Duration = Duration::from_secs(1);

/// The rule for a volume that somebody else has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WhenTaken {
    /// A connection of the same machine is waited for, since it is most often a former one; of another it is refused.
    WaitForSameMachine,
    /// Anybody is waited for until then.
    WaitUntil(Instant),
    /// The other session is ended.
    TakeOver,
}

/// The clients of the doors that serve volumes, by volume.
#[derive(Default)]
pub(crate) struct Attachments {
    all: Mutex<HashMap<(RegionId, String), Arc<Attachment>>>,
    /// Somebody has left.
    left: Notify,
}

impl Attachments {
    /// A client's hold on a volume. Clients of one volume have distinct names.
    pub(crate) fn join(&self, id: RegionId, client: String, taken: WhenTaken) -> Arc<Attachment> {
        let attachment = Arc::new(Attachment::new(id, client.clone(), taken));
        self.all.lock().insert((id, client), attachment.clone());
        attachment
    }

    /// A client has gone: the volume is free again. What it left under way is of a session that is over.
    pub(crate) async fn leave(&self, running: &Running, attachment: &Arc<Attachment>) {
        self.abandon(attachment);
        self.sweep(running).await;
    }

    /// As [`Attachments::leave`], without a wait for the directory.
    pub(crate) fn abandon(&self, attachment: &Arc<Attachment>) {
        attachment.set_over();
        let key = (attachment.id, attachment.client.clone());
        self.all.lock().remove(&key);
        self.left.notify_one();
    }

    /// Frees volumes that nobody here has any more, goes by the newest limits of volumes, drops the figures of deleted ones, and ends
    /// the sessions that the map says are over: a client that waits reads no map itself. One task for all doors; does not end.
    pub(crate) async fn watch_over(self: Arc<Self>, entry: Arc<Entry>) {
        let mut sweeps = tokio::time::interval(SWEEP);
        loop {
            let Some(running) = entry.get() else {
                sweeps.tick().await;
                continue;
            };
            let mut map = running.directory.map();
            let newest = map.borrow_and_update().clone();
            running.volumes.follow(&newest);
            self.follow(&newest, running);
            tokio::select! {
                changed = map.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
                _ = sweeps.tick() => {}
                () = self.left.notified() => {}
            }
            // And then another look at the map: a client may have opened a volume by an older one.
            self.sweep(running).await;
        }
    }

    /// Ends the sessions that a map says are over.
    fn follow(&self, map: &ClusterMap, running: &Running) {
        let all: Vec<Arc<Attachment>> = self.all.lock().values().cloned().collect();
        all.iter()
            .for_each(|attachment| attachment.follow(map, running));
    }

    /// Detaches the volumes that the map says are attached here, and nobody has: their clients have gone, or an attempt to attach
    /// them ended without its outcome being known.
    async fn sweep(&self, running: &Running) {
        let map = running.directory.map().borrow().clone();
        let life = running.host.life;
        let regions = map.pools.values().flat_map(|pool| pool.regions());
        let attached = regions.filter_map(|region| {
            if map.is_shared(region.id) {
                return self.left_door(&map, region.id, running);
            }
            let volume = region.volume.as_ref()?;
            let writer = volume.writer.as_ref()?;
            let is_here = writer.node == life.node && writer.incarnation == life.incarnation;
            let is_orphan = is_here && !self.has(region.id, |client| client == writer.client);
            let (volume, session) = (region.id, volume.session);
            is_orphan.then_some((volume, Change::DetachVolume { volume, session }))
        });
        let orphans: Vec<(RegionId, Change)> = attached.collect();
        for (volume, detach) in orphans {
            if let Err(error) = propose(running, detach, Instant::now() + DETACH_MAX).await {
                tracing::debug!(%volume, %error, "not detached yet");
                return;
            }
        }
    }

    /// True if a client with such a name has the volume open.
    pub(super) fn has(&self, id: RegionId, is_it: impl Fn(&str) -> bool) -> bool {
        let all = self.all.lock();
        let mut present = all.iter().filter(|((of, _), _)| *of == id);
        present.any(|((_, client), attachment)| is_it(client) && !attachment.is_over())
    }
}
