//! The model of a Staves cluster, without any I/O: names, time, schemes, and the cluster map with its rules.
//!
//! **Promises.** [`ClusterMap`] is the one replicated truth. [`ClusterMap::apply`] either makes a
//! [`Change`] whole or refuses it and changes nothing; it never breaks a rule of the map.
//! Everything here is deterministic: the same changes in the same order give the same map on every
//! node, so the map can be a Raft state machine in the program and a plain value in the simulator.
//!
//! **Path of the data.** A proposal (a change and the revision it was decided on) reaches the
//! directory's leader, is ordered by Raft, and is applied here on every node. The leader's
//! [`planner`] looks at the map and at the [`detector`]'s findings and makes the next proposals.
//!
//! **Invariants.** GROUP rules 7, 11 and 13 at the directory (`change/epochs.rs`): members on distinct
//! nodes, sources only from the last *open* epoch and never listed as joiners, at least m complete members
//! kept, epochs and incarnations only growing. No read lease outlives the opening of a successor
//! (`lease.rs`). The leader's policies (`planner.rs`, `detector.rs`) can cost time, never data: what
//! they propose passes the same rules.
//!
//! **Layout.** `ids`, `time`, `scheme`: the words. `map`: the state. `change`: its rules. `ring`:
//! placement. `detector`, `planner`, `lease`, `stop_book`: the directory leader's own machines. `pinger`,
//! `election_timer`: those of every node. `policy`: the rules asked before
//! pools, drains, stops and loads. `mutant`: the planted bugs, compiled in for the simulator only.
//! `testing`: small clusters for the tests of all crates. Read `map`, then `change`.
//!
//! **Not here.** How members agree on bytes (`staves-group`), how changes are ordered (`staves-directory`).

mod call;
pub mod capacity;
pub mod change;
pub mod detector;
mod election_timer;
mod files;
mod forecast;
mod ids;
mod image;
mod kind;
pub mod lease;
mod map;
pub mod mutant;
pub mod pinger;
pub mod planner;
pub mod policy;
pub mod reach;
mod region;
pub mod ring;
mod scheme;
mod shared_volume;
mod silence;
mod stop_book;
pub mod testing;
mod time;
pub mod units;
mod volume_entries;
mod volume_limit;
mod volume_tables;
mod writeback;

pub use call::DirectoryCall;
pub use change::{
    Change, Claim, GroupStep, NAME_BYTES_MAX, NewEpoch, NewHoldings, NodeDisks, NodeFacts, Outcome,
    Refusal,
};
pub use detector::{Detector, DetectorConfig, Evidence, Sign, whom_to_ping};
pub use election_timer::{ElectionTimer, ElectionTimes, ElectionView, may_win};
pub use files::{
    DATASETS_MAX, Dataset, HOLDERS_MAX, Holder, Holdings, PIN_TEXT_BYTES_MAX, PINS_MAX, Pin,
    SOURCE_BYTES_MAX, STRETCH_BLOCKS, bucket_of,
};
pub use forecast::{GroupMove, forecast};
pub use ids::{
    ClientId, ClusterId, DiskId, Epoch, GroupId, HashSlot, Incarnation, Label, MemberId,
    MemberSlot, NodeId, PoolId, RegionId, Revision, ServiceId,
};
pub use image::{
    IMAGES_MAX, IMAGES_OF_ALL_MAX, Image, ImageKind, ImageState, Images, VolumeCopy, snapshot_name,
};
pub use lease::{LeaseAnswer, LeaseBatcher, LeaseEffects, LeaseEvent, LeaseRequest, Leases};
pub use map::{
    ClusterMap, Group, KindRow, LastOpen, Medium, Member, Node, NodeState, Pool, PoolKind,
    whole_buckets,
};
pub use planner::{Planner, PlannerConfig, StuckReport};
pub use region::{
    BUCKET_CHUNKS_MAX, BucketPart, CHUNK_BYTES, Place, REGION_BUCKET_BYTES_MAX,
    REGION_BUCKET_BYTES_MIN, Region, Stretch, StretchState, Volume, VolumeWriter,
    choose_bucket_bytes, is_bucket_bytes, stretch_unit,
};
pub use ring::Ring;
pub use scheme::{
    EXTENT_BYTES, EXTENT_PAGES, HASH_SLOTS, K_MAX, M_MAX, PAGE_BYTES, PARITY_SLOTS, Scheme,
    bucket_slot, hash_slot, slots_max, twin,
};
pub use shared_volume::SHARED_CLIENTS;
pub use silence::Silences;
pub use stop_book::{OwnStop, StopBook, StopReply, StopState, StopTimes};
pub use time::{CLOCK_RATE_BOUND_PPM, Time, shortened};
pub use units::with_unit;
pub use volume_entries::{SharedDoor, SharedVolume, SharedVolumes};
pub use volume_limit::{BURST_MS, LIMIT_BYTES_MIN, VolumeLimit, VolumeLimits};
pub use volume_tables::VolumeTables;
pub use writeback::{Unflushed, Writeback};
