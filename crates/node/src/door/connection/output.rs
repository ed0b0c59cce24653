//! The end of a connection's turn: what its batch has made leaves.

use std::io;
use std::sync::atomic::Ordering;

use bytes::Buf;
use staves_net::end_of_turn;
use tokio::net::tcp::WriteHalf;

use super::Executor;

impl Executor {
    /// The turn ends: what all batches of it have made goes to the copies in one go, and then the answers leave.
    pub(super) async fn end_of_turn(&mut self) {
        if self.owes_end_of_turn || !self.output.is_empty() {
            // Others have their turn in between: what waits here counts by then.
            self.waits.set(self.places.len());
            end_of_turn().await;
        }
        if std::mem::take(&mut self.owes_end_of_turn) {
            self.running.host.end_turn();
        }
    }

    /// Writes what the kernel takes. Its bytes.
    pub(super) fn write(&mut self, writing: &WriteHalf<'_>) -> io::Result<u64> {
        let mut written = 0;
        while !self.output.is_empty() {
            let mut slices = [io::IoSlice::new(&[]); 16];
            let count = self.output.chunks_vectored(&mut slices);
            // One piece, as nearly always, costs less by itself than in a list.
            let taken = match &slices[..count] {
                [one] => writing.try_write(one),
                several => writing.try_write_vectored(several),
            };
            match taken {
                Ok(count) => {
                    self.output.advance(count);
                    written += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if written > 0 {
            self.part.moved(written as usize);
            let door = &self.running.door;
            door.written_bytes_total
                .fetch_add(written, Ordering::Relaxed);
        }
        Ok(written)
    }
}
