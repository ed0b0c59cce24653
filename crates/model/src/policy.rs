//! The rules that are asked before somebody changes the cluster: may this pool be made, could this drain end, is this
//! stop safe, is there room for a load and its parity?
//!
//! **Promises.** Each rule is a pure function of the map and, where memory matters, of the [`Usage`] that nodes
//! report. The answer is data; its `Display` is the one text that every door and tool shows of it.
//!
//! **Invariants.** A rule here guards against harm that the map's own rules (`change`) allow. Memory that was not
//! reported rejects nothing.
//!
//! **Layout.** `pools`: create and set, by kind. `memory`: free memory of nodes. `drain`, `stop`, `load`: the operations.

mod drain;
mod load;
mod memory;
mod pools;
mod stop;
#[cfg(test)]
mod testing;

pub use drain::{
    DrainRefusal, DrainWait, FewerCopies, drain_waits_for, may_drain, no_room_after_drain,
};
pub use load::{LoadRefusal, MissingParity, RegionUsage};
pub use memory::{FreeMemory, NoRoom, NodeUsage, Usage};
pub use pools::{
    NoSuchOption, PoolRefusal, PoolWarning, bears_less, check_change, disk_overcommitted,
    holds_usage, new_pool_shape, overcommitted, too_few_nodes,
};
pub use stop::{AfterStop, NotRebuilt, StopUnjudged, not_rebuilt};
