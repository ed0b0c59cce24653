//! The state of a member, its options, and the context and the effects of a step.

use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::time::Duration;

use staves_model::{
    DirectoryCall, Epoch, Group, GroupId, Member, MemberId, MemberSlot, NodeId, Time,
    mutant::Mutant, mutant::planted,
};
use staves_store::{Budget, Journal, KeptOn, Pages};
use staves_wire::group::{Delta, GroupEnvelope, GroupMessage, MemberRecord};

use crate::backfill::Backfill;
use crate::disk_room::DiskRoom;
use crate::node_logs::NodeLogs;
use crate::on_disk::OnDisk;
use crate::peer::Peer;
use crate::reservation::Reservation;
use crate::slowness::Slowness;
use crate::stream::Stream;
use crate::table::{PageTable, Shape};

/// The moment at which an update may be answered. In memory there is no difference.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// Every listed member has synced it.
    #[default]
    Durable,
    /// Every listed member has received it; a flush waits for the sync.
    Writeback,
}

impl Durability {
    /// The watermark of answers, of the lowest that is held and the lowest that is synced.
    pub(crate) fn releases(self, held: u64, synced: u64) -> u64 {
        match self {
            Durability::Durable if !planted(Mutant::AnsweredAtHeld) => synced,
            _ => held,
        }
    }
}

/// The options that an operator or a test may set. All times are on the local clock.
#[derive(Clone, Debug)]
pub struct Options {
    /// The duration of a promise, and of a directory lease.
    pub lease: Duration,
    /// A data bucket says something to every parity bucket at least so often.
    pub heartbeat_every: Duration,
    /// Deltas not acknowledged for so long are sent again; after longer and longer, up to eight times as
    /// long, while the member does not answer at all.
    pub resend_after: Duration,
    /// A member that has not answered for so long is reported to the directory; later where its node is slow.
    pub stuck_after: Duration,
    /// The slowness of other nodes: members made with the same options share it.
    pub slowness: Arc<Slowness>,
    /// Most bytes of deltas that a stream's log holds (I10); a full log pushes back on clients.
    pub log_bytes_max: usize,
    /// And the logs of all members that were made with the same options.
    pub node_logs: Arc<NodeLogs>,
    /// Most bytes of deltas in one message.
    pub message_bytes_max: usize,
    /// Pages asked for in one message by a joiner.
    pub fetch_pages: u32,
    /// Such messages a joiner keeps unanswered.
    pub fetch_window: usize,
    /// Most pages that all joiners of the node together have asked for, but for those that clients wait
    /// for: members made with the same options share it. With 0, only clients' pages are fetched.
    pub backfill_budget: Arc<Budget>,
    /// For pools that may start empty: a member that has not heard the directory for so long stops
    /// acknowledging and promising (GROUP rule 13).
    pub quiet_after: Option<Duration>,
    /// The moment at which an update may be answered.
    pub durability: Durability,
    /// The complete copies of its group below which it takes no updates: members of a pool share it, and whoever drives them changes it. A group with m > 1 counts as many
    /// as it may lose, and one.
    pub copies_min: Arc<AtomicU8>,
    /// The journal that a member begins with.
    pub journal: Journal,
    /// The room of the node's journal, where members keep their bytes on a disk.
    pub disk_room: Arc<DiskRoom>,
    /// The disk that a member's pages are kept on; none: all of them are in memory all the time.
    pub kept_on: Option<KeptOn>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            lease: Duration::from_millis(500),
            heartbeat_every: Duration::from_millis(100),
            resend_after: Duration::from_millis(60),
            stuck_after: Duration::from_millis(800),
            slowness: Arc::default(),
            log_bytes_max: 8 << 20,
            node_logs: Arc::new(NodeLogs::new(usize::MAX)),
            message_bytes_max: 512 << 10,
            // Enough under way to keep all sources busy, and little enough to stay in a processor's cache.
            fetch_pages: 32,
            fetch_window: 8,
            backfill_budget: Arc::new(Budget::new(u32::MAX)),
            quiet_after: None,
            durability: Durability::default(),
            copies_min: Arc::new(AtomicU8::new(1)),
            journal: Journal::default(),
            disk_room: Arc::default(),
            kept_on: None,
        }
    }
}

impl Options {
    /// Returns whether members keep their bytes on a disk.
    pub(crate) fn is_durable(&self) -> bool {
        matches!(self.journal, Journal::Disk)
    }

    /// Returns whether the disk has room in its journal, and in memory, for updates that a data bucket makes.
    pub(crate) fn disk_admits(&self) -> bool {
        let room = |on: &KeptOn| on.residency.admits();
        !self.is_durable() || (self.disk_room.admits() && self.kept_on.as_ref().is_none_or(room))
    }

    /// And for those that a copy takes in, and pages that a member is filled with.
    pub(crate) fn disk_takes_in(&self) -> bool {
        let room = |on: &KeptOn| on.residency.takes_in();
        !self.is_durable() || (self.disk_room.takes_in() && self.kept_on.as_ref().is_none_or(room))
    }
}

