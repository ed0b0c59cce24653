//! Readahead for programs that read in order.
//!
//! Each piece has a task that fetches it, and then waits to be read; several threads may wait for one, or read it. All open files
//! share one room, a place for each piece: who finds none is not read ahead for. A piece goes, and its place
//! is free again, once all of it was read, its reader is elsewhere, or nobody has read any of the file's for a while.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use staves_client::SourceError;
use staves_node::config::Size;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::AbortHandle;

/// Bytes that are fetched at a time.
const PIECE: u64 = 1 << 20;
/// Most pieces of a file, on their way or waiting to be read.
const PIECES_MAX: usize = 16;
/// The readahead of all files together, as a multiple of that of one.
const FILES: u64 = 8;
/// Pieces that nobody reads for so long are let go.
const IDLE: Duration = Duration::from_secs(5);

/// More is a slip: it would be evicted again before anybody reads it.
const WANTED_MAX: Size = Size(1 << 30);

/// A size of `--read-ahead`.
pub fn wanted(text: &str) -> Result<Size, String> {
    let size: Size = text.parse()?;
    match size <= WANTED_MAX {
        true => Ok(size),
        false => Err(format!(
            "{size} is too much to fetch ahead of one reader: {WANTED_MAX} at most"
        )),
    }
}

/// The readahead budget of all files of a mount. Clones share it.
#[derive(Clone)]
pub struct AheadBudget {
    places: Arc<Semaphore>,
    /// The distance that a piece may lie ahead of its reader.
    reach: u64,
    idle: Duration,
}

impl AheadBudget {
    /// For files that are each read so far ahead.
    pub fn new(read_ahead_bytes: u64) -> AheadBudget {
        let all = read_ahead_bytes.saturating_mul(FILES).div_ceil(PIECE);
        let places = usize::try_from(all).map_or(Semaphore::MAX_PERMITS, |all| {
            all.min(Semaphore::MAX_PERMITS)
        });
        AheadBudget {
            places: Arc::new(Semaphore::new(places)),
            reach: read_ahead_bytes.saturating_add(2 * PIECE),
            idle: IDLE,
        }
    }

    /// Nothing is fetched yet for a file that is opened.
    pub fn file(&self) -> Ahead {
        Ahead {
            room: self.clone(),
            pieces: Arc::new(Mutex::new(Pieces {
                all: Vec::new(),
                used: Instant::now(),
                watched: false,
            })),
        }
    }
}

/// The readahead of one open file.
pub struct Ahead {
    room: AheadBudget,
    pieces: Arc<Mutex<Pieces>>,
}

struct Pieces {
    all: Vec<Arc<AheadPiece>>,
    /// The time of the last fetch or read.
    used: Instant,
    /// A task looks whether they are used.
    watched: bool,
}

struct AheadPiece {
    range: Range<u64>,
    come: watch::Receiver<Option<Come>>,
    task: AbortHandle,
    /// Bytes that were read. Reads may overtake one another, so this is counted.
    read: Mutex<u64>,
}

type Come = Result<Arc<Got>, SourceError>;

struct Got {
    bytes: Bytes,
    _place: OwnedSemaphorePermit,
}

impl Drop for AheadPiece {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl AheadPiece {
    /// Counts bytes that were read; whether they are all now.
    fn count(&self, bytes: usize) -> bool {
        let mut read = self.read.lock();
        *read += bytes as u64;
        *read >= self.range.end - self.range.start
    }
}

impl Ahead {
    /// Fetches what is not on its way yet, as far as there is room. `here`: what lies at an offset needs no fetching.
    pub fn fetch<F>(
        &self,
        runtime: &Handle,
        range: Range<u64>,
        size: u64,
        here: impl Fn(u64) -> bool,
        get: impl Fn(Range<u64>) -> F,
    ) where
        F: Future<Output = Result<Bytes, SourceError>> + Send + 'static,
    {
        let mut pieces = self.pieces.lock();
        let starts = (range.start / PIECE * PIECE..range.end.min(size)).step_by(PIECE as usize);
        for from in starts {
            if pieces.all.len() >= PIECES_MAX {
                break;
            }
            if pieces.all.iter().any(|p| p.range.start == from) || here(from) {
                continue;
            }
            let Ok(place) = self.room.places.clone().try_acquire_owned() else {
                break;
            };
            let range = from..(from + PIECE).min(size);
            let (sender, come) = watch::channel(None);
            let getting = get(range.clone());
            let task = runtime.spawn(async move {
                let got = getting.await.map(|bytes| {
                    let _place = place;
                    Arc::new(Got { bytes, _place })
                });
                let _ = sender.send(Some(got));
            });
            pieces.used = Instant::now();
            pieces.all.push(Arc::new(AheadPiece {
                range,
                come,
                task: task.abort_handle(),
                read: Mutex::new(0),
            }));
        }
        if !pieces.all.is_empty() && !pieces.watched {
            pieces.watched = true;
            self.watch(runtime);
        }
    }

