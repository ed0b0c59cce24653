//! The requests that units make of sequencers, on their way to whoever sends them.

use std::collections::VecDeque;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::task::Waker;

use crate::message::SequencerRequest;
use crate::types::SequencerId;

/// Most requests that wait; the oldest goes first, as requests may be lost.
const ASKS_MAX: usize = 1024;

/// The requests of one unit, ready to be sent. The unit adds, the node takes.
#[derive(Default, Debug)]
pub struct AskQueue {
    asks: Mutex<VecDeque<(SequencerId, SequencerRequest)>>,
    sender: OnceLock<Waker>,
}

impl AskQueue {
    pub(super) fn push(&self, to: SequencerId, request: SequencerRequest) {
        let mut all = self.asks.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() == ASKS_MAX {
            all.pop_front();
        }
        all.push_back((to, request));
        drop(all);
        if let Some(sender) = self.sender.get() {
            sender.wake_by_ref();
        }
    }

    /// Has whoever sends them be woken for each. The first one stays.
    pub fn wakes(&self, sender: Waker) {
        let _first = self.sender.set(sender);
    }

    /// All of them.
    pub fn take(&self) -> Vec<(SequencerId, SequencerRequest)> {
        let mut all = self.asks.lock().unwrap_or_else(PoisonError::into_inner);
        all.drain(..).collect()
    }
}
