//! Chaos: real `staves` processes in network namespaces, real faults, and checked histories.
//!
//! **Promises.** Every run ends with a verdict that rests on what clients saw: each key's history is
//! linearizable, no acknowledged write is gone, no key stalls longer than the scenario allows, no node
//! that was left alone keeps a client waiting past its deadline, the directory's terms and revisions
//! never go back, and after healing `staves status --check` is content. Readers of files see right bytes of one version,
//! and no error but that a file has changed, whatever dies or is cut off: their source is there. A run that fails leaves its
//! logs and its history in a folder that it names. Whatever a run makes (namespaces, mounts, processes)
//! it takes away; what a killed run left, the next one sweeps.
//!
//! **Path of the data.** A [`scenario`] is a small file that reads like sentences, or comes from the
//! [`random`] grammar. [`run`] builds a [`lab`] (one namespace a node, one more for clients), starts the
//! [`nodes`] in it and the clients of [`load`], and does what the scenario says. [`wan`] delays packets between nodes where it says so. [`judge`] looks at
//! what was seen. [`second`] asks another checker (Porcupine) about the same history.
//!
//! **What it does not do.** Loss of power: a killed process keeps the kernel's page cache. Steps of the
//! monotonic clock: nodes' can be set apart at their start (time namespaces), no more. Wall clocks are set by `faketime`. Loss, reordering and duplication of packets are the simulator's.
//!
//! **Layout.** Start with `scenario`, then `run`, then `judge`.

pub mod catalogue;
pub mod judge;
pub mod kills;
pub mod lab;
pub mod load;
pub mod mutants;
pub mod nodes;
pub mod random;
pub mod run;
pub mod scenario;
pub mod second;
pub mod wan;
pub mod wan_log;
pub mod watch;
