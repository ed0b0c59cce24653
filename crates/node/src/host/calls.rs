//! Members' calls to the directory, on their way there.
//!
//! A member says it again with every tick until the map shows it, so nothing is kept that is not under
//! way, and one call of a kind for a group is enough.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use staves_directory::Directory;
use staves_model::{DirectoryCall, GroupId, MemberSlot};
use tokio::sync::{Notify, Semaphore};

/// Most calls under way at a time.
const UNDER_WAY_MAX: usize = 64;
/// Longest time of one call; the member makes it again.
const PATIENCE: Duration = Duration::from_millis(1500);

/// A group, which of the three calls, and of whom: a node may hold two members of a group.
type CallKey = (GroupId, u8, MemberSlot);

/// Calls that are to be made, or are being made.
#[derive(Default)]
pub(crate) struct Calls {
    state: Mutex<CallState>,
    wake: Notify,
}

#[derive(Default)]
struct CallState {
    /// At most four for each group: a node holds at most two members of it, and one leads.
    waiting: BTreeMap<CallKey, DirectoryCall>,
    under_way: BTreeMap<CallKey, DirectoryCall>,
}

impl Calls {
    /// Takes a call, unless it is being made already.
    pub(crate) fn put(&self, call: DirectoryCall) {
        let key = key(&call);
        let mut state = self.state.lock();
        if state.under_way.get(&key) != Some(&call) {
            state.waiting.insert(key, call);
            drop(state);
            self.wake.notify_one();
        }
    }

    fn next(&self) -> Option<DirectoryCall> {
        let mut state = self.state.lock();
        let CallState { waiting, under_way } = &mut *state;
        let free = waiting.keys().find(|key| !under_way.contains_key(key));
        let key = *free?;
        let call = waiting.remove(&key)?;
        under_way.insert(key, call.clone());
        Some(call)
    }

    fn done(&self, call: &DirectoryCall) {
        self.state.lock().under_way.remove(&key(call));
        self.wake.notify_one();
    }
}

fn key(call: &DirectoryCall) -> CallKey {
    match call {
        DirectoryCall::Open { group, .. } => (*group, 0, MemberSlot(0)),
        DirectoryCall::Complete { group, slot, .. } => (*group, 1, *slot),
        DirectoryCall::Stuck { group, .. } => (*group, 2, MemberSlot(0)),
    }
}

/// Makes calls as they come.
pub(crate) async fn run(calls: Arc<Calls>, directory: Directory) {
    let room = Arc::new(Semaphore::new(UNDER_WAY_MAX));
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else {
            return;
        };
        let call = loop {
            match calls.next() {
                Some(call) => break call,
                None => calls.wake.notified().await,
            }
        };
        let (calls, directory) = (calls.clone(), directory.clone());
        tokio::spawn(async move {
            if let Err(error) = directory.call(call.clone(), PATIENCE).await {
                tracing::debug!(?call, %error, "the directory did not do it yet");
            }
            calls.done(&call);
            drop(permit);
        });
    }
}
