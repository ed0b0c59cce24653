//! What is fetched ahead of a program that reads in order.

use std::collections::VecDeque;

use bytes::Bytes;
use parking_lot::Mutex;
use staves_client::{Dataset, OpenFile};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Bytes that are fetched at a time.
const PIECE: u64 = 1 << 20;
/// Most pieces of a file, on their way or waiting to be read.
const PIECES_MAX: usize = 16;

/// One file's pieces, in order.
#[derive(Default)]
pub struct Ahead {
    pieces: Mutex<VecDeque<Piece>>,
}

struct Piece {
    from: u64,
    end: u64,
    bytes: Come,
}

enum Come {
    Not(JoinHandle<Option<Bytes>>),
    Yes(Bytes),
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Come::Not(task) = &self.bytes {
            task.abort();
        }
    }
}

impl Ahead {
    /// Fetches what is not on its way yet. What lies in a node's memory on this machine needs no fetching.
    pub fn fetch(
        &self,
        runtime: &Handle,
        data: &Dataset,
        file: &OpenFile,
        offset: u64,
        bytes: u64,
    ) {
        let end = offset.saturating_add(bytes).min(file.size());
        let mut pieces = self.pieces.lock();
        let mut from = offset / PIECE * PIECE;
        while from < end && pieces.len() < PIECES_MAX {
            let to = (from + PIECE).min(file.size());
            let known = pieces.iter().any(|p| p.from == from);
            if !known && !data.read_here(file, from, &mut [0]) {
                let (data, file) = (data.clone(), file.clone());
                let task = runtime.spawn(async move {
                    let bytes = data.read_at(&file, from, (to - from) as usize).await;
                    bytes.ok().filter(|bytes| bytes.len() as u64 == to - from)
                });
                pieces.push_back(Piece {
                    from,
                    end: to,
                    bytes: Come::Not(task),
                });
            }
            from = to.max(from + 1);
        }
    }

    /// Bytes that were fetched ahead, waited for if they are on their way. What lies before them is not kept.
    pub async fn take(&self, from: u64, len: usize) -> Option<Bytes> {
        let end = from + len as u64;
        let mut piece = {
            let mut pieces = self.pieces.lock();
            pieces.retain(|p| p.end > from.saturating_sub(PIECE));
            let at = pieces.iter().position(|p| p.from <= from && end <= p.end)?;
            pieces.remove(at)?
        };
        let bytes = match &mut piece.bytes {
            Come::Yes(bytes) => bytes.clone(),
            Come::Not(task) => task.await.ok()??,
        };
        let skip = (from - piece.from) as usize;
        let found = bytes.slice(skip..skip + len);
        if end < piece.end {
            piece.bytes = Come::Yes(bytes);
            self.pieces.lock().push_front(piece);
        }
        Some(found)
    }
}
