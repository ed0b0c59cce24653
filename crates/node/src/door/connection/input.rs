//! Reading from a client.

use std::io;

use bytes::{BufMut, BytesMut};
use staves_net::{InFlight, OWN_BYTES};
use staves_resp::Parser;
use tokio::io::AsyncReadExt;
use tokio::net::tcp::ReadHalf;

use super::Executor;

/// Least bytes of one read.
const READ_LEAST: usize = 512;
/// Room for one read.
const READ_BYTES: usize = 16 << 10;

/// Reads what there is, as far as there is memory for it: the parser knows how much a large value still lacks.
pub(super) async fn read(
    reading: &mut ReadHalf<'_>,
    input: &mut BytesMut,
    parser: &Parser,
    in_flight: &InFlight,
) -> io::Result<usize> {
    // Others may have taken the memory while nothing came.
    reading.readable().await?;
    let wanted = parser.wanted(input.len()).min(1 << 20);
    let most = match in_flight.has_room() || input.is_empty() {
        true => wanted.max(in_flight.read_bytes(READ_BYTES)),
        // To the end of what has begun, and hardly further.
        false => wanted.max(READ_LEAST),
    };
    // What has come of a command stays where it is while there is some room behind it.
    let room = input.capacity() - input.len();
    if input.is_empty() || room < wanted.max(OWN_BYTES) {
        input.reserve(most);
    }
    reading.read_buf(&mut input.limit(most)).await
}

impl Executor {
    /// True if more may be read now, for which there is room or not.
    pub(super) fn may_read(&self, has_room: bool) -> bool {
        has_room && !self.unread && !self.turn.is_awaited()
    }
}
