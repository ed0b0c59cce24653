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
//! what answers and reads wait for. A new epoch runs through `seal`, `lead` (the cut), `sync`, and
//! opens by the directory; what a joiner lacks comes through `fill`.
//!
//! **Invariants.** I1 to I11 of the specification. Where a line here keeps one, it says so; the
//! simulator checks all of them at every step, and finds every planted bug (`staves_model::mutant`).
//!
//! **Layout.** `member`: the machine and what it is told. `stream`, `requests`, `table`: what it
//! keeps. `update`: rules 1 to 6. `lease`: promises. `seal`, `lead`, `sync`: rules 7 to 13. `fill`:
//! rules 14 to 17. `code`: the arithmetic.
//!
//! **Not here.** What bytes mean (the services), where they go (the driver), who is a member (the
//! directory). The machine has no clock, no sockets, no randomness: the same events give the same effects.

mod code;
mod fill;
mod lead;
mod lease;
mod member;
mod requests;
mod seal;
mod stream;
mod sync;
mod table;
mod update;

pub use code::supported;
pub use member::{Applied, DirectoryCall, Effects, Event, Member, Options, Refused, Unread};
pub use requests::{CLIENTS_MAX, REQUESTS_PER_CLIENT_MAX, Recall, RequestTable};
pub use stream::{Log, Stream};
pub use table::{PageTable, Rebuilt, Shape};
