//! The outcome of a change, or the reason for its rejection: the thing, the reason, and the remedy.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::bounds::{BUCKETS_MAX, NAME_BYTES_MAX};
use crate::ids::{
    ClusterId, Epoch, GroupId, Incarnation, MemberSlot, NodeId, PoolId, RegionId, Revision,
    ServiceId,
};
use crate::region::{REGION_BUCKET_BYTES_MAX, REGION_BUCKET_BYTES_MIN};
use crate::scheme::{K_MAX, M_MAX, PAGE_BYTES, Scheme};
use crate::units::with_unit;

/// The outcome of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// Done.
    Done,
    /// It was so already; the revision stays.
    Unchanged,
    /// A node's new life.
    Node {
        /// Its id.
        id: NodeId,
        /// Its life.
        incarnation: Incarnation,
    },
    /// A new pool.
    Pool {
        /// Its id.
        id: PoolId,
    },
    /// A new region.
    Region {
        /// Its id.
        id: RegionId,
    },
}

/// A refused change. The map is as it was.
#[derive(Clone, PartialEq, Eq, Debug, Error, Serialize, Deserialize)]
#[allow(missing_docs)] // each variant's message says what it means, its fields are what it names
pub enum Refusal {
    // The proposer looked at another map.
    #[error(
        "the map is at revision {found}, and what the proposal names has changed since revision {expected}: look again and decide anew"
    )]
    MapMovedOn { expected: Revision, found: Revision },
    #[error("the cluster is not bootstrapped yet: start a first node without --join")]
    NotBootstrapped,
    #[error(
        "cluster {cluster} is bootstrapped already: join it, or use an empty data folder for a new cluster"
    )]
    AlreadyBootstrapped { cluster: ClusterId },

    // Nodes.
    #[error(
        "node {node} is not known to this cluster: it was forgotten or is of another cluster; start it with an empty data folder for a new id"
    )]
    UnknownNode { node: NodeId },
    #[error(
        "incarnation {incarnation} of node {node} is not its present one, which is {present}: its process started again since; drop the report"
    )]
    OldIncarnation {
        node: NodeId,
        incarnation: Incarnation,
        present: Incarnation,
    },
    #[error("node {node} is up: stop it first")]
    NodeIsUp { node: NodeId },
    #[error(
        "node {node} is still a member of group {group}: wait until its buckets are elsewhere, or delete the pool"
    )]
    NodeIsMember { node: NodeId, group: GroupId },
    #[error("{what} '{name}' cannot be used, because {reason}: choose another")]
    BadName {
        what: String,
        name: String,
        reason: String,
    },
    #[error("there are {max} {what} already, and there may be no more: remove one first")]
    TooMany { what: String, max: usize },

    // Pools.
    #[error("pool '{name}' does not exist: `staves pool list` shows those that do")]
    UnknownPool { name: String },
    #[error(
        "pool '{name}' exists already: choose another name, or change it with `staves pool set`"
    )]
    PoolExists { name: String },
    #[error(
        "pool '{name}' cannot have {buckets} buckets: choose a power of two from 1 to {BUCKETS_MAX}"
    )]
    BadBuckets { name: String, buckets: u32 },
    #[error(
        "pool '{name}' cannot be a plain pool of {service:?}: that service has a kind of its own"
    )]
    HasKind { name: String, service: ServiceId },
    #[error(
        "pool '{name}' cannot have scheme {scheme}: choose m from 1 to {M_MAX} and k from 0 to {K_MAX}"
    )]
    BadScheme { name: String, scheme: Scheme },
    #[error(
        "pool '{name}' cannot go from scheme {from} to {to}, because the number of data buckets is fixed when a pool is made: change only k, or make a new pool"
    )]
    SchemeChangesM {
        name: String,
        from: Scheme,
        to: Scheme,
    },
    #[error(
        "pool '{name}' cannot have a budget of {bytes} bytes a node: give it at least one page ({PAGE_BYTES} bytes)"
    )]
    BadBudget { name: String, bytes: u64 },
    #[error(
        "pool '{name}' of kind memory is made without buckets and regions, and never starts empty: make its regions with `staves memory create`"
    )]
    BadMemoryPool { name: String },

    #[error("pool '{name}' cannot be on disk, because {reason}")]
    BadDiskPool { name: String, reason: String },

    // Epochs.
    #[error("group {group} does not exist: its pool was deleted; drop the proposal")]
    UnknownGroup { group: GroupId },
    #[error("group {group} is named twice in one proposal: name it once")]
    NamedTwice { group: GroupId },
    #[error(
        "epoch {epoch} of group {group} does not follow its newest, {newest}: look again and decide anew"
    )]
    WrongEpoch {
        group: GroupId,
        epoch: Epoch,
        newest: Epoch,
    },
    #[error("epoch {epoch} of group {group} is malformed: {reason}")]
    Malformed {
        group: GroupId,
        epoch: Epoch,
        reason: String,
    },
    #[error(
        "node {node} is listed twice in group {group}: with m = 1 a node holds one member of a group, else one more beside it"
    )]
    NodeTwice { group: GroupId, node: NodeId },
    #[error(
        "member {slot} of group {group} is incarnation {incarnation} of node {node}, which is not up: choose one that is"
    )]
    MemberNotUp {
        group: GroupId,
        slot: MemberSlot,
        node: NodeId,
        incarnation: Incarnation,
    },
    #[error(
        "member {slot} of group {group} is said to be kept from slot {from} of the last open epoch, where another stands: only members of the last open epoch are sources (GROUP rule 7)"
    )]
    NotThatSource {
        group: GroupId,
        slot: MemberSlot,
        from: MemberSlot,
    },
    #[error(
        "node {node} is a source of group {group} and is listed as a joiner: keep it or leave it out (GROUP rule 7)"
    )]
    SourceAsJoiner { group: GroupId, node: NodeId },
    #[error(
        "group {group} would keep {kept} complete members and needs {m}: wait for one to come back (GROUP rule 7)"
    )]
    TooFewSources { group: GroupId, kept: usize, m: u8 },
    #[error(
        "slot 0 of group {group} must be a complete member of the last open epoch: with m = 1 only that one can serve"
    )]
    FirstNotComplete { group: GroupId },
    #[error("group {group} may not start empty: {reason}")]
    NotFresh { group: GroupId, reason: String },
    #[error(
        "slot {slot} of group {group} cannot lead its change of epoch: the coordinator must be a listed member that is kept"
    )]
    BadLeader { group: GroupId, slot: MemberSlot },
    #[error(
        "epoch {epoch} of group {group} is not its newest, {newest}: the epoch was abandoned; read the map again"
    )]
    NotNewest {
        group: GroupId,
        epoch: Epoch,
        newest: Epoch,
    },
    #[error("epoch {epoch} of group {group} is open already: nothing is left to do")]
    AlreadyOpen { group: GroupId, epoch: Epoch },
    #[error("epoch {epoch} of group {group} is not open yet: report again when it is")]
    NotOpen { group: GroupId, epoch: Epoch },
    #[error(
        "slot {slot} of group {group} is not held by incarnation {incarnation}: read the map again"
    )]
    NotThatMember {
        group: GroupId,
        slot: MemberSlot,
        incarnation: Incarnation,
    },
    #[error("member {slot} of group {group} is complete already: nothing is left to do")]
    AlreadyComplete { group: GroupId, slot: MemberSlot },
    #[error(
        "group {group} is not lost: {kept} complete members run and {m} are enough; commit an epoch with them"
    )]
    NotLost { group: GroupId, kept: usize, m: u8 },

    // Files.
    #[error("pool {pool} is no files pool: make one with `staves pool create --kind files`")]
    NoFilesPool { pool: PoolId },
    #[error("a new files pool '{name}' has no holders and no datasets yet")]
    BadFilesPool { name: String },
    #[error("incarnation {incarnation} of node {node} is not up: it holds nothing")]
    HolderNotUp {
        node: NodeId,
        incarnation: Incarnation,
    },
    #[error("node {node} cannot change its part in bucket {bucket}: {reason}")]
    BadHolding {
        node: NodeId,
        bucket: u32,
        reason: String,
    },
    #[error(
        "dataset '{name}' is in pool '{pool}' already and comes from {source_text}: choose another name, or drop it with `staves files drop`"
    )]
    DatasetExists {
        name: String,
        pool: String,
        source_text: String,
    },
    #[error("dataset '{name}' does not exist: `staves files list` shows those that do")]
    UnknownDataset { name: String },
    #[error(
        "pool '{pool}' cannot keep {} pinned: {} of its nodes' memory may be, and {} of that are taken by other files; unpin some with `staves files unpin`, or give the pool more memory",
        with_unit(*wanted), with_unit(*room), with_unit(*pinned)
    )]
    PinsTooMuch {
        pool: String,
        wanted: u64,
        room: u64,
        pinned: u64,
    },
    #[error("file '{path}' cannot be pinned: {reason}")]
    BadPin { path: String, reason: String },

    // Regions.
    #[error(
        "pool '{name}' holds keys, not regions or volumes: make a pool with `staves pool create --kind memory`"
    )]
    NoMemoryPool { name: String },
    #[error("region '{name}' does not exist: `staves memory list` shows those that do")]
    UnknownRegion { name: String },
    #[error(
        "'{name}' exists already: choose another name; `staves memory list` and `staves volume list` show what there is"
    )]
    RegionExists { name: String },
    #[error(
        "'{name}' cannot get {}: choose a size from 1B to {}, which is what all regions and volumes together may still get; a \
         pool with more data buckets (the first number of its scheme) may give them more",
        with_unit(*bytes),
        with_unit(*max)
    )]
    BadRegionSize { name: String, bytes: u64, max: u64 },
    #[error(
        "'{name}' has {} and cannot shrink to {}: make a smaller one and copy what is to stay",
        with_unit(*from),
        with_unit(*to)
    )]
    RegionShrinks { name: String, from: u64, to: u64 },
    #[error(
        "region '{name}' has no parity there: it is being loaded, or a load was broken off; \
         'staves memory protect {name}' ends that"
    )]
    RegionIsLoaded { name: String },

    // Volumes.
    #[error(
        "volume '{name}' is attached to {client} through node {node}: end that client's connections, or take it away with \
         `staves volume detach {name}`"
    )]
    VolumeAttached {
        name: String,
        client: String,
        node: NodeId,
    },
    #[error("'{name}' is a region and no volume: `staves volume list` shows the volumes")]
    NotAVolume { name: String },
    #[error("'{name}' is a volume: it is written through NBD, and `staves memory` leaves it alone")]
    IsVolume { name: String },
    #[error(
        "volume '{name}' is in session {found}, not in {expected}: somebody else attached it in between; connect again"
    )]
    SessionMovedOn {
        name: String,
        expected: u64,
        found: u64,
    },
    #[error(
        "'{name}' ends at {} and cannot end at {}: choose a size up to {}, which takes all that regions and volumes may still \
         get; or make another one, in a pool with more data buckets (the first number of its scheme)",
        with_unit(*from),
        with_unit(*to),
        with_unit(*max)
    )]
    RegionTooLarge {
        name: String,
        from: u64,
        to: u64,
        max: u64,
    },
    #[error(
        "'{name}' is a snapshot, which stays as it is: make a clone of it with `staves volume clone {name} NAME`"
    )]
    IsSnapshot { name: String },
    #[error("volume '{name}' is being copied: try again in a moment")]
    VolumeIsCopied { name: String },
    #[error(
        "volume '{name}' is being deleted: its name is free again once what it took up is given back"
    )]
    VolumeIsDeleted { name: String },
    #[error("volume '{name}' cannot have this limit, because {reason}")]
    BadLimit { name: String, reason: String },
    #[error(
        "'{name}' cannot have {} in each data bucket: choose a power of two from {} to {}, or none, and one is chosen by its size",
        with_unit(*bytes), with_unit(REGION_BUCKET_BYTES_MIN),
        with_unit(REGION_BUCKET_BYTES_MAX)
    )]
    BadBucketBytes { name: String, bytes: u64 },
    #[error(
        "pool '{name}' cannot have writes wait for {copies} copies: with its scheme {scheme} choose from 1, which never waits, to {most}; with data and \
         parity it is the losses of nodes that are borne while writes go on, and one"
    )]
    BadCopiesMin {
        name: String,
        scheme: Scheme,
        copies: u8,
        most: u8,
    },
    #[error("pool '{name}' cannot have writes wait for copies: nobody writes files")]
    FilesAreNotWritten { name: String },
    #[error(
        "region '{name}' cannot be loaded: a load writes without parity, and writes to its pool wait for {copies} copies; write it without --load, \
         or see 'staves pool set --min-copies 1'"
    )]
    LoadHasNoCopies { name: String, copies: u8 },
    #[error(
        "pool '{name}' is in memory, where there is no disk to write back to: make the volume without write-back, or in a pool on disk"
    )]
    NotOnDisk { name: String },
    #[error(
        "group {group} would keep too few of the members that hold what its volume has not flushed: wait until they are back"
    )]
    UnflushedAwaited { group: GroupId },
}