/// The time since the last tick for which this process did not run, or had too much to do to come round: it heard nobody, and
/// what came for it waits yet. Where a whole machine lacks processor time, members that count it take each other for stuck.
pub(crate) fn stood_still(ticked_at: &mut Time, now: Time, options: &Options) -> Duration {
    let since = now.since(std::mem::replace(ticked_at, now));
    match planted(Mutant::OwnPauseCounted) {
        true => Duration::ZERO,
        false => since.saturating_sub(options.heartbeat_every / 2),
    }
}

/// The actions that a step asks for. The driver sends `sends` in any order, and may lose them.
#[derive(Default, Debug)]
pub struct Effects {
    /// Messages to other members.
    pub sends: Vec<(NodeId, GroupEnvelope)>,
    /// Calls to the directory. They are repeated until the map shows their effect.
    pub directory: Vec<DirectoryCall>,
    /// Records for the journal of the node's disk, each behind all that its member handed over before. None is lost while the
    /// process lives. Only members with [`Journal::Disk`] have any.
    pub records: Vec<(GroupId, MemberRecord)>,
    /// Pages of the member that an operation waits for and that are on its node's disk alone. They are to be [given](staves_store::Pages::give) to it, and it is stepped then.
    pub reads: Vec<u32>,
}

/// Called at a copy or parity bucket for each delta that it applies, in order of seq, before its pages have it.
pub type Applied<'a> = dyn FnMut(&Pages, &Delta) + 'a;

/// The state of a member of a group.
pub(crate) struct MemberState {
    pub slot: MemberSlot,
    pub epoch: Epoch,
    /// The epoch at whose cut this member stands; 0 if none.
    pub installed: Epoch,
    pub open: bool,
    pub view: Arc<Group>,
    pub streams: Vec<Stream>,
    pub journal: Journal,
    /// Its part on the node's disk, if it keeps its bytes there.
    pub disk: Option<OnDisk>,
    pub table: PageTable,
    /// A data bucket's knowledge of its parity buckets, by member slot.
    pub peers: Vec<Peer>,
    /// "No successor of this stream's data bucket answers before": what this parity bucket promised.
    pub promised: Vec<Time>,
    pub directory_lease: Time,
    /// Asked to seal for this epoch: no new promises.
    pub sealing: Epoch,
    pub pending_seal: Option<(MemberId, Arc<Group>, u32)>,
    pub backfill: Backfill,
    pub want_extents: u32,
    pub reservation: Reservation,
    /// It cannot apply what it has: a delta needs more than its data bucket has had reserved.
    pub stalled: bool,
    /// The last tick of an open epoch.
    pub ticked_at: Time,
    /// Pages of its life before, for rule 17.
    pub old: Option<PageTable>,
}

impl MemberState {
    pub fn shape(&self) -> Shape {
        Shape {
            m: self.streams.len(),
            slot: self.slot,
        }
    }

    pub fn serving(&self) -> bool {
        self.open && self.shape().is_data()
    }

    /// Returns whether the directory's entry has as many members and streams, and this one in its slot.
    pub fn fits(&self, group: &Group, me: MemberId) -> bool {
        self.peers.len() == group.members.len()
            && self.streams.len() == usize::from(group.m)
            && group.slot_of(me) == Some(self.slot)
    }

    pub fn own(&self) -> &Stream {
        &self.streams[self.slot.index()]
    }

    pub fn prefixes(&self) -> Vec<u64> {
        let shape = self.shape();
        (0..shape.columns())
            .map(|c| self.streams[shape.stream(c)].prefix)
            .collect()
    }

    pub fn applied(&self) -> Vec<u64> {
        let shape = self.shape();
        (0..shape.columns())
            .map(|c| self.streams[shape.stream(c)].applied)
            .collect()
    }
}

/// The member's identity and the time: what every step needs.
#[derive(Clone, Copy)]
pub(crate) struct Ctx<'a> {
    pub now: Time,
    pub options: &'a Options,
    pub group: GroupId,
    pub me: MemberId,
    /// True if the directory has not answered for too long (rule 13).
    pub quiet: bool,
}

impl Ctx<'_> {
    /// A node has answered after so long.
    pub fn answered(&self, node: NodeId, took: Duration) {
        let (slowness, stuck_after) = (&self.options.slowness, self.options.stuck_after);
        slowness.answered(node, self.now, took, stuck_after);
    }

    /// The time after which a listed member is stuck.
    pub fn patience(&self, member: Option<&Member>) -> Duration {
        let (slowness, stuck_after) = (&self.options.slowness, self.options.stuck_after);
        member.map_or(stuck_after, |x| {
            slowness.patience(x.id.node, self.now, stuck_after)
        })
    }

    /// A message to a member, as [`Effects::sends`] has it.
    pub fn addressed(
        &self,
        to: MemberId,
        epoch: Epoch,
        message: GroupMessage,
    ) -> (NodeId, GroupEnvelope) {
        let envelope = GroupEnvelope {
            group: self.group,
            epoch,
            from: self.me,
            to: to.disk,
            message,
        };
        (to.node, envelope)
    }
}
