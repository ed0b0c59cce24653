//! The first exchange on a connection: who is there, and in which version they will speak.

use bytes::Bytes;
use staves_model::{ClusterId, Incarnation, NodeId};

use crate::codec::{wire_enum, wire_struct};

/// Most bytes of credentials.
pub const CREDENTIALS_BYTES_MAX: usize = 4096;

/// Bytes of a proof of a shared secret, and of the random bytes that it is over.
pub const SECRET_BYTES: usize = 32;

/// The feature bit of a connection that carries the directory's messages, and nothing else: the other side serves it apart from requests.
pub const DIRECTORY: u64 = 1;

/// The role of the connecting side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A node of the cluster, or one that wants to be.
    Node,
    /// An application.
    Client,
    /// A person's tool.
    Admin,
}

/// The first message of the side that connects. Answered by [`Welcome`], [`Challenge`] or an error packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The cluster that it means; 0 if it does not know yet, which fits any.
    pub cluster: ClusterId,
    /// Its node id; 0 if it has none.
    pub node: NodeId,
    /// Its life; 0 if it has none.
    pub incarnation: Incarnation,
    /// Its role.
    pub role: Role,
    /// The lowest version that it speaks.
    pub version_min: u8,
    /// The highest.
    pub version_max: u8,
    /// Optional abilities, one bit each: [`DIRECTORY`]. Unknown ones are passed over.
    pub features: u64,
    /// [`SECRET_BYTES`] random bytes, if it can prove a shared secret and wants the other side to prove it too; else nothing. At most
    /// [`CREDENTIALS_BYTES_MAX`].
    pub credentials: Bytes,
}

impl Hello {
    /// True if the connection carries the directory's messages, and nothing else ([`DIRECTORY`]).
    pub fn is_of_directory(&self) -> bool {
        self.role == Role::Node && self.features & DIRECTORY != 0
    }
}

/// The accepting side's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// Its cluster; 0 if it is not part of one yet.
    pub cluster: ClusterId,
    /// Its node id; 0 if it has none yet.
    pub node: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
    /// The version that both speak from here on.
    pub version: u8,
    /// The abilities that both have.
    pub features: u64,
    /// The largest message that it takes, in bytes.
    pub message_bytes_max: u64,
    /// The most requests that it takes before it has answered the first.
    pub in_flight_max: u32,
}

/// The accepting side wants a shared secret to be proven. Answers a hello; asked for by [`Prove`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Challenge {
    /// [`SECRET_BYTES`] random bytes.
    pub nonce: Bytes,
}

/// The connecting side's proof, of [`SECRET_BYTES`]. Answered by [`Proven`] or an error packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prove {
    /// Over the hello and the challenge.
    pub proof: Bytes,
}

/// The accepting side's proof, and its welcome.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proven {
    /// Over the hello, the challenge and the welcome, of [`SECRET_BYTES`].
    pub proof: Bytes,
    /// The bytes of a [`Welcome`].
    pub welcome: Bytes,
}

/// "Are you there?" Answered by [`Pong`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ping {
    /// The asker's clock, echoed.
    pub clock: staves_model::Time,
}

/// "I am."
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pong {
    /// The echoed clock.
    pub clock: staves_model::Time,
    /// The answering node.
    pub node: NodeId,
    /// The node's life.
    pub incarnation: Incarnation,
}

// On the wire.

wire_enum!(Role { 0 => Node, 1 => Client, 2 => Admin });
wire_struct!(Hello {
    cluster,
    node,
    incarnation,
    role,
    version_min,
    version_max,
    features,
    credentials,
});
wire_struct!(Welcome {
    cluster,
    node,
    incarnation,
    version,
    features,
    message_bytes_max,
    in_flight_max,
});
wire_struct!(Challenge { nonce });
wire_struct!(Prove { proof });
wire_struct!(Proven { proof, welcome });
wire_struct!(Ping { clock });
wire_struct!(Pong {
    clock,
    node,
    incarnation
});
