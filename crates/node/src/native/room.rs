//! Waits for room beside the answers that nobody has taken yet: one may be as large as thousands of values.

use std::time::{Duration, Instant};

use staves_net::Reply;
use staves_wire::hello::Role;

use super::time_left;
use crate::gate::WaitingPlace;
use crate::running::Running;

/// Longest that room is waited for, and the time between two looks.
const ROOM_WAIT: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
pub(super) const NO_ROOM: &str =
    "the memory for answers is taken by those that other connections have not taken yet; ask again";

/// A tool's answer only waits while the others have overrun their room: clients that take no answers keep nobody from looking what is
/// wrong.
pub(super) fn goes_ahead(role: Role) -> bool {
    role == Role::Admin
}

/// An answer's wait, which is not in memory meanwhile.
pub(super) struct RoomWait {
    until: Instant,
    /// One of a bounded number, with those who wait for a newer map.
    _place: WaitingPlace,
}

impl RoomWait {
    /// `None` if too many wait already.
    pub(super) fn begin(running: &Running, reply: &Reply) -> Option<RoomWait> {
        let place = running.maps.waiting.take()?;
        Some(RoomWait::at(place, reply))
    }

    /// Of whoever has a place.
    pub(super) fn at(place: WaitingPlace, reply: &Reply) -> RoomWait {
        RoomWait {
            until: Instant::now() + time_left(reply).min(ROOM_WAIT),
            _place: place,
        }
    }

    /// Waits until so many bytes may be sent. False if they may not in time, or nobody is there to hear them.
    pub(super) async fn room(&self, reply: &Reply, bytes: usize) -> bool {
        while !reply.may_queue(bytes) {
            if Instant::now() >= self.until || reply.is_gone() {
                return false;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        true
    }
}
