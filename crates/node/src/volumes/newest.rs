//! The map by which a volume is opened.

use std::sync::Arc;
use std::time::Duration;

use staves_model::ClusterMap;

use crate::running::Running;

/// The pause before another look whether the node goes by the newest map.
const MAP_AGAIN: Duration = Duration::from_millis(2);

/// The map that this node goes by, once that is as new as the directory's: a volume that it is known to have can be opened.
pub(crate) async fn newest_map(running: &Running) -> Arc<ClusterMap> {
    let revision = running.directory.map().borrow().revision;
    loop {
        let map = running.host.routes().map.clone();
        if map.revision >= revision {
            return map;
        }
        tokio::time::sleep(MAP_AGAIN).await;
    }
}
