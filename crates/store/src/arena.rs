//! The node's memory for pages: which extents of the mapping are free.

use std::os::fd::RawFd;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::extent::{Extent, MapError, Mapping};
use crate::{EXTENT_BYTES, extents_for};

/// One node's memory for pages, handed out in extents.
#[derive(Debug)]
pub struct Arena {
    mapping: Mapping,
    extents: u32,
    /// Extents that come back have no memory any more.
    sparse: bool,
    free: Mutex<Free>,
}

/// Extents that nobody owns. Each index is in exactly one of the three.
#[derive(Debug)]
struct Free {
    /// From here on never handed out, hence zero and without memory behind it.
    untouched: u32,
    /// Came back and is zero again.
    clean: Vec<u32>,
    /// Came back as its last owner left it.
    dirty: Vec<u32>,
}

impl Free {
    fn len(&self, extents: u32) -> u32 {
        extents - self.untouched + (self.clean.len() + self.dirty.len()) as u32
    }
}

impl Arena {
    /// An arena of `bytes`, rounded up to whole extents, at least one.
    pub fn new(bytes: u64) -> Result<Arc<Arena>, MapError> {
        Arena::with(bytes, false)
    }

    /// The same for pages of which few are in memory at a time: it takes what they take, page by page, and keeps nothing that comes back.
    pub fn sparse(bytes: u64) -> Result<Arc<Arena>, MapError> {
        Arena::with(bytes, true)
    }

    fn with(bytes: u64, sparse: bool) -> Result<Arc<Arena>, MapError> {
        let extents = extents_for(bytes).max(1);
        let free = Free {
            untouched: 0,
            clean: Vec::new(),
            dirty: Vec::new(),
        };
        Ok(Arc::new(Arena {
            mapping: Mapping::new(extents, !sparse)?,
            extents,
            sparse,
            free: Mutex::new(free),
        }))
    }

    /// Extents in all.
    pub fn extents(&self) -> u32 {
        self.extents
    }

    /// Extents that nobody owns.
    pub fn free_extents(&self) -> u32 {
        self.free.lock().len(self.extents)
    }

    /// The memfd behind the arena, for a reader on this machine. The arena keeps it open.
    pub fn memfd(&self) -> RawFd {
        self.mapping.memfd()
    }

    /// Appends `count` extents, all zero, to `into`; or takes none and returns false.
    pub fn take(self: &Arc<Self>, count: u32, into: &mut Vec<Extent>) -> bool {
        let mut dirty = Vec::new();
        {
            let mut free = self.free.lock();
            if free.len(self.extents) < count {
                return false;
            }
            into.reserve(count as usize);
            for _ in 0..count {
                // Memory that is there already comes before memory that the kernel must yet find.
                if let Some(index) = free.clean.pop() {
                    into.push(Extent::own(self.clone(), index));
                } else if let Some(index) = free.dirty.pop() {
                    dirty.push(index);
                } else {
                    assert!(
                        free.untouched < self.extents,
                        "counted as free above, under this lock"
                    );
                    into.push(Extent::own(self.clone(), free.untouched));
                    free.untouched += 1;
                }
            }
        }
        // Cleared outside the lock: 256 KiB take a while.
        for index in dirty {
            let mut extent = Extent::own(self.clone(), index);
            extent.fill(0);
            into.push(extent);
        }
        true
    }

    /// Gives memory that nobody owns back to the kernel, at most `most` extents of it, and returns how
    /// many. For a node's idle moments: it costs some ten microseconds an extent.
    pub fn trim(&self, most: u32) -> u32 {
        let mut punched = 0;
        while punched < most {
            let Some(index) = self.free.lock().dirty.pop() else {
                break;
            };
            let done = self.mapping.punch(index);
            let mut free = self.free.lock();
            if !done {
                free.dirty.push(index);
                break;
            }
            free.clean.push(index);
            punched += 1;
        }
        punched
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Called once by each extent, when it is dropped.
    pub(crate) fn give_back(&self, index: u32) {
        let is_clean = self.sparse && self.mapping.punch(index);
        let mut free = self.free.lock();
        debug_assert!(index < free.untouched && !free.dirty.contains(&index));
        match is_clean {
            true => free.clean.push(index),
            false => free.dirty.push(index),
        }
        assert!(
            free.len(self.extents) <= self.extents,
            "extent {index} came back twice"
        );
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        u64::from(self.extents) * EXTENT_BYTES as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn rounds_up_and_hands_out_all_or_nothing() {
        let arena = Arena::new(MIB + 1).unwrap();
        assert_eq!(arena.extents(), 5);
        let mut mine = Vec::new();
        assert!(arena.take(3, &mut mine));
        assert!(!arena.take(3, &mut mine));
        assert_eq!((mine.len(), arena.free_extents()), (3, 2));
        drop(mine);
        assert_eq!(arena.free_extents(), 5);
    }

    #[test]
    fn an_extent_is_zero_whoever_had_it() {
        let arena = Arena::new(2 * EXTENT_BYTES as u64).unwrap();
        for round in 0..4 {
            let mut mine = Vec::new();
            assert!(arena.take(2, &mut mine));
            for extent in &mut mine {
                assert!(extent.iter().all(|b| *b == 0), "round {round}");
                extent.fill(7);
            }
            drop(mine);
            if round % 2 == 1 {
                assert_eq!(arena.trim(8), 2);
            }
        }
    }

    #[test]
    fn a_size_that_no_machine_has_is_an_error_not_a_panic() {
        let message = Arena::new(u64::MAX).unwrap_err().to_string();
        assert!(message.starts_with("cannot map "), "{message}");
    }

    /// Threads that take, mark, check and give back: no extent ever has two owners, none is lost.
    #[test]
    fn threads_never_share_an_extent() {
        let arena = Arena::new(16 * EXTENT_BYTES as u64).unwrap();
        std::thread::scope(|scope| {
            for thread in 1..=4u8 {
                let arena = arena.clone();
                scope.spawn(move || {
                    let mut mine = Vec::new();
                    for round in 0..200u32 {
                        if round % 7 == 6 {
                            arena.trim(2);
                        }
                        if !arena.take(round % 6, &mut mine) || mine.len() > 8 {
                            mine.clear();
                        }
                        for extent in &mut mine {
                            assert!(extent[0] == 0 || extent[0] == thread);
                            extent[0] = thread;
                            extent[EXTENT_BYTES - 1] = thread;
                        }
                        for extent in &mine {
                            assert_eq!((extent[0], extent[EXTENT_BYTES - 1]), (thread, thread));
                        }
                    }
                });
            }
        });
        assert_eq!(arena.free_extents(), 16);
    }
}
