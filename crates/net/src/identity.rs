//! The identity of this process in its hellos. A node learns it only when it joins, after its port is
//! open, so it is shared and may change.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;
use staves_model::{ClusterId, Incarnation, NodeId};
use staves_wire::frame::{VERSION_MAX, VERSION_MIN};
use staves_wire::hello::{self, Hello, Role};

use crate::secret::{Secret, Secrets, nonce};

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
    secrets: Option<Secrets>,
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
            secrets: None,
            features: 0,
        }
    }

    /// For connections that carry the directory's messages ([`hello::DIRECTORY`]).
    pub fn for_directory(mut self) -> Identity {
        self.features |= hello::DIRECTORY;
        self
    }

    /// With a secret to prove, and to have proven by the other side.
    pub fn with_secret(self, secret: Option<Secret>) -> Identity {
        self.with_secrets(secret.map(|nodes| Secrets {
            nodes,
            clients: None,
        }))
    }

    /// The same with one more that suffices for clients, where it accepts.
    pub fn with_secrets(mut self, secrets: Option<Secrets>) -> Identity {
        self.secrets = secrets;
        self
    }

    /// The same secrets, and nothing else: one who belongs to no cluster yet.
    pub fn stranger(&self) -> Identity {
        Identity::node(Who::default()).with_secrets(self.secrets.clone())
    }

    pub(crate) fn secrets(&self) -> Option<&Secrets> {
        self.secrets.as_ref()
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
            credentials: self.secrets.as_ref().map_or(Bytes::new(), |_| nonce()),
        }
    }
}
