//! Members' calls to the directory, on their way there.
//!
//! A member says it again with every tick until the map shows it, so nothing is kept that is not under
//! way, and one call of a kind for a group is enough. Those that come while others are under way go together.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use staves_directory::{CALLS_MAX, CallAnswer, Directory};
use staves_model::{DirectoryCall, GroupId, GroupStep, MemberSlot};
use tokio::sync::{Notify, Semaphore};

/// Most requests under way at a time: more than one, for an answer may be slow to come.
const UNDER_WAY_MAX: usize = 4;
/// Longest time of one request; members call again.
const PATIENCE: Duration = Duration::from_millis(1500);
/// The leader asks nobody to wait for longer: the map may change in the meantime.
const LATER_MAX: Duration = Duration::from_millis(1500);

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
    waiting: BTreeMap<CallKey, WaitingCall>,
    under_way: BTreeMap<CallKey, DirectoryCall>,
    /// The last that was taken: each has its turn, however often those of other groups come again.
    last: Option<CallKey>,
}

struct WaitingCall {
    call: DirectoryCall,
    /// The leader asked for this call to wait until then.
    not_before: Option<Instant>,
}

impl Calls {
    /// Takes a call, unless it is being made already.
    pub(crate) fn put(&self, call: DirectoryCall) {
        let key = key(&call);
        let mut state = self.state.lock();
        if state.under_way.get(&key) == Some(&call) {
            return;
        }
        match state.waiting.entry(key) {
            Entry::Occupied(known) if known.get().call == call => return,
            Entry::Occupied(mut known) => _ = known.insert(WaitingCall::now(call)),
            Entry::Vacant(free) => _ = free.insert(WaitingCall::now(call)),
        }
        drop(state);
        self.wake.notify_one();
    }

    /// The calls that can be made now; if there are none, the time at which there may be.
    fn next(&self, now: Instant) -> Result<Vec<DirectoryCall>, Option<Instant>> {
        let mut state = self.state.lock();
        let CallState {
            waiting,
            under_way,
            last,
        } = &mut *state;
        let (after, until) = match *last {
            Some(last) => (Excluded(last), Included(last)),
            None => (Unbounded, Excluded((GroupId(0), 0, MemberSlot(0)))),
        };
        let in_turn = waiting
            .range((after, Unbounded))
            .chain(waiting.range((Unbounded, until)));
        let due = |w: &WaitingCall| w.not_before.is_none_or(|at| at <= now);
        let free = in_turn.filter(|(key, w)| due(w) && !under_way.contains_key(key));
        let keys: Vec<CallKey> = free.map(|(key, _)| *key).take(CALLS_MAX).collect();
        if keys.is_empty() {
            return Err(waiting.values().filter_map(|w| w.not_before).min());
        }
        *last = keys.last().copied();
        let taken = keys.into_iter().filter_map(|key| {
            let call = waiting.remove(&key)?.call;
            under_way.insert(key, call.clone());
            Some(call)
        });
        Ok(taken.collect())
    }

    /// The calls of a request have these answers: as many, or none.
    fn done(&self, now: Instant, calls: Vec<DirectoryCall>, answers: &[CallAnswer]) {
        let mut state = self.state.lock();
        for (i, call) in calls.into_iter().enumerate() {
            let key = key(&call);
            state.under_way.remove(&key);
            if let Some(CallAnswer::Later { wait_ms, .. }) = answers.get(i) {
                let wait = Duration::from_millis((*wait_ms).into()).min(LATER_MAX);
                let not_before = Some(now + wait);
                // What has been put meanwhile is newer.
                let again = state.waiting.entry(key);
                again.or_insert(WaitingCall { call, not_before });
            }
        }
        drop(state);
        self.wake.notify_one();
    }
}

impl WaitingCall {
    fn now(call: DirectoryCall) -> WaitingCall {
        let not_before = None;
        WaitingCall { call, not_before }
    }
}

fn key(call: &DirectoryCall) -> CallKey {
    match call {
        DirectoryCall::Step(GroupStep::Open { group, .. }) => (*group, 0, MemberSlot(0)),
        DirectoryCall::Step(GroupStep::Complete { group, slot, .. }) => (*group, 1, *slot),
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
        let batch = loop {
            match calls.next(Instant::now()) {
                Ok(batch) => break batch,
                Err(None) => calls.wake.notified().await,
                Err(Some(at)) => {
                    let _ = tokio::time::timeout_at(at.into(), calls.wake.notified()).await;
                }
            }
        };
        let (calls, directory) = (calls.clone(), directory.clone());
        tokio::spawn(async move {
            let answers = match directory.call(batch.clone(), PATIENCE).await {
                Ok(answers) => answers,
                Err(error) => {
                    tracing::debug!(calls = batch.len(), %error, "the directory did not do it yet");
                    Vec::new()
                }
            };
            calls.done(Instant::now(), batch, &answers);
            drop(permit);
        });
    }
}

#[cfg(test)]
mod tests {
    use staves_model::Epoch;

    use super::*;

    fn open(group: u32, epoch: u64) -> DirectoryCall {
        DirectoryCall::Step(GroupStep::Open {
            group: GroupId(group),
            epoch: Epoch(epoch),
        })
    }

    #[test]
    fn calls_go_together_in_turn_and_wait_as_long_as_they_are_asked_to() {
        let (calls, now) = (Calls::default(), Instant::now());
        let many = CALLS_MAX as u32 + 10;
        (1..=many).for_each(|g| calls.put(open(g, 1)));
        let first = calls.next(now).expect("many wait");
        assert_eq!(first.len(), CALLS_MAX);
        // Being made already; and each waits for its turn, though the first come again.
        calls.put(open(1, 1));
        let rest = calls.next(now).expect("ten are left");
        assert_eq!(rest[0], open(many - 9, 1));
        assert_eq!(rest.len(), 10);
        assert_eq!(calls.next(now), Err(None));

        let wait = |ms| CallAnswer::Later {
            wait_ms: ms,
            reason: "a lease".into(),
        };
        let answers = [wait(100), wait(600_000), CallAnswer::Done];
        calls.put(open(many - 8, 2));
        calls.done(now, rest, &answers);
        // The newer epoch goes at once, the other after its time, who was answered not at all.
        assert_eq!(calls.next(now), Ok(vec![open(many - 8, 2)]));
        let later = now + Duration::from_millis(100);
        assert_eq!(calls.next(now), Err(Some(later)));
        calls.put(open(many - 9, 1));
        assert_eq!(calls.next(now), Err(Some(later)), "said again, it waits on");
        assert_eq!(calls.next(later), Ok(vec![open(many - 9, 1)]));
        // No answer: the members call again.
        calls.done(now, first, &[]);
        calls.put(open(1, 1));
        assert_eq!(calls.next(now), Ok(vec![open(1, 1)]));
    }
}
