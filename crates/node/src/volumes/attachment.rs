//! Sessions: the client that writes to a volume through a door of this node.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use staves_directory::DirectoryError;
use staves_model::mutant::{Mutant, planted};
use staves_model::{
    Change, ClusterMap, GroupId, Refusal, RegionId, Stretch, StretchState, Volume, VolumeWriter,
};
use tokio::sync::watch;

use super::attachments::{DETACH_MAX, WhenTaken};
use super::blocks::VolumeBytes;
use super::directory::{follow, propose};
use super::error::{BlockError, VolumeFault};
use crate::running::Running;

/// The time that a client waits for its own session at another door to end, and for the directory.
pub(crate) const ATTACH_MAX: Duration = Duration::from_secs(35);
/// The pause before a change that found a newer map is proposed again.
pub(super) const AGAIN: Duration = Duration::from_millis(10);
/// The pause before a client asks again whether its former door has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// A client's hold on a volume.
pub(crate) struct Attachment {
    pub(super) id: RegionId,
    pub(super) client: String,
    taken: WhenTaken,
    /// The session; 0 before the first write.
    pub(super) session: AtomicU64,
    /// Of a shared volume: the session with which the use began that this client is part of.
    pub(super) began: AtomicU64,
    /// Held by the request that attaches, or that gets a part of the volume ready.
    preparing: tokio::sync::Mutex<()>,
    /// The first groups of the stretches whose buckets know the session.
    ready: Mutex<BTreeSet<GroupId>>,
    over: watch::Sender<bool>,
}

impl Attachment {
    pub(super) fn new(id: RegionId, client: String, taken: WhenTaken) -> Attachment {
        Attachment {
            id,
            client,
            taken,
            session: AtomicU64::new(0),
            began: AtomicU64::new(0),
            preparing: tokio::sync::Mutex::default(),
            ready: Mutex::default(),
            over: watch::Sender::new(false),
        }
    }

    /// True once nothing may be written in the session any more.
    pub(crate) fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// Waits until the session is over: its connection ends.
    pub(crate) async fn over(&self) {
        let mut over = self.over.subscribe();
        // The sender lives as long as the attachment.
        let _ = over.wait_for(|over| *over).await;
    }

    /// The session ends: what the client writes next belongs to another.
    pub(crate) fn set_over(&self) {
        self.over.send_replace(true);
    }

    /// Ends the session if the map says that it is not ours, or there is no such volume any more.
    pub(crate) fn follow(&self, map: &ClusterMap, running: &Running) {
        let session = self.session.load(Ordering::Acquire);
        let Some(volume) = volume(map, self.id).filter(|_| !map.is_deleted(self.id)) else {
            return self.set_over();
        };
        if session == 0 || volume.session < session {
            return; // not begun, or an older map
        }
        if !self.is_mine(map, running) {
            return self.set_over();
        }
        // A copy was made of the volume: the same client goes on in a new session, once every bucket has the copy.
        if !map.is_copied(self.id) {
            self.session.fetch_max(volume.session, Ordering::AcqRel);
        }
    }

    /// The session in which to change bytes of a range: attaches the volume at first, and lets every bucket that may hold
    /// bytes of it know.
    pub(crate) async fn session_for(
        &self,
        running: &Arc<Running>,
        (offset, len): (u64, u64),
    ) -> Result<u64, BlockError> {
        if self.is_over() {
            return Err(over());
        }
        let session = self.session.load(Ordering::Acquire);
        if session != 0 && self.unready(running, offset..offset + len)?.is_empty() {
            return Ok(session);
        }
        let deadline = Instant::now() + ATTACH_MAX;
        let prepared = async {
            let _alone = self.preparing.lock().await;
            if self.is_over() {
                return Err(over());
            }
            let mut session = self.session.load(Ordering::Acquire);
            while session == 0 {
                session = match self.attach(running, deadline).await {
                    Ok(session) => session,
                    // It was copied before all buckets knew the session: another one is opened once it is not any more.
                    Err(error)
                        if error.fault == VolumeFault::SessionOver
                            && !self.is_over()
                            && Instant::now() < deadline =>
                    {
                        continue;
                    }
                    Err(error) => {
                        // Its client cannot go on with it, nor may its door.
                        if error.fault == VolumeFault::SessionOver {
                            self.set_over();
                        }
                        return Err(error);
                    }
                };
            }
            for span in self.unready(running, offset..offset + len)? {
                self.prepare(running, session, span, deadline).await?;
            }
            Ok(session)
        };
        match tokio::time::timeout_at((deadline + DETACH_MAX).into(), prepared).await {
            Ok(prepared) => prepared,
            Err(_) => {
                // Some buckets may know the session, and others not.
                self.set_over();
                Err(BlockError::new(
                    VolumeFault::NotServing,
                    "the volume was not attached in time",
                ))
            }
        }
    }

