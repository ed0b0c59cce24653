//! Disks of this node are added, emptied and taken out.

use std::path::PathBuf;
use std::sync::Arc;

use staves_wire::admin::{DiskAction, DiskChange};
use staves_wire::{ErrorCode, Message};

use super::Reply;
use crate::disk::NodeDiskError;
use crate::running::Running;

/// Does it on a thread that may wait for the disk. Whoever asked may have gone when it is done; it is done all the same.
pub(super) fn change(running: &Arc<Running>, ask: DiskChange, reply: Reply) {
    let me = running.host.life.node;
    if ask.node != me {
        let text = format!("this is node {me}: ask node {} about its disks", ask.node);
        return reply.error(ErrorCode::Refused, text);
    }
    let host = running.host.clone();
    tokio::task::spawn_blocking(move || {
        let folder = PathBuf::from(&ask.folder);
        let done = match ask.action {
            DiskAction::Add(bytes) => host.add_disk(folder, bytes),
            DiskAction::Drain => host.disks().drain(&folder, true),
            DiskAction::Resume => host.disks().drain(&folder, false),
            DiskAction::Remove => host.disks().take_out(&folder),
        };
        match done {
            Ok(()) => reply.send(&Message::Done),
            Err(error @ NodeDiskError::Unknown { .. }) => {
                reply.error(ErrorCode::NotFound, error.to_string());
            }
            Err(error) => reply.error(ErrorCode::Refused, error.to_string()),
        }
    });
}
