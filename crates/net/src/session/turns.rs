//! The turns of a session: when it reads on, and when what it has read is at an end.

use std::sync::atomic::Ordering;

use staves_wire::frame::Incoming;
use staves_wire::hello::Role;
use tokio::net::tcp::OwnedReadHalf;

use super::Session;
use super::input::Input;
use crate::in_flight::OWN_BYTES;
use crate::server::Handler;
use crate::turn::end_of_turn;

impl<H: Handler> Session<'_, H> {
    pub(super) fn is_held_back(&self, is_client: bool) -> bool {
        let options = &self.shared.options;
        let (requests_max, bytes_max) = (options.in_flight_max, options.in_flight_bytes_max);
        let full = !self.owed.is_below(requests_max, bytes_max) || self.outbox.is_full();
        let short = || !options.in_flight.has_room() && self.held_bytes() > OWN_BYTES;
        full || is_client && short()
    }

    /// Waits for what holds it back.
    pub(super) async fn pushes_back(&self, is_client: bool) {
        let options = &self.shared.options;
        self.owed
            .wait_below(options.in_flight_max, options.in_flight_bytes_max)
            .await;
        if self.outbox.is_full() {
            self.outbox.wait_for_room().await;
        }
        while is_client && !options.in_flight.has_room() && self.held_bytes() > OWN_BYTES {
            options.in_flight.room().await;
        }
    }

    /// The next message. All that lies there is read before the turn ends.
    pub(super) async fn next(
        &self,
        socket: &mut OwnedReadHalf,
        input: &mut Input,
    ) -> Result<Option<Incoming>, String> {
        let idle_max = self.shared.options.idle_max;
        let is_client = self.peer.hello.role != Role::Node;
        if self.owes_end_of_turn() {
            tokio::select! {
                biased;
                next = input.next(socket, idle_max, is_client) => return next,
                () = std::future::ready(()) => {}
            }
            self.end_turn().await;
        }
        input.next(socket, idle_max, is_client).await
    }

    fn owes_end_of_turn(&self) -> bool {
        self.unsaid.load(Ordering::Relaxed) || self.shared.handler.owes_end_of_turn()
    }

    /// Ends the turn, if what came on this connection left anything to be sent.
    pub(super) async fn end_turn(&self) {
        if self.owes_end_of_turn() {
            end_of_turn().await;
            self.unsaid.store(false, Ordering::Relaxed);
            self.shared.handler.end_turn();
        }
    }

    fn held_bytes(&self) -> usize {
        self.owed.bytes() + self.outbox.queued_bytes()
    }
}
