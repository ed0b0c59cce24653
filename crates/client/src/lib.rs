//! The client library: applications link it to use a cluster, and nodes forward requests with it.
//!
//! **Promises.** An operation goes straight to the node that answers for its key, in one batch with all
//! others for that node (row X6); it is asked again through failovers until its deadline, a write
//! always with the same number, so that it takes effect at most once; and what is not known at the
//! deadline is said not to be known. A map that is too old costs one detour: the answer brings the
//! newer entry, and the same mistake is not made twice. A node that does not answer is passed over for
//! another; the list of nodes that one begins with need not be complete (row D1), and trouble with a
//! node is reported (row D5).
//!
//! # Use
//!
//! A [`Client`] is made once from the native addresses of some nodes, and shared by all tasks. Keys and
//! values are bytes.
//!
//! ```
//! use staves_client::{Client, ClientOptions};
//! # use staves_node::{Node, config::Config};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let free = || "127.0.0.1:0".parse();
//! # let (listen, resp, admin, memory) = (free()?, free()?, free()?, "64MiB".parse()?);
//! # let node = Node::start(Config { listen, resp, admin, memory, ..Config::default() }).await?;
//! # let address = node.addresses().native.to_string();
//! // Such as "10.0.0.1:1600"; not all nodes need be named, nor all named ones run.
//! let client = Client::connect(&[address], ClientOptions::default()).await?;
//!
//! client.put("greeting", "hello").await?;
//! assert_eq!(client.get("greeting").await?.as_deref(), Some(&b"hello"[..]));
//! assert!(client.delete("greeting").await?);
//! assert_eq!(client.get("greeting").await?, None);
//! # Ok(())
//! # }
//! ```
//!
//! Many operations at once go to each node in one message. Each is atomic by itself and has an answer of
//! its own, which may be an error while the others are done.
//!
//! ```
//! use staves_client::{Answer, Client, ClientOptions, Condition, OwnedOp};
//! # use staves_node::{Node, config::Config};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let free = || "127.0.0.1:0".parse();
//! # let (listen, resp, admin, memory) = (free()?, free()?, free()?, "64MiB".parse()?);
//! # let node = Node::start(Config { listen, resp, admin, memory, ..Config::default() }).await?;
//! # let address = node.addresses().native.to_string();
//! let client = Client::connect(&[address], ClientOptions::default()).await?;
//! let answers = client
//!     .execute(vec![
//!         OwnedOp::IncrBy { key: "visits".into(), by: 1 },
//!         OwnedOp::Set {
//!             key: "owner".into(),
//!             value: "me".into(),
//!             condition: Condition::IfAbsent,
//!             get_old: false,
//!         },
//!         OwnedOp::Append { key: "log".into(), value: "line\n".into() },
//!         OwnedOp::IncrBy { key: "log".into(), by: 1 },
//!     ])
//!     .await?;
//! assert_eq!(answers[..3], [Answer::Int(1), Answer::Ok, Answer::Int(5)]);
//! assert!(matches!(answers[3], Answer::Error(..)), "its value is no number");
//! # Ok(())
//! # }
//! ```
//!
//! # Retries, and writes whose outcome is not known
//!
//! A node that dies, or a bucket that moves, is no error as long as somebody answers before the deadline
//! ([`ClientOptions::deadline`], 5 s): the operation is asked again, of whoever answers for the key by
//! then. A write carries a number that no other write of this client has, and every copy of the bucket
//! keeps it with the answer: asked again, it is answered again and not done again. So nothing need be
//! retried by hand before the deadline.
//!
//! An error after that is of one of two kinds, and [`ClientError::is_uncertain`] tells which. Mostly
//! **nothing was done**: the request was refused, or reached nobody. If a write was sent and no answer
//! came, **it may or may not have been done**, now or a moment later, and nobody can tell any more under
//! its number. What to do then only the application knows: a write that does no harm twice (`put`,
//! `delete`) may be done again; for one that counts, read first.
//!
//! ```
//! use staves_client::{Client, ClientError};
//!
//! async fn count(client: &Client) -> Result<(), ClientError> {
//!     match client.put("last", "42").await {
//!         // The same value once more does no harm.
//!         Err(error) if error.is_uncertain() => client.put("last", "42").await,
//!         result => result,
//!     }
//! }
//! ```
//!
//! The program in `examples/` keeps writing while nodes are killed, and counts what became of the writes.
//!
//! # How
//!
//! **Path of the data.** [`Client::execute`] hands operations to the [`Router`], which numbers the
//! writes within a bounded window, looks up each key's node in its map, and sends batches through a
//! [`Transport`]: the client's own connections here, a node's links and own buckets in the daemon.
//! Answers that say "not here, not now" go round again, by a newer map if one can be had.
//!
//! **What it does not do.** No caching of values. No transactions: a batch is a way to travel, not a unit.
//! No retry of a write under a new number: if its outcome is unknown, only its user can tell whether to
//! write again.
//!
//! **Layout.** `client`, `region`, `volumes`, `dataset`, `log`: what applications hold. `pieces`: ranges of a region, cut into chunks. `router`: batches, on the network. [`turn`]: retries, as
//! a machine. `route`: the node, by a map. `numbers`: names for writes. `links`: connections, and where maps come from.

mod client;
mod dataset;
mod error;
mod links;
mod local;
mod log;
mod numbers;
mod options;
mod patience;
mod pieces;
mod region;
mod route;
mod router;
pub mod turn;
mod volume_reader;
mod volumes;

pub use client::Client;
pub use dataset::{Dataset, Figures, OpenFile};
pub use error::ClientError;
pub use log::{
    AppendCondition, AppendMode, ConditionalAppend, CursorChange, DeletedLog, LOG_BATCH_BYTES_MAX,
    LockGrant, LogCursors, LogHandle, LogLock, LogMap, LogProducer, LogQueue, LogReplay,
    LogRetention, LogSlot, LogStat, LogTimes, MapTransaction, ProducedRecord, QUEUE_TAKE_MAX,
    QueueItem, QueueOptions, QueueStat, RECORD_ID_BYTES_MAX, StreamEnd, WhenFull,
    calls as log_calls, list::PoolLogs,
};
pub use numbers::Windows;
pub use options::{ClientOptions, RouterOptions};
pub use pieces::{Piece, TRANSFER_BYTES_MAX, pieces};
pub use region::{GO_ON_THERE, Region, RegionStat};
pub use route::{Avoid, newest as newest_map, with_moved};
pub use router::{Router, SomeAnswers, Transport};
pub use staves_files::{FileVersion, Keep, Kind, Seek, SourceError, Stat};
pub use staves_wire::ErrorCode;
pub use staves_wire::cache::{Condition, OwnedOp};
pub use staves_wire::service::Answer;
pub use volume_reader::{VolumeReader, written_chunks};
pub use volumes::{VolumeKind, VolumeStat};
