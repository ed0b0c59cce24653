//! Raft's own end: a data folder that cannot be written any more, or that was removed, or a fault of its core.
//!
//! A voter whose file has no name any more loses its vote with its process, and could vote again in the same term.
//!
//! A node whose Raft has ended answers no request to the directory and receives no new map. It must not
//! stay up for all others and of no use: its process ends ([`crate::Directory::over`]), so that its
//! supervisor starts it again.

use std::sync::Arc;
use std::time::Duration;

use openraft::error::Fatal;

use crate::directory::Inner;
use crate::error::DirectoryError;
use crate::store::Store;
use crate::types::Raft;

/// The time between two looks at the data folder.
const LOOK: Duration = Duration::from_secs(1);

/// Waits until Raft ends by itself, and then reports that this life is over, with the reason.
pub(crate) async fn run(inner: Arc<Inner>) {
    let Some(core) = inner.core.get() else { return };
    let ended = tokio::select! {
        ended = ended(&core.raft) => ended,
        removed = removed(&inner.store) => Some(removed),
    };
    let Some(reason) = ended else {
        return;
    };
    inner.end_life(DirectoryError::NotRunning {
        reason: format!("{reason}; look at the disk of the data folder, then start the node again"),
    });
}

/// Waits until the store's file is removed, or another has its name.
async fn removed(store: &Store) -> String {
    let Some(file) = store.file.clone() else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(LOOK).await;
        let looked = file.clone();
        let gone = tokio::task::spawn_blocking(move || looked.is_gone()).await;
        if gone.unwrap_or(false) {
            let path = file.path.display();
            return format!(
                "{path} was removed or replaced under the running node, and what it votes would be forgotten"
            );
        }
    }
}

/// The reason for its end; `None` if it was asked to.
async fn ended(raft: &Raft) -> Option<String> {
    let mut metrics = raft.metrics();
    loop {
        let state = metrics.borrow_and_update().running_state.clone();
        match state {
            Err(Fatal::Stopped) => return None,
            Err(fatal) => return Some(format!("its Raft has failed: {fatal}")),
            Ok(()) => {}
        }
        // The sender gives the reason for its end, unless it panics.
        if metrics.changed().await.is_err() && metrics.borrow().running_state.is_ok() {
            return Some("its Raft has panicked".to_owned());
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use bytes::Bytes;
    use staves_model::testing::node_facts;
    use staves_model::{Change, NodeId};

    use super::*;
    use crate::Directory;
    use crate::options::Options;
    use crate::transport::{CallFuture, Transport, TransportError};
    use crate::types::Proposal;

    /// A network without other nodes.
    pub(crate) struct Alone;

    impl Transport for Alone {
        fn call(&self, _: Option<NodeId>, addr: &str, _: Bytes, _: Duration) -> CallFuture {
            let (addr, reason) = (addr.to_owned(), "nobody listens".to_owned());
            Box::pin(async move { Err(TransportError::Refused { addr, reason }) })
        }
    }

    async fn alone() -> Directory {
        alone_with(|_| {}).await
    }

    pub(crate) fn options() -> Options {
        Options::new(node_facts("a", 1))
    }

    /// A directory of one node, in memory.
    pub(crate) async fn alone_with(change: impl FnOnce(&mut Options)) -> Directory {
        let mut options = options();
        change(&mut options);
        let directory = Directory::open(options, Arc::new(Alone)).expect("in memory");
        directory.start().await.expect("it founds a cluster");
        directory
    }

    /// Regression: a node whose disk was full stayed up, led nothing, and its clients waited.
    #[tokio::test]
    async fn a_store_that_cannot_be_written_ends_the_node_and_says_why() {
        let directory = alone().await;
        let mut over = directory.over();
        assert!(over.borrow().is_none());
        // Whatever is written from here on fails.
        directory.inner.store.close().await;
        let change = Change::Drain {
            node: NodeId(1),
            on: true,
        };
        let proposed = directory
            .propose(Proposal::unconditional(change), Duration::from_secs(20))
            .await;
        // It may have been made: whoever took it for refused would make it again.
        let uncertain = matches!(proposed, Err(DirectoryError::Unknown { .. }));
        assert!(uncertain, "{proposed:?}");
        let told = tokio::time::timeout(Duration::from_secs(20), over.wait_for(Option::is_some));
        let why = told.await.expect("in time").expect("it is there").clone();
        let text = why.map(|why| why.to_string()).unwrap_or_default();
        assert!(text.contains("the directory's store is closed"), "{text}");
        assert!(text.contains("start the node again"), "{text}");
    }

    /// Regression: a voter whose data folder was removed went on voting, into a file without a name.
    #[tokio::test]
    async fn a_data_folder_that_is_removed_ends_the_node_and_says_why() {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("data");
        let directory = alone_with(|options| options.data_dir = Some(data.clone())).await;
        let mut over = directory.over();
        std::fs::remove_dir_all(&data).expect("removed");
        let told = tokio::time::timeout(Duration::from_secs(20), over.wait_for(Option::is_some));
        let why = told.await.expect("in time").expect("it is there").clone();
        let text = why.map(|why| why.to_string()).unwrap_or_default();
        assert!(text.contains("was removed or replaced"), "{text}");
        directory.stop().await;
    }

    #[tokio::test]
    async fn one_that_is_asked_to_stop_is_no_failure() {
        let directory = alone().await;
        let inner = directory.inner.clone();
        let raft = &inner.core.get().expect("it runs").raft;
        raft.shutdown().await.expect("it stops");
        assert_eq!(ended(raft).await, None);
        directory.stop().await;
        assert!(directory.over().borrow().is_none());
    }
}
