//! The driver of [`ElectionBackoff`]: holds this node's candidacies back, as long as Raft runs.
//!
//! A leader that leaves asks its heir to stand at once (`leadership_transfer`), whatever the heir's delay.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::Rng;
use staves_model::{ElectionBackoff, Time};

use crate::directory::Inner;

/// Time between two looks at the silence of the leader, while there is a delay.
const LOOK: Duration = Duration::from_millis(25);

/// Runs until Raft ends.
pub(crate) async fn run(inner: Arc<Inner>) {
    let Some(core) = inner.core.get() else { return };
    let mut metrics = core.raft.metrics();
    let term = metrics.borrow_and_update().current_term;
    let mut backoff = ElectionBackoff::new(inner.now(), term);
    loop {
        let term = metrics.borrow_and_update().current_term;
        let jitter = rand::rng().random_range(0..500);
        backoff.see(inner.now(), term, jitter);
        let heard = Time(inner.leader_heard.load(Ordering::Relaxed));
        core.raft
            .runtime_config()
            .elect(backoff.may_stand(inner.now(), heard));
        if backoff.min_silence().is_zero() {
            if metrics.changed().await.is_err() {
                return;
            }
        } else {
            tokio::time::sleep(LOOK).await;
            if metrics.has_changed().is_err() {
                return;
            }
        }
    }
}
