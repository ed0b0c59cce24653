//! Flushes of buckets, put off to the end of a worker's turn.
//!
//! A batch of one connection touches nearly as many buckets as it has keys. Sent at its end, each bucket's deltas would be a message,
//! an acknowledgement and a step of their own, and each batch a write. At the end of the turn a bucket sends once for all batches of it,
//! and each node gets one write. Whoever puts something off awaits [`staves_net::end_of_turn`] and calls
//! [`Host::end_turn`](super::Host::end_turn); the ticker does so, too.

use parking_lot::Mutex;

/// The places that want a flush. A bucket's is in it once, unless the bucket had a step of its own in between.
#[derive(Debug)]
pub(super) struct PutOff<T>(Mutex<Vec<T>>);

impl<T> Default for PutOff<T> {
    fn default() -> PutOff<T> {
        PutOff(Mutex::default())
    }
}

impl<T> PutOff<T> {
    /// Takes over what was touched. False if there is nothing.
    pub(super) fn add(&self, touched: &mut Vec<T>) -> bool {
        let any = !touched.is_empty();
        if any {
            self.0.lock().append(touched);
        }
        any
    }

    /// True if nothing waits for the end of a turn.
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Takes out all.
    pub(super) fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.0.lock())
    }
}

#[cfg(test)]
mod tests;
