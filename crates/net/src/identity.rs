//! The identity of this process in its hellos. A node learns it only when it joins, after its port is
//! open, so it is shared and may change.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;
use staves_model::{ClusterId, Incarnation, NodeId};
use staves_wire::frame::{VERSION_MAX, VERSION_MIN};
use staves_wire::hello::{self, Hello, Role};

/// Cluster, node and life; zeroes for what is not known or does not apply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Who {
    /// The cluster.
    pub cluster: ClusterId,
    /// The node.
    pub node: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
}

/// This process, as it presents itself.
#[derive(Clone, Debug)]
pub struct Identity {
    role: Role,
    who: Arc<RwLock<Who>>,
    credentials: Bytes,
    features: u64,
}

impl Identity {
    /// A node, perhaps not yet of any cluster.
    pub fn node(who: Who) -> Identity {
        Identity::new(Role::Node, who)
    }

    /// An application. It may know the cluster that it means, or take any.
    pub fn client(cluster: ClusterId) -> Identity {
        Identity::new(
            Role::Client,
            Who {
                cluster,
                ..Who::default()
            },
        )
    }

    /// A person's tool.
    pub fn admin(cluster: ClusterId) -> Identity {
        Identity::new(
            Role::Admin,
            Who {
                cluster,
                ..Who::default()
            },
        )
    }

    fn new(role: Role, who: Who) -> Identity {
        Identity {
            role,
            who: Arc::new(RwLock::new(who)),
            credentials: Bytes::new(),
            features: 0,
        }
    }

    /// For connections that carry the directory's messages ([`hello::DIRECTORY`]).
    pub fn for_directory(mut self) -> Identity {
        self.features |= hello::DIRECTORY;
        self
    }

    /// With credentials to show.
    pub fn with_credentials(mut self, credentials: Bytes) -> Identity {
        self.credentials = credentials;
        self
    }

    /// The current identity.
    pub fn who(&self) -> Who {
        *self.who.read()
    }

    /// It has learnt who it is. Connections that are open keep what they said.
    pub fn set(&self, who: Who) {
        *self.who.write() = who;
    }

    /// The first message on a connection.
    pub fn hello(&self) -> Hello {
        let who = self.who();
        Hello {
            cluster: who.cluster,
            node: who.node,
            incarnation: who.incarnation,
            role: self.role,
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            features: self.features,
            credentials: self.credentials.clone(),
        }
    }
}
