//! The client's machines: appends, reads, and the orders in which positions are read.

mod answers;
mod append_error;
mod appender;
mod bounds;
mod full_units;
mod in_flight;
mod prediction;
mod read_ops;
mod reader;
mod room;
mod scan;
mod sending;
mod session;
mod stream;

pub use append_error::AppendError;
pub use appender::*;
pub use bounds::AppendBound;
pub use read_ops::*;
pub use reader::LogReader;
pub use scan::LogScan;
pub use stream::StreamWalk;

#[cfg(test)]
mod tests;
