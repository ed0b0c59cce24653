//! A page that its disk cannot give back.
//!
//! It is needed in the middle of a step that has no way to fail, under the lock of its bucket. So the step is *given up*: the thread unwinds up to that lock, where the
//! bucket is dropped with all that the step has left, as if its node had ended before the step. Nothing of it has left the process then. Where nobody stands ready
//! for that, the process ends.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use staves_model::GroupId;
use staves_store::Unread;

use super::{NodeDisk, closed};

thread_local! {
    /// Somebody up the stack stands ready for a page that is lost.
    static READY: Cell<bool> = const { Cell::new(false) };
}

/// The payload of a thread that unwinds because of a page.
struct PageLost;

/// Does something that may need a page; `None` if it was given up because the page is lost. What it had in hand is not to be used any more then.
pub(crate) fn unless_lost<R>(act: impl FnOnce() -> R) -> Option<R> {
    let before = READY.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(act));
    READY.set(before);
    match outcome {
        Ok(done) => Some(done),
        Err(why) if why.is::<PageLost>() => None,
        Err(why) => resume_unwind(why),
    }
}

impl NodeDisk {
    /// A page of a group's member is not what was written, or cannot be read. Its bucket is given up, if somebody stands ready for that; else the process ends.
    pub(super) fn lose(&self, group: GroupId, page: u32, why: Unread) {
        let why = match why {
            Unread::NotKept => "it is not there, and was".to_owned(),
            Unread::Bad(why) => why,
        };
        let why = format!("page {page} of group {group}: {why}");
        if !READY.get() {
            self.ends_process(&why);
        }
        tracing::error!(disk = %self.folder.display(), %why, "a page cannot be read");
        // Should the process end before it is mended, the next start looks.
        if let Err(error) = closed::suspect(&self.folder) {
            tracing::error!(%error, "the disk cannot be marked as one to look at");
        }
        self.lost.lock().insert(group, why);
        self.failing.notify_one();
        // Past the hook of panics, which would end the process: this is no broken assertion.
        resume_unwind(Box::new(PageLost))
    }

    /// The buckets that were given up because of a page, with the reason, until the directory is told.
    pub(crate) fn lost(&self) -> BTreeMap<GroupId, String> {
        self.lost.lock().clone()
    }

    /// True if a bucket is one of these: nobody makes it again.
    pub(crate) fn has_lost(&self, group: GroupId) -> bool {
        self.lost.lock().contains_key(&group)
    }

    /// One of them is known to the node's disks as given up.
    pub(crate) fn note_given_up(&self, group: GroupId) {
        if self.lost.lock().remove(&group).is_some() {
            self.pages_lost
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lost_page_is_caught() {
        let lost = || -> u32 { resume_unwind(Box::new(PageLost)) };
        assert_eq!(unless_lost(lost), None);
        assert!(!READY.get(), "nobody is ready behind it");
        assert_eq!(unless_lost(|| 7), Some(7));
        let other = catch_unwind(|| unless_lost(|| -> u32 { resume_unwind(Box::new(8)) }));
        assert_eq!(other.expect_err("it goes on").downcast_ref(), Some(&8));
        assert!(!READY.get());
    }
}
