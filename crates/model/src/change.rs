//! Changes to the cluster map, and the rules that refuse them.
//!
//! A change is made whole or refused whole. What it is checked against lies in the map alone, so every
//! node that applies the same changes in the same order comes to the same map. `change/apply.rs` says which rule makes which change, `change/outcome.rs` holds
//! what can be wrong, `change/nodes.rs` and `change/pools.rs` the simple rules, `change/claims.rs` that of disks which come
//! back, `change/epochs.rs` and `change/steps.rs` those of GROUP (7, 11, 13 and 16) for a group's membership.

mod apply;
mod bounds;
mod claims;
mod epochs;
mod expected;
mod holdings;
mod images;
mod lookups;
mod nodes;
mod outcome;
mod pins;
mod pools;
mod region_sizes;
mod regions;
mod shared_volumes;
mod steps;
mod unflushed;

use std::ops::Range;

use serde::{Deserialize, Serialize};

pub use self::bounds::{
    BUCKETS_MAX, GROUPS_MAX, NAME_BYTES_MAX, NODES_MAX, POOLS_MAX, REGION_GROUPS_MAX,
};
pub use self::claims::{Claim, NodeDisks};
pub use self::epochs::NewEpoch;
pub(crate) use self::epochs::{is_source, sources};
pub use self::holdings::NewHoldings;
pub use self::nodes::NodeFacts;
pub use self::outcome::{Outcome, Refusal};
pub use self::steps::GroupStep;

use crate::files::Pin;
use crate::ids::{ClusterId, GroupId, Incarnation, NodeId, RegionId};
use crate::image::{ImageKind, VolumeCopy};
use crate::map::{Medium, PoolKind};
use crate::region::VolumeWriter;
use crate::scheme::Scheme;
use crate::volume_limit::VolumeLimit;

