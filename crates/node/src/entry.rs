//! A node on its way into its cluster: its doors are open and say what it waits for.

use std::sync::{Arc, OnceLock};

use staves_directory::{Directory, DirectoryError, Life};
use staves_model::ClusterId;
use tokio::runtime::Handle;

use crate::config::{Config, Endpoint};
use crate::links::DirectoryLinks;
use crate::running::Running;
use crate::start::{self, StartError};

/// The state that the doors share from the start: the node, once it runs.
pub(crate) struct Entry {
    waits_for: String,
    running: OnceLock<Arc<Running>>,
}

impl Entry {
    /// Of a node with this configuration, whose data folder knows a cluster already or does not.
    pub(crate) fn new(config: &Config, has_cluster: bool) -> Arc<Entry> {
        let join: Vec<String> = config.join.iter().map(Endpoint::to_string).collect();
        let waits_for = match (has_cluster, &join[..]) {
            (true, _) => "it waits for a majority of its cluster's directory".to_owned(),
            (false, []) => "it makes one".to_owned(),
            (false, join) => format!("it looks for one at {}", join.join(", ")),
        };
        Arc::new(Entry {
            waits_for,
            running: OnceLock::new(),
        })
    }

    /// The node, once it has joined.
    pub(crate) fn get(&self) -> Option<&Arc<Running>> {
        self.running.get()
    }

    /// It has joined.
    pub(crate) fn set(&self, running: Arc<Running>) {
        let first = self.running.set(running).is_ok();
        debug_assert!(first, "a node joins once a start");
    }

    /// The reason why nothing can be done yet.
    pub(crate) fn not_yet(&self) -> String {
        let waits_for = &self.waits_for;
        format!("this node has not joined its cluster yet: {waits_for}; ask again in a moment")
    }
}

/// Makes, joins or comes back to the cluster. A data folder takes its node back to its own cluster,
/// whatever it was told to join, and a new node joins the first that answers: so all are compared before
/// anything is done.
pub(crate) async fn enter(
    config: &Config,
    links: &Arc<DirectoryLinks>,
    directory: &Directory,
    liveness: &Handle,
) -> Result<Life, StartError> {
    same_cluster(config, links, directory.cluster_of_folder()).await?;
    let directory = directory.clone();
    let life = liveness.spawn(async move { directory.start().await }).await;
    let life = life.map_err(|error| StartError::Runtime(error.into()))?;
    life.map_err(|error| start::start_error(config, error))
}

/// If the nodes that are to be joined, or the data folder, are of two clusters, somebody has mixed up folders
/// or addresses. Who does not answer now is not compared.
async fn same_cluster(
    config: &Config,
    links: &Arc<DirectoryLinks>,
    folder: Option<ClusterId>,
) -> Result<(), StartError> {
    let ask = |address: &Endpoint| {
        let (links, address) = (links.clone(), address.to_string());
        tokio::spawn(async move { links.cluster_at(&address).await })
    };
    let asked: Vec<_> = config.join.iter().map(ask).collect();
    let mut first: Option<(&Endpoint, ClusterId)> = None;
    for (address, answer) in config.join.iter().zip(asked) {
        let Ok(answer) = answer.await else {
            continue;
        };
        let Some(theirs) = answer.map_err(|reason| StartError::Denied { reason })? else {
            continue;
        };
        let ours = folder.filter(|ours| *ours != theirs);
        if let Some(ours) = ours {
            return Err(StartError::Join {
                addresses: address.to_string(),
                reason: DirectoryError::OtherCluster { ours, theirs },
            });
        }
        let (other, other_cluster) = *first.get_or_insert((address, theirs));
        if other_cluster != theirs {
            return Err(StartError::TwoClusters {
                nodes: [other, address].map(Endpoint::to_string),
                clusters: [other_cluster, theirs],
            });
        }
    }
    Ok(())
}
