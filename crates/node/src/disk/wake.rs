//! The rest of the thread that saves pages.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Ends the thread's rest.
#[derive(Default)]
pub(crate) struct SaverWake {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl SaverWake {
    pub(crate) fn wake(&self) {
        *self.woken.lock() = true;
        self.changed.notify_all();
    }

    pub(crate) fn rest(&self, longest: Duration) {
        let mut woken = self.woken.lock();
        if !*woken {
            self.changed.wait_for(&mut woken, longest);
        }
        *woken = false;
    }
}
