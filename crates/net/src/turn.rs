//! The end of a worker's turn: what many tasks of one thread have to say leaves together.
//!
//! A thread that has much to do polls one task after the other before it looks what has come since. What each of them made for
//! other nodes, and for clients, could leave as soon as it is there: in a system call, a frame and a waking of its own.
//! So a task that has done its work says [`end_of_turn`] first, and only then sends: by then the others of this turn have done
//! theirs, and the first of them that goes on sends for all.
//!
//! The runtime ends a turn when no task is left that could run, or after as many as it polls between two looks at its sockets
//! (its `event_interval`). So nobody waits for long, and a thread with one task to run not at all: the first to end its
//! work after the thread has rested goes on at once, and the thread says when it rests ([`thread_rests`]).

use std::cell::Cell;

thread_local! {
    /// Nothing was done on this thread since it last waited for work.
    static RESTED: Cell<bool> = const { Cell::new(false) };
}

/// Waits until the other tasks of this thread's turn have done their work, if there may be any.
pub async fn end_of_turn() {
    if !RESTED.replace(false) {
        tokio::task::yield_now().await;
    }
}

/// This thread has nothing to do: for the runtime's `on_thread_park`.
pub fn thread_rests() {
    RESTED.set(true);
}