    /// The stretches of a range whose buckets do not know the session yet.
    fn unready(
        &self,
        running: &Running,
        range: Range<u64>,
    ) -> Result<Vec<StretchSpan>, BlockError> {
        let map = running.host.routes().map.clone();
        let (pool, region) = map.region(self.id).ok_or_else(deleted)?;
        let ready = self.ready.lock();
        let spans = region.spans(pool.scheme.m);
        let met = spans.filter(|(span, _)| span.start < range.end && range.start < span.end);
        Ok(met
            .filter(|(_, stretch)| !ready.contains(&stretch.first))
            .collect())
    }

    async fn attach(&self, running: &Arc<Running>, deadline: Instant) -> Result<u64, BlockError> {
        let is_shared = running.directory.map().borrow().is_shared(self.id);
        let session = match is_shared {
            true => self.join_shared(running, deadline).await?,
            false => self.open_session(running, deadline).await?,
        };
        // Its client may have gone meanwhile, and writes in a later session by now.
        self.still_ours(running, session)?;
        // Where nothing was ever written no former door may write either, until somebody marks it.
        let all = self.unready(running, 0..u64::MAX)?;
        let written = all
            .into_iter()
            .filter(|(_, s)| s.state == StretchState::Written);
        for span in written.filter(|_| !planted(Mutant::FenceOfSome)) {
            match self.prepare(running, session, span, deadline).await {
                // Its buckets never knew a session, and so took no write of one: it stays unready.
                Err(error) if error.fault == VolumeFault::Full => {}
                Err(error) => {
                    // A copy that was begun meanwhile has told its buckets of the session after this one.
                    let was_copied = error.fault == VolumeFault::SessionOver
                        && !self.is_over()
                        && self.was_copied(running, session).await.is_some();
                    if !was_copied {
                        self.set_over();
                    }
                    return Err(error);
                }
                Ok(()) => {}
            }
        }
        self.session.fetch_max(session, Ordering::AcqRel);
        self.still_ours(running, session)?;
        Ok(session)
    }

    /// Looks once more whether the volume is this connection's, and goes on in this session.
    fn still_ours(&self, running: &Running, session: u64) -> Result<(), BlockError> {
        let map = running.directory.map().borrow().clone();
        self.follow(&map, running);
        if self.is_over() {
            return Err(over());
        }
        match volume(&map, self.id).is_some_and(|volume| volume.session > session) {
            true => Err(BlockError::new(
                VolumeFault::SessionOver,
                "the volume is being copied",
            )),
            false => Ok(()),
        }
    }

    /// Lets the buckets of a stretch know the session, and marks it as written if it is not.
    async fn prepare(
        &self,
        running: &Arc<Running>,
        session: u64,
        (offsets, stretch): StretchSpan,
        deadline: Instant,
    ) -> Result<(), BlockError> {
        if stretch.state != StretchState::Written {
            let region = self.id;
            let marked = propose(running, Change::WriteRegion { region, offsets }, deadline).await;
            let revision =
                marked.map_err(|e| BlockError::new(VolumeFault::NotServing, e.to_string()))?;
            follow(running, revision, deadline).await?;
        }
        // The map that has the mark also says who has the volume, and whether it is copied without these buckets: also if another request of
        // this client has set it.
        self.still_ours(running, session)?;
        let blocks = VolumeBytes::new(running.clone(), self.id);
        if !planted(Mutant::FenceOfSome) {
            blocks.fence(session, stretch).await?;
        }
        self.ready.lock().insert(stretch.first);
        Ok(())
    }

