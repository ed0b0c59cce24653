//! Reading from a client.

use std::io;

use bytes::{BufMut, BytesMut};
use staves_net::OWN_BYTES;
use staves_resp::Parser;
use tokio::io::AsyncReadExt;
use tokio::net::tcp::ReadHalf;

use super::Executor;

/// Room for one read.
pub(in crate::door) const READ_BYTES: usize = 16 << 10;

/// Reads what there is, so many bytes at most: the parser knows how much a large value still lacks.
pub(super) async fn read(
    reading: &mut ReadHalf<'_>,
    input: &mut BytesMut,
    parser: &Parser,
    bytes: usize,
) -> io::Result<usize> {
    let wanted = parser.wanted(input.len()).min(1 << 20);
    let most = wanted.max(bytes);
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
