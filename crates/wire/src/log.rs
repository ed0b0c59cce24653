//! Requests to the sequencers of logs. What they say is the log service's own, and carried as bytes.

use bytes::Bytes;
use staves_model::{Incarnation, NodeId, PoolId};

use crate::codec::wire_struct;

/// Requests to the sequencers of one life of a node. Answered with what they say, in the same order; from another life of the node, that they are none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogAsk {
    /// The log's pool.
    pub pool: PoolId,
    /// The node.
    pub node: NodeId,
    /// The node's life.
    pub incarnation: Incarnation,
    /// The requests, one after the other.
    pub body: Bytes,
}

/// The answer to either request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogSaid {
    /// The sequencers' replies, one after the other; to an appointment the home's, with the log's record.
    pub body: Bytes,
}

/// Asks a node to see that a log has a sequencer: itself, if the one of the record is gone, or if it is to take it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogAppoint {
    /// The log's pool.
    pub pool: PoolId,
    /// The log's name.
    pub name: String,
    /// The sequencer is to be this node's, also where another lives.
    pub take: bool,
    /// The log's term is to be above this one.
    pub above: u64,
}

wire_struct!(LogAsk {
    pool,
    node,
    incarnation,
    body
});
wire_struct!(LogSaid { body });
wire_struct!(LogAppoint {
    pool,
    name,
    take,
    above
});
