//! The daemon: what one `staves` process is made of.
//!
//! **Parts that are pure.** [`config`]: what a node is told. [`resp`]: Redis's protocol, from bytes to
//! operations and from answers to bytes. [`status`]: how the cluster is, in one sentence and in rows.
//!
//! **Not here.** What bytes mean (`staves-cache`), what survives (`staves-group`), who holds what
//! (`staves-directory`), how messages move (`staves-net`).

pub mod config;
pub mod resp;
pub mod status;
