//! Raft's own end: a data folder that cannot be written any more, or a fault of its core.
//!
//! A node whose Raft has ended answers no request to the directory and receives no new map. It must not
//! stay up for all others and of no use: its process ends ([`crate::Directory::over`]), so that its
//! supervisor starts it again.

use std::sync::Arc;

use openraft::error::Fatal;

use crate::directory::Inner;
use crate::error::DirectoryError;
use crate::types::Raft;

/// Waits until Raft ends by itself, and then reports that this life is over, with the reason.
pub(crate) async fn run(inner: Arc<Inner>) {
    let Some(core) = inner.core.get() else { return };
    let Some(reason) = ended(&core.raft).await else {
        return;
    };
    inner.end_life(DirectoryError::NotRunning {
        reason: format!("{reason}; look at the disk of the data folder, then start the node again"),
    });
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
    use std::time::Duration;

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
