//! Pages that the kernel should drop. A thread of its own notifies it: the kernel waits there for requests that are under way, so
//! a thread that answers requests would wait for itself.

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use fuser::{INodeNo, Notifier};

/// Most that waits. What comes beyond is left: pages of an old version are never read by those who open the new one, and
/// names are found again when the next file is looked up.
const WAITING_MAX: usize = 1024;

/// The pages to drop.
#[derive(Debug)]
pub enum Outdated {
    /// An inode's pages and attributes.
    Pages(u64),
    /// Names in folders.
    Names(Vec<(u64, OsString)>),
}

/// The end to put in.
#[derive(Debug)]
pub struct OutdatedQueue {
    sender: SyncSender<Outdated>,
    at_names: Arc<AtomicBool>,
}

/// The end to take out.
#[derive(Debug)]
pub struct Work {
    receiver: Receiver<Outdated>,
    at_names: Arc<AtomicBool>,
}

/// A queue.
pub fn queue() -> (OutdatedQueue, Work) {
    let (sender, receiver) = sync_channel(WAITING_MAX);
    let at_names = Arc::new(AtomicBool::new(false));
    let queue = OutdatedQueue {
        sender,
        at_names: at_names.clone(),
    };
    (queue, Work { receiver, at_names })
}

impl OutdatedQueue {
    /// Puts in, if there is room; whether there was.
    pub fn push(&self, outdated: Outdated) -> bool {
        let names = matches!(outdated, Outdated::Names(_));
        // Before it is in, for it may be done at once.
        if names {
            self.at_names.store(true, Ordering::Relaxed);
        }
        let is_in = self.sender.try_send(outdated).is_ok();
        if !is_in && names {
            self.at_names.store(false, Ordering::Relaxed);
        }
        is_in
    }

    /// Names are being let go of.
    pub fn at_names(&self) -> bool {
        self.at_names.load(Ordering::Relaxed)
    }
}

impl Work {
    /// Notifies the kernel, until all senders are gone.
    pub fn run(self, kernel: &Notifier) {
        for outdated in self.receiver {
            match outdated {
                // It may have forgotten by itself, or be gone: nothing to do about that.
                Outdated::Pages(inode) => drop(kernel.inval_inode(INodeNo(inode), 0, 0)),
                Outdated::Names(names) => {
                    for (folder, name) in names {
                        let _ = kernel.inval_entry(INodeNo(folder), &name);
                    }
                    self.at_names.store(false, Ordering::Relaxed);
                }
            }
        }
    }
}
