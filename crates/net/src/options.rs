//! The bounds of connections. Everything that could grow has one, everything that could wait has one.

use std::sync::Arc;
use std::time::Duration;

use staves_wire::frame::{Limits, MESSAGE_BYTES_MAX};

use crate::descriptors::Descriptors;
use crate::in_flight::InFlight;

/// Bounds that both sides of a connection keep.
#[derive(Clone, Debug)]
pub struct Options {
    /// Of a message, and of messages that are not complete yet.
    pub limits: Limits,
    /// Most requests begun and not answered. A client waits before it begins another; a server stops
    /// reading.
    pub in_flight_max: u32,
    /// A server stops reading while the requests that it works on take up more than this.
    pub in_flight_bytes_max: usize,
    /// The memory for requests and answers of clients, whatever their door.
    pub in_flight: Arc<InFlight>,
    /// A client waits before it queues more than this, a server stops reading while more answers
    /// than this wait to be written.
    pub queued_bytes_max: usize,
    /// The bound on connecting and the hello after it.
    pub connect_timeout: Duration,
    /// A client that has heard nothing for so long sends a ping, and another one after as long again.
    pub ping_after: Duration,
    /// A client that has heard nothing for so long gives the connection up; it pings before half of that at the latest.
    pub silence_max: Duration,
    /// A server gives up a connection on which nothing came for this long. Clients ping more often.
    pub idle_max: Duration,
    /// A connection that takes not one byte for this long is given up.
    pub stall_max: Duration,
    /// Most connections of clients and tools that a server holds at once.
    pub connections_max: usize,
    /// Most connections of nodes.
    pub nodes_max: usize,
    /// Most connections that have not said hello yet; the oldest of them goes for one more.
    pub greeting_max: usize,
    /// The descriptors that a server may take.
    pub descriptors: Descriptors,
}

impl Default for Options {
    fn default() -> Options {
        let descriptors = Descriptors::of_process();
        Options {
            limits: Limits::default(),
            in_flight_max: 4096,
            // One message of the largest kind must fit, or it could never be taken.
            in_flight_bytes_max: MESSAGE_BYTES_MAX,
            in_flight: InFlight::new(usize::MAX),
            queued_bytes_max: 16 << 20,
            connect_timeout: Duration::from_secs(1),
            ping_after: Duration::from_secs(2),
            silence_max: Duration::from_secs(4),
            idle_max: Duration::from_secs(60),
            stall_max: Duration::from_secs(10),
            connections_max: 10_000,
            nodes_max: 4096,
            greeting_max: descriptors.share(4),
            descriptors,
        }
    }
}