    /// Waits a moment for whoever has the volume, or takes it away, as the rule is; false if it is refused.
    async fn makes_way(
        &self,
        running: &Running,
        other: &VolumeWriter,
        session: u64,
        deadline: Instant,
    ) -> Result<bool, BlockError> {
        let until = match self.taken {
            // A client that connects anew leaves its former connection, whose door may not know that yet.
            WhenTaken::WaitForSameMachine if is_same_client(&other.client, &self.client) => {
                deadline
            }
            WhenTaken::WaitForSameMachine => return Ok(false),
            WhenTaken::WaitUntil(until) => until.min(deadline),
            WhenTaken::TakeOver => {
                let volume = self.id;
                let ended = propose(running, Change::DetachVolume { volume, session }, deadline);
                let revision = ended.await.map_err(|error| {
                    let text = format!("the volume cannot be taken over: {error}");
                    BlockError::new(VolumeFault::NotServing, text)
                })?;
                follow(running, revision, deadline).await?;
                return Ok(true);
            }
        };
        let waits = Instant::now() + LOOK_AGAIN < until;
        if waits {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Ok(waits)
    }

    /// Has the directory open a session.
    async fn open_session(
        &self,
        running: &Arc<Running>,
        deadline: Instant,
    ) -> Result<u64, BlockError> {
        let me = writer(running, &self.client);
        loop {
            // Nobody is to attach for a connection that has ended: its client writes by another one.
            if self.is_over() {
                return Err(over());
            }
            let map = running.directory.map().borrow().clone();
            let volume = volume(&map, self.id).ok_or_else(deleted)?;
            let other = volume.writer.as_ref();
            let other = other.filter(|w| **w != me && map.is_up(w.node, w.incarnation));
            if let Some(other) = other
                && self
                    .makes_way(running, other, volume.session, deadline)
                    .await?
            {
                continue;
            }
            if let Some(other) = other {
                let text = format!(
                    "it is attached to {} through node {}",
                    other.client, other.node
                );
                return Err(BlockError::new(VolumeFault::Attached, text));
            }
            let after = volume.session;
            let attach = Change::AttachVolume {
                volume: self.id,
                after,
                writer: me.clone(),
            };
            match propose(running, attach, deadline).await {
                Ok(revision) => {
                    follow(running, revision, deadline).await?;
                    return Ok(after + 1);
                }
                // The map at hand is older than the directory's: a newer one is on its way.
                Err(DirectoryError::Refused(
                    Refusal::SessionMovedOn { .. }
                    | Refusal::VolumeAttached { .. }
                    | Refusal::VolumeIsCopied { .. },
                )) if Instant::now() + AGAIN < deadline => {
                    tokio::time::sleep(AGAIN).await;
                }
                Err(DirectoryError::Refused(refusal)) => {
                    return Err(BlockError::new(VolumeFault::Attached, refusal.to_string()));
                }
                Err(error) => {
                    let text = format!("the volume cannot be attached: {error}");
                    return Err(BlockError::new(VolumeFault::NotServing, text));
                }
            }
        }
    }
}

/// A stretch, and the offsets that it holds.
type StretchSpan = (Range<u64>, Stretch);

/// True if two connections come from one machine.
pub(crate) fn is_same_client(one: &str, other: &str) -> bool {
    // Behind a slash a door may tell clients of one address apart.
    let address = |client: &str| client.split('/').next()?.parse::<SocketAddr>().ok();
    let ip = |client: &str| address(client).map(|at| at.ip());
    one == other || matches!((ip(one), ip(other)), (Some(one), Some(other)) if one == other)
}

pub(super) fn over() -> BlockError {
    let text = "the session is over: attach the volume again, by another connection at NBD's door";
    BlockError::new(VolumeFault::SessionOver, text)
}

fn deleted() -> BlockError {
    BlockError::new(VolumeFault::Deleted, "the volume was deleted")
}

/// The attachment of a volume.
pub(super) fn volume(map: &ClusterMap, id: RegionId) -> Option<&Volume> {
    map.region(id)?.1.volume.as_ref()
}

/// A client of this door, as the directory knows it.
pub(super) fn writer(running: &Running, client: &str) -> VolumeWriter {
    let life = running.host.life;
    VolumeWriter {
        node: life.node,
        incarnation: life.incarnation,
        client: client.to_owned(),
    }
}
