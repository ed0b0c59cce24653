//! The reliability group: the protocol that keeps a bucket through failures, without any I/O.
//!
//! **Promises.** An update is answered once every listed parity bucket has received it without a gap
//! before it; from then on it survives the loss of as many members as the group has complete parity
//! buckets. A read returns only what is so safe, and only while a lease says that no successor has
//! answered. One record's history is linearizable through failures, epochs and returning members.
//!
//! **Path of the data.** At the data bucket, [`Member::update`] makes a delta, applies it to the
//! pages, logs it; [`Member::flush`] sends what is not sent yet to every parity bucket. There,
//! `update::receive` takes it into the stream, acknowledges its prefix, and applies what the low
//! watermark has passed. The ack raises the watermark at the data bucket ([`Member::stable`]), which is
//! what answers and reads wait for. A new epoch runs through `seal`, `coordinate` (the cut), `sync`, and
//! opens by the directory; `backfill` fetches what a joiner lacks.
//!
//! **m data buckets.** With m > 1 a delta is the XOR of old and new bytes, and parity adds it times its
//! coefficient, once it is stable, when nobody waits ([`Member::update`] takes new bytes all the same). What is
//! applied together is added up by page first, so that a page that is hit often is multiplied seldom. The
//! coefficients of a parity bucket do not depend on k, so k is raised and lowered while the group serves: new
//! parity buckets join and fetch, like any member. Where members were lost, data buckets or parity, the first
//! joiner makes one pass over m others and sends every other joiner its pages along with its own. A data
//! bucket's replacement serves at once: a read or a write of a page that is not there yet is told so
//! ([`ReadError::Missing`], [`Member::absent_in`]), asks for that page before the others ([`Member::demand`]),
//! and waits as long as its deadline lets it. A slot may be vacant, a data bucket's too: its stream is kept by
//! parity, and it is counted among what is lost until a node takes it. Freed ranges are zero and
//! take no memory. Freeing sends the old bytes once, to remove them from parity.
//!
//! **A load without logging.** While a group has no parity nothing is logged and nothing is sent. So the groups
//! of a region that is being loaded have none, whatever their pool's scheme says (row H11), and when the load ends
//! one pass encodes the pages for all parity buckets. Until it has, a lost data bucket is lost, as the region says.
//!
//! **What a service does.** Before a write: [`Member::recall`], [`Member::absent_in`] and
//! [`Member::demand`], [`Member::usable_extents`] and [`Member::want_extents`], [`Member::admit`]; then
//! [`Member::update`], [`Member::flush`], and the answer when [`Member::stable`] has reached the seq. For a
//! read: [`Member::read`] gives the bytes and the seq that [`Member::releases`] must let go, or says why not
//! yet. Nothing here waits: the service keeps the request, asks again after each step, and gives up when its
//! deadline comes.
//!
//! **Invariants.** I1 to I12 of docs/reference/group-protocol.md, which has the rules, too. Where a line here keeps one, it says so; the
//! simulator checks all of them at every step, and finds every planted bug (`staves_model::mutant`).
//!
//! **Layout.** `member`: the machine and its inputs. `state`, `stream`, `requests`, `remembered`, `table`: its
//! state; `peer`, `reservation`: what a data bucket knows of the others; `slowness`: how late nodes answer; `node_logs`: the bound of all logs of a node. `update`: rules 1 to 6; `rest`: rule 19; `sums`: deltas with
//! m > 1, `merge`: added up before they are multiplied. `lease`: promises. `seal`, `coordinate`, `sync`: rules 7 to 13. `backfill`, `page_requests`, `page_source`: rules 14 to 17. `scrub`, `page_scan`: I4 looked at. `durable`, `on_disk`, `disk_room`, `kept_page`, `recovery`: members on a disk. `code`: the way to `staves-erasure`.
//!
//! **Not here.** What bytes mean (the services), where they go (the driver), who is a member (the
//! directory). The machine has no clock, no sockets, no randomness: the same events give the same effects.

mod backfill;
mod code;
mod coordinate;
mod disk_room;
mod durable;
mod kept_page;
mod lease;
mod member;
mod merge;
mod node_logs;
mod on_disk;
mod page_requests;
mod page_scan;
mod page_set;
mod page_source;
mod peer;
mod recovery;
mod remembered;
mod requests;
mod reservation;
mod rest;
mod scrub;
mod seal;
mod slowness;
mod state;
mod stream;
mod sums;
mod sync;
mod table;
mod update;

pub use backfill::BackfillStats;
pub use code::supported;
pub use disk_room::DiskRoom;
pub use staves_model::{DirectoryCall, GroupStep};

pub use kept_page::{KeptBytes, KeptPage};
pub use member::{AdmitError, Event, Member, ReadError};
pub use merge::Arithmetic;
pub use node_logs::NodeLogs;
pub use on_disk::{ImageBytes, SaveLimits, SavedPages};
pub use page_scan::{PageScan, ScanStep, ScannedPage};
pub use recovery::{RecoveredMember, Recovery, RecoveryError};
pub use remembered::{bound_request_tables, request_table_bytes};
pub use requests::{CLIENTS_MAX, NUMBER_MAX, REQUESTS_PER_CLIENT_MAX, Recall, RequestTable};
pub use scrub::{Finding, Sums};
pub use slowness::Slowness;
pub use state::{Applied, Durability, Effects, Options};
pub use stream::{Log, Stream};
pub use table::{PageTable, Shape};
