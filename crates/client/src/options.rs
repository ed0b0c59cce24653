//! The bounds of routing, and of a client.

use std::time::Duration;

use staves_model::ClusterId;
use staves_net::{Options, Secret};

/// The bounds of a [`crate::Router`]'s batches and retries.
#[derive(Clone, Debug)]
pub struct RouterOptions {
    /// Most operations that go to nodes at once for one caller; longer lists go in turns.
    pub batch_ops_max: usize,
    /// Most bytes of keys and values of one batch (a single operation may have more).
    pub batch_bytes_max: usize,
    /// Most write numbers between the lowest that is not answered and the next. Below what a bucket
    /// remembers of a client (4,096), so that no retry is ever forgotten.
    pub window: u64,
    /// The time that one node may take before it is passed over, its bytes' own time apart.
    pub try_max: Duration,
    /// The wait before the second try; it doubles with each.
    pub backoff_min: Duration,
    /// The longest wait between tries.
    pub backoff_max: Duration,
}

impl Default for RouterOptions {
    fn default() -> RouterOptions {
        RouterOptions {
            batch_ops_max: 1024,
            batch_bytes_max: 16 << 20,
            window: 2048,
            try_max: Duration::from_secs(1),
            backoff_min: Duration::from_millis(2),
            backoff_max: Duration::from_millis(50),
        }
    }
}

/// The options of a [`crate::Client`].
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The pool that `get`, `put` and their kin speak of.
    pub pool: String,
    /// The time that an operation may take, retries and all.
    pub deadline: Duration,
    /// The cluster that is meant; 0 takes any, and then holds on to the first.
    pub cluster: ClusterId,
    /// A person's tool, not an application.
    pub admin: bool,
    /// The secret of the cluster's clients or nodes, if it has one.
    pub secret: Option<Secret>,
    /// Of each connection.
    pub connection: Options,
    /// Of routing.
    pub router: RouterOptions,
    /// The time that one node may take to send the map.
    pub map_try_max: Duration,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            pool: "cache".to_owned(),
            deadline: Duration::from_secs(5),
            cluster: ClusterId(0),
            admin: false,
            secret: None,
            connection: Options {
                connect_timeout: Duration::from_millis(500),
                ..Options::default()
            },
            router: RouterOptions::default(),
            map_try_max: Duration::from_millis(500),
        }
    }
}
