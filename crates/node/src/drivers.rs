//! The tasks of a running node.

use std::sync::Arc;

use staves_files_server::Files;
use tokio::task::JoinHandle;

use crate::running::Running;
use crate::{host, leave, liveness};

impl Running {
    /// The tasks that keep it going, until they are aborted.
    pub(crate) fn drivers(self: &Arc<Self>) -> Vec<JoinHandle<()>> {
        let (host, files) = (self.host.clone(), self.files.clone());
        let directory = self.directory.clone();
        let map = directory.map();
        let (router, peers) = (host.router().clone(), host.peers.clone());
        let logs = host.logs.clone();
        let mut tasks = vec![
            tokio::spawn(crate::log::send_asks(
                router.clone(),
                peers.clone(),
                logs.clone(),
            )),
            tokio::spawn(crate::log::move_when_drained(router, peers, logs)),
            tokio::spawn(self.clone().follow_all(map)),
            tokio::spawn(leave::came_back(self.clone())),
            tokio::spawn(liveness::works(directory.clone())),
        ];
        tasks.extend(Files::drivers(files, directory.clone()));
        tasks.extend(host::drivers(host, directory));
        tasks
    }
}
