//! The pages of a disk, as a member of a group that has let go of them reads them again.

use std::sync::Arc;

use staves_durable::read_kept;
use staves_model::{Epoch, GroupId, Label};
use staves_store::{KeptOn, PageKeeper, Unread};

use super::NodeDisk;

/// The pages of one group.
struct GroupPages {
    disk: Arc<NodeDisk>,
    group: GroupId,
}

impl std::fmt::Debug for GroupPages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GroupPages({})", self.group)
    }
}

impl NodeDisk {
    /// The pages of a group, for its member.
    pub(crate) fn kept_on(self: &Arc<Self>, group: GroupId) -> KeptOn {
        let disk = self.clone();
        KeptOn {
            keeper: Arc::new(GroupPages { disk, group }),
            residency: self.residency.clone(),
        }
    }
}

impl PageKeeper for GroupPages {
    fn keeps(&self, page: u32, join: Epoch, labels: &[Label]) -> bool {
        self.disk.store.lock().keeps(self.group, page, join, labels)
    }

    fn read(&self, page: u32, join: Epoch, into: &mut [u8]) -> Result<(), Unread> {
        let locate = || self.disk.store.lock().locate(self.group, page, join);
        read_kept(locate, &self.disk.pages, into)
    }

    fn read_now(&self, page: u32, join: Epoch, into: &mut [u8]) -> bool {
        let located = self.disk.store.lock().locate(self.group, page, join);
        // One that was written anew meanwhile looks damaged.
        located.is_some_and(|located| located.read_now(&self.disk.pages, into))
    }

    fn lost(&self, page: u32, why: Unread) {
        self.disk.lose(self.group, page, why)
    }
}