    /// Lets pieces go that nobody reads.
    fn watch(&self, runtime: &Handle) {
        let (pieces, idle) = (Arc::downgrade(&self.pieces), self.room.idle);
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(idle / 2).await;
                let Some(pieces) = pieces.upgrade() else {
                    return;
                };
                let mut pieces = pieces.lock();
                // Whoever waits for a piece has it, too.
                let awaited = pieces.all.iter().any(|p| Arc::strong_count(p) > 1);
                if pieces.used.elapsed() >= idle && !awaited {
                    pieces.all.clear();
                }
                if pieces.all.is_empty() {
                    pieces.watched = false;
                    return;
                }
            }
        });
    }

    /// Bytes at the start of a range that were fetched ahead, waited for if they are on their way. What lies behind the reader, or far
    /// from him, is let go.
    ///
    /// An error is one for whose piece was waited, and of a source that does not answer: to ask again would take as long
    /// again. After any other, what is asked for alone may be there still.
    pub async fn take(&self, range: Range<u64>) -> Option<Result<Bytes, SourceError>> {
        let piece = self.find(range.start)?;
        let mut come = piece.come.clone();
        let waited = come.borrow().is_none();
        let come = come.wait_for(Option::is_some).await;
        let come = come.ok().and_then(|come| come.clone());
        self.pieces.lock().used = Instant::now();
        let start = (range.start - piece.range.start) as usize;
        let end = (range.end.min(piece.range.end) - piece.range.start) as usize;
        match come {
            Some(Ok(got)) if end <= got.bytes.len() => {
                if piece.count(end - start) {
                    self.remove(&piece);
                }
                Some(Ok(got.bytes.slice(start..end)))
            }
            come => {
                self.remove(&piece);
                match come {
                    Some(Err(error @ SourceError::Unreachable { .. })) if waited => {
                        Some(Err(error))
                    }
                    _ => None,
                }
            }
        }
    }

    fn find(&self, from: u64) -> Option<Arc<AheadPiece>> {
        let mut pieces = self.pieces.lock();
        let near = from.saturating_sub(PIECE)..from.saturating_add(self.room.reach);
        pieces
            .all
            .retain(|p| p.range.end > near.start && p.range.start < near.end);
        let found = pieces.all.iter().find(|p| p.range.contains(&from)).cloned();
        if found.is_some() {
            pieces.used = Instant::now();
        }
        found
    }

    fn remove(&self, piece: &Arc<AheadPiece>) {
        let mut pieces = self.pieces.lock();
        pieces.all.retain(|p| !Arc::ptr_eq(p, piece));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const SIZE: u64 = 1 << 40;
    const KIB: u64 = 1 << 10;

    fn bytes_of(range: &Range<u64>) -> Bytes {
        range.clone().map(|at| (at / 7 % 251) as u8).collect()
    }

    /// A source that answers when it may, and how often it was asked.
    #[derive(Clone)]
    struct Asked {
        may: Arc<Semaphore>,
        times: Arc<AtomicUsize>,
    }

    impl Asked {
        fn new() -> Asked {
            Asked {
                may: Arc::new(Semaphore::new(0)),
                times: Arc::default(),
            }
        }

        fn times(&self) -> usize {
            self.times.load(Ordering::Relaxed)
        }

        fn fetch(&self, ahead: &Ahead, range: Range<u64>) {
            let get = |range: Range<u64>| {
                let asked = self.clone();
                async move {
                    asked.times.fetch_add(1, Ordering::Relaxed);
                    let _ = asked.may.acquire().await;
                    Ok(bytes_of(&range))
                }
            };
            ahead.fetch(&Handle::current(), range, SIZE, |_| false, get);
        }

        fn answer(&self) {
            self.may.close();
        }
    }

    fn free(room: &AheadBudget) -> usize {
        room.places.available_permits()
    }

    async fn until(what: &str, is: impl Fn() -> bool) {
        let since = Instant::now();
        while !is() {
            assert!(since.elapsed() < Duration::from_secs(60), "{what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn all_open_files_together_have_eight_times_what_one_is_read_ahead() {
        let room = AheadBudget::new(8 * PIECE);
        let asked = Asked::new();
        let files: Vec<Ahead> = (0..1000).map(|_| room.file()).collect();
        for file in &files {
            asked.fetch(file, 0..8 * PIECE);
        }
        assert_eq!(free(&room), 0);
        assert!(files[999].take(0..PIECE).await.is_none());
        until("as many are fetched", || asked.times() == 64).await;
        asked.answer();
        assert!(files[0].take(0..PIECE).await.is_some());
        assert_eq!(asked.times(), 64);
        drop(files);
        until("all closed", || free(&room) == 64).await;
        assert_eq!(free(&AheadBudget::new(1)), 1, "at least one piece");
    }

    #[tokio::test]
    async fn several_threads_read_one_piece_that_is_fetched_once() {
        let room = AheadBudget::new(8 * PIECE);
        let asked = Asked::new();
        let ahead = Arc::new(room.file());
        asked.fetch(&ahead, 0..2 * PIECE);
        // Out of order, and while the piece is on its way still.
        let readers = [3u64, 0, 2, 1, 7, 5, 4, 6].map(|i| {
            let (ahead, range) = (ahead.clone(), i * 128 * KIB..(i + 1) * 128 * KIB);
            tokio::spawn(async move {
                let got = ahead.take(range.clone()).await.expect("fetched").unwrap();
                assert_eq!(got, bytes_of(&range));
            })
        });
        tokio::task::yield_now().await;
        asked.answer();
        for reader in readers {
            reader.await.unwrap();
        }
        assert_eq!(asked.times(), 2);
        until("the first was read, all of it", || free(&room) == 63).await;
        // What goes on in the next piece is given as far as this one has it.
        let range = 2 * PIECE - 4096..2 * PIECE + 4096;
        let got = ahead.take(range).await.unwrap().unwrap();
        assert_eq!(got.len(), 4096);
    }

    #[tokio::test]
    async fn pieces_are_let_go_when_their_reader_is_elsewhere() {
        let room = AheadBudget::new(8 * PIECE);
        let asked = Asked::new();
        asked.answer();
        let ahead = room.file();
        let at = 1000 * PIECE;
        asked.fetch(&ahead, at..at + 8 * PIECE);
        assert!(ahead.take(0..4096).await.is_none());
        until("a jump back", || free(&room) == 64).await;
        asked.fetch(&ahead, 0..8 * PIECE);
        assert!(ahead.take(0..4096).await.is_some());
        assert!(ahead.take(at..at + 4096).await.is_none());
        until("a jump on", || free(&room) == 64).await;
    }

    #[tokio::test]
    async fn pieces_that_nobody_reads_are_let_go_and_those_of_a_slow_reader_are_not() {
        let room = AheadBudget {
            idle: Duration::from_millis(50),
            ..AheadBudget::new(8 * PIECE)
        };
        let asked = Asked::new();
        let ahead = room.file();
        for _ in 0..2 {
            asked.fetch(&ahead, 0..8 * PIECE);
            until("nobody reads", || free(&room) == 64).await;
        }
        // Nor of one who waits for a slow source.
        asked.fetch(&ahead, 0..2 * PIECE);
        let waits = ahead.take(0..4096);
        let late = async {
            tokio::time::sleep(20 * room.idle).await;
            asked.answer();
        };
        let (bytes, ()) = tokio::join!(waits, late);
        assert!(bytes.is_some_and(|bytes| bytes.is_ok()));
        assert_eq!(
            ahead.pieces.lock().all.len(),
            2,
            "what comes behind it stays"
        );
        let room = AheadBudget::new(8 * PIECE);
        let ahead = room.file();
        asked.answer();
        asked.fetch(&ahead, 0..PIECE);
        let before = ahead.pieces.lock().used;
        std::thread::sleep(Duration::from_millis(1));
        assert!(ahead.take(0..4096).await.is_some());
        assert!(ahead.pieces.lock().used > before);
    }

    #[tokio::test]
    async fn what_failed_is_not_kept_and_a_silent_source_is_waited_for_once() {
        let room = AheadBudget::new(8 * PIECE);
        let ahead = room.file();
        let silent = || SourceError::Unreachable {
            place: "it".into(),
            reason: "it is silent".into(),
        };
        let fail = |error: SourceError| {
            let get = move |_| {
                let error = error.clone();
                async move { Err(error) }
            };
            ahead.fetch(&Handle::current(), 0..PIECE, SIZE, |_| false, get);
        };
        fail(silent());
        assert_eq!(ahead.take(0..4096).await, Some(Err(silent())));
        assert_eq!(ahead.take(0..4096).await, None, "the next one asks anew");
        fail(silent());
        until("it failed", || free(&room) == 64).await;
        tokio::task::yield_now().await;
        assert_eq!(ahead.take(0..4096).await, None, "before anybody asked");
        let path = "f".to_owned();
        fail(SourceError::Changed { path });
        assert_eq!(ahead.take(0..4096).await, None, "a part may be in memory");
        until("none is kept", || free(&room) == 64).await;
    }

    #[tokio::test]
    async fn what_is_here_and_what_lies_beyond_the_end_is_not_fetched() {
        let room = AheadBudget::new(8 * PIECE);
        let ahead = room.file();
        let (here, size) = (|at| at < 2 * PIECE, 3 * PIECE + 5);
        let get = |range: Range<u64>| async move { Ok(bytes_of(&range)) };
        ahead.fetch(&Handle::current(), 0..9 * PIECE, size, here, get);
        assert_eq!(free(&room), 62);
        let end = 3 * PIECE..size;
        assert_eq!(ahead.take(end.clone()).await, Some(Ok(bytes_of(&end))));
        assert_eq!(ahead.take(0..4096).await, None);
    }
}
