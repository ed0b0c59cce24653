//! The bytes that all request tables of this process take together.
//!
//! Each table has bounds of its own, which are a function of its stream alone. A node has very many tables, and clients that never say
//! which answers they have can fill all of them: so there is a bound on the sum. Where it is reached, each table that is written to
//! keeps to an equal share of it. Members then differ in what they remember; each is right by itself, as what a table has forgotten lies
//! below its floors.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes of a table are told in steps of so many bytes: most writes change nothing that others look at.
const STEP: usize = 4096;
/// No table's share is less.
const SHARE_MIN: usize = 4 * STEP;

static OF_PROCESS: AllTables = AllTables::new();

/// The sums over some tables.
#[derive(Debug)]
pub(crate) struct AllTables {
    bytes: AtomicUsize,
    /// Tables that hold some.
    tables: AtomicUsize,
    bytes_max: AtomicUsize,
}

impl AllTables {
    const fn new() -> AllTables {
        AllTables {
            bytes: AtomicUsize::new(0),
            tables: AtomicUsize::new(0),
            bytes_max: AtomicUsize::new(usize::MAX),
        }
    }
}

/// Bounds what the request tables of this process take: to so many bytes, and to twice as many while there are tables that were
/// filled before and are not written to now. Until it is called there is no bound.
pub fn bound_request_tables(bytes: usize) {
    let bytes = bytes.max(SHARE_MIN);
    OF_PROCESS.bytes_max.store(bytes, Ordering::Relaxed);
}

/// Bytes that the request tables of this process take, about.
pub fn request_table_bytes() -> usize {
    OF_PROCESS.bytes.load(Ordering::Relaxed)
}

/// One table's part, which goes with it.
#[derive(Debug)]
pub(crate) struct RememberedBytes {
    of: &'static AllTables,
    bytes: usize,
}

impl Default for RememberedBytes {
    fn default() -> RememberedBytes {
        RememberedBytes {
            of: &OF_PROCESS,
            bytes: 0,
        }
    }
}

impl RememberedBytes {
    /// It takes so many bytes now.
    #[inline]
    pub(crate) fn set(&mut self, bytes: usize) {
        let steps = bytes.div_ceil(STEP) * STEP;
        if steps != self.bytes {
            self.change(steps);
        }
    }

    fn change(&mut self, to: usize) {
        let (of, before) = (self.of, std::mem::replace(&mut self.bytes, to));
        match to > before {
            true => of.bytes.fetch_add(to - before, Ordering::Relaxed),
            false => of.bytes.fetch_sub(before - to, Ordering::Relaxed),
        };
        match (before, to) {
            (0, _) => of.tables.fetch_add(1, Ordering::Relaxed),
            (_, 0) => of.tables.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
    }

    /// The most bytes for this table at present.
    #[inline]
    pub(crate) fn share(&self) -> usize {
        let bytes_max = self.of.bytes_max.load(Ordering::Relaxed);
        match self.of.bytes.load(Ordering::Relaxed) > bytes_max {
            true => (bytes_max / self.of.tables.load(Ordering::Relaxed).max(1)).max(SHARE_MIN),
            false => usize::MAX,
        }
    }
}

impl Clone for RememberedBytes {
    fn clone(&self) -> RememberedBytes {
        let mut other = RememberedBytes {
            of: self.of,
            bytes: 0,
        };
        other.set(self.bytes);
        other
    }
}

impl Drop for RememberedBytes {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
impl RememberedBytes {
    /// Parts of tables that are bounded by themselves.
    pub(crate) fn bounded(bytes_max: usize) -> RememberedBytes {
        let of = Box::leak(Box::new(AllTables::new()));
        of.bytes_max.store(bytes_max, Ordering::Relaxed);
        RememberedBytes { of, bytes: 0 }
    }

    pub(crate) fn of_all(&self) -> (usize, usize) {
        let (bytes, tables) = (&self.of.bytes, &self.of.tables);
        (
            bytes.load(Ordering::Relaxed),
            tables.load(Ordering::Relaxed),
        )
    }
}