impl Refusal {
    /// True if the change names a thing that is not there (any more).
    pub fn is_missing(&self) -> bool {
        matches!(
            self,
            Refusal::UnknownNode { .. }
                | Refusal::UnknownPool { .. }
                | Refusal::UnknownGroup { .. }
                | Refusal::UnknownRegion { .. }
        )
    }
}

/// A name that cannot be used.
pub(super) fn bad_name(what: &str, name: &str, reason: &str) -> Refusal {
    Refusal::BadName {
        what: what.to_owned(),
        name: name.chars().take(64).filter(|c| !c.is_control()).collect(),
        reason: reason.to_owned(),
    }
}

/// The refusal of one more than `max`.
pub(super) fn too_many(what: &str, max: usize) -> Refusal {
    let what = what.to_owned();
    Refusal::TooMany { what, max }
}

pub(super) fn check_text(what: &str, text: &str) -> Result<(), Refusal> {
    if text.is_empty() {
        Err(bad_name(what, text, "it is empty"))
    } else if text.len() > NAME_BYTES_MAX {
        let reason = format!("it is longer than {NAME_BYTES_MAX} bytes");
        Err(bad_name(what, text, &reason))
    } else if text.chars().any(|c| c.is_control()) {
        Err(bad_name(what, text, "it holds a control character"))
    } else {
        Ok(())
    }
}
