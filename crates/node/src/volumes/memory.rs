//! The memory for a request on a volume.

use std::sync::Arc;
use std::time::Duration;

use staves_net::{InFlight, InFlightPart};
use tokio::time::timeout;

use super::blocks::PATIENCE;
use crate::running::Running;

/// The longest wait for memory: as long as the request itself may take.
const MEMORY_WAIT: Duration = PATIENCE;

/// Memory for so many bytes, out of what all clients of the node share; `None` if there was none for long.
pub(crate) async fn request_memory(running: &Running, bytes: usize) -> Option<InFlightPart> {
    memory_of(&running.in_flight, bytes).await
}

/// The same of any budget.
pub(crate) async fn memory_of(in_flight: &Arc<InFlight>, bytes: usize) -> Option<InFlightPart> {
    let mut part = InFlightPart::of_request(in_flight.clone());
    let found = async {
        while !part.try_set_in_turn(bytes) {
            // It gets in line; a disk has no use for an early refusal.
            part.is_refused();
            in_flight.room().await;
        }
    };
    timeout(MEMORY_WAIT, found).await.ok()?;
    part.waits_no_more();
    Some(part)
}