/// A change that somebody proposes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Change {
    /// Makes a cluster out of an empty map. The first change of all.
    Bootstrap {
        /// The cluster's name for itself; not 0.
        cluster: ClusterId,
    },
    /// A node's process started: a new life. What its former life held counts as lost at once, but for what is claimed.
    NodeUp {
        /// Its id if it has one; `None` asks for a fresh one.
        id: Option<NodeId>,
        /// Its description of itself.
        facts: NodeFacts,
        /// True if it keeps its vote on disk.
        durable: bool,
        /// The members that its disk has; at most one a group, and [`GROUPS_MAX`] in all.
        claims: Vec<Claim>,
    },
    /// A node was confirmed dead (row D5).
    NodeDown {
        /// The node.
        node: NodeId,
        /// The life that ended: another one is not harmed.
        incarnation: Incarnation,
    },
    /// A node that was declared dead proves to live on, in the same life and with its memory: it was
    /// cut off or paused. Its memberships of last open epochs count again.
    NodeBack {
        /// The node.
        node: NodeId,
        /// Its life, the one that was declared dead.
        incarnation: Incarnation,
    },
    /// A node announces its stop.
    NodeLeft {
        /// The node.
        node: NodeId,
        /// Its life.
        incarnation: Incarnation,
    },
    /// Strikes a node that will not come back. Its id is not used again.
    ForgetNode {
        /// The node: down, and a member of nothing.
        node: NodeId,
    },
    /// Asks a node to give up its buckets (need-to-remove, row X5), or to take some again.
    Drain {
        /// The node.
        node: NodeId,
        /// Drain, or resume.
        on: bool,
    },
    /// Makes a pool with its groups. They start at epoch 0, with no members.
    CreatePool {
        /// Its name, unique.
        name: String,
        /// The meaning of its bytes.
        kind: PoolKind,
        /// m and the wanted k.
        scheme: Scheme,
        /// The medium of its pages.
        medium: Medium,
        /// Bytes that each node may give to it.
        node_budget_bytes: u64,
        /// Buckets: a power of two.
        buckets: u32,
        /// True if a group that has lost all its members may start again empty.
        may_start_empty: bool,
    },
    /// Changes a pool's k or budget while it serves (row X3).
    SetPool {
        /// The pool.
        name: String,
        /// The new scheme; m must stay.
        scheme: Option<Scheme>,
        /// The new budget.
        node_budget_bytes: Option<u64>,
    },
    /// Deletes a pool with all that it holds.
    DeletePool {
        /// The pool.
        name: String,
    },
    /// Commits the next epochs of some groups: one proposal moves all buckets of a dead node.
    CommitEpochs(Vec<NewEpoch>),
    /// Steps that groups have come to by themselves, each on its own: those that the map refuses are left out, and the change is
    /// refused if that leaves none. One death or one new region brings very many at a time.
    Steps(Vec<GroupStep>),
    /// Says plainly that more was lost of these groups than their scheme bears.
    MarkLost {
        /// The groups.
        groups: Vec<GroupId>,
    },
    /// Makes a region of a memory pool, with its groups. It takes up memory only where it is written. Its data buckets hold the
    /// least bytes, as they all did before `MakeRegion`.
    CreateRegion {
        /// The pool.
        pool: String,
        /// Its name, unique among the regions of all pools.
        name: String,
        /// Its size in bytes.
        size_bytes: u64,
    },
    /// Lets a region end further on, with further groups where those it has are too few. Their data buckets hold the least
    /// bytes, as they all did before `ExtendRegion`.
    GrowRegion {
        /// The region.
        name: String,
        /// Its new size in bytes; not less than the present one.
        size_bytes: u64,
    },
    /// Deletes a region with all that it holds.
    DeleteRegion {
        /// The region.
        name: String,
    },
    /// Lets the stretches of a region that a load may leave without parity be so (`Region::loadable`), or has the parity
    /// of all of them made (row H11).
    LoadRegion {
        /// The region.
        name: String,
        /// The offsets that are to be loaded; `None` ends all loads.
        load: Option<Range<u64>>,
    },
    /// Marks the stretches of some offsets as written, before the first write to them. Refused while one is loaded.
    WriteRegion {
        /// The region; not by its name, which another may have by now.
        region: RegionId,
        /// The offsets.
        offsets: Range<u64>,
    },
    /// A node changes what it holds of a files pool (row D3).
    Hold(NewHoldings),
    /// Names a source of files.
    SetDataset {
        /// The pool that its blocks go to.
        pool: String,
        /// Its name, unique among the datasets of all pools.
        name: String,
        /// The source of its bytes.
        source: String,
    },
    /// Forgets a dataset's name; its blocks go when room is needed.
    DropDataset {
        /// The dataset.
        name: String,
    },
    /// Keeps versions of files in memory, in the place of former ones under the same paths: all of them or none.
    PinFiles(Vec<Pin>),
    /// Lets files be evicted again.
    UnpinFiles {
        /// The dataset.
        dataset: String,
        /// Their paths; none stands for all of the dataset.
        paths: Vec<Vec<u8>>,
    },
    /// Makes a volume in a memory pool: a region that one client writes at a time. Its data buckets hold the least bytes.
    CreateVolume {
        /// The pool.
        pool: String,
        /// Its name, unique among the regions and volumes of all pools.
        name: String,
        /// Its size in bytes.
        size_bytes: u64,
    },
    /// Begins a session of a volume. Refused while somebody else's goes on at a door that is up.
    AttachVolume {
        /// The volume.
        volume: RegionId,
        /// The session that it follows.
        after: u64,
        /// The writer of the new one.
        writer: VolumeWriter,
    },
    /// Ends a session of a volume.
    DetachVolume {
        /// The volume.
        volume: RegionId,
        /// The session; another one goes on.
        session: u64,
    },
    /// The disks of a running node are others than they were: one was added, is being emptied, or failed.
    SetDisks(NodeDisks),
    /// Limits what a volume's clients may do each second, from now on.
    LimitVolume {
        /// The volume.
        name: String,
        /// The limit; `None` for none.
        limit: Option<VolumeLimit>,
    },
    /// Makes a region or a volume whose data buckets hold so many bytes each.
    MakeRegion {
        /// The pool.
        pool: String,
        /// Its name, unique among the regions and volumes of all pools.
        name: String,
        /// Its size in bytes.
        size_bytes: u64,
        /// Bytes that each data bucket holds ([`is_bucket_bytes`](crate::is_bucket_bytes)).
        bucket_bytes: u64,
        /// True for a volume.
        is_volume: bool,
    },
    /// Lets a region end further on, with further groups where those it has are too few.
    ExtendRegion {
        /// The region.
        name: String,
        /// Its new size in bytes; not less than the present one.
        size_bytes: u64,
        /// Bytes that each data bucket of the further groups holds.
        bucket_bytes: u64,
    },
    /// Begins to copy volumes, all at one instant.
    CopyVolumes {
        /// The copies; each volume once.
        copies: Vec<VolumeCopy>,
        /// Snapshots or clones.
        kind: ImageKind,
        /// The time by the clock of who asks, in milliseconds since 1970.
        at_ms: u64,
    },
    /// Every bucket has the copies that were begun together, or they are given up.
    EndCopies {
        /// The first of them.
        together: RegionId,
        /// True if all have them.
        are_good: bool,
    },
    /// Strikes the region of a deleted image, or of a deleted volume that has some, once the buckets have nothing of it any more.
    ForgetImage(RegionId),
    /// Has writes to a pool wait while a group has fewer complete copies.
    SetCopiesMin {
        /// The pool.
        pool: String,
        /// The copies; 1 for no wait.
        copies: u8,
    },
    /// Makes a volume that several clients write at a time.
    MakeSharedVolume {
        /// The pool.
        pool: String,
        /// Its name, unique among the regions and volumes of all pools.
        name: String,
        /// Its size in bytes.
        size_bytes: u64,
        /// Bytes that each data bucket holds.
        bucket_bytes: u64,
    },
    /// A door's last client of a shared volume has gone, unless another has come through it since.
    LeaveVolume {
        /// The volume.
        volume: RegionId,
        /// The door's node.
        node: NodeId,
        /// Its life.
        incarnation: Incarnation,
        /// The revision with which its last client came.
        joined: u64,
    },
    /// Makes a volume in a pool on disk whose writes are answered before disks have them, as its clones' are.
    MakeWriteback {
        /// The pool.
        pool: String,
        /// Its name, unique among the regions and volumes of all pools.
        name: String,
        /// Its size in bytes.
        size_bytes: u64,
        /// Bytes that each data bucket holds ([`is_bucket_bytes`](crate::is_bucket_bytes)).
        bucket_bytes: u64,
    },
    /// As `CommitEpochs`, for groups with write-back whose members that may hold what was not flushed have been down for long: they are not
    /// waited for any more, and all sessions of their volumes so far are over.
    GiveUpUnflushed(Vec<NewEpoch>),
}

#[cfg(test)]
mod tests;
