//! The memory that a node and the mounts on its machine share, and reading it. The one place of `blocks` with
//! `unsafe`.
//!
//! The base of everything here: all but the frames' bytes are atomics, so that any process may look at them at any time.
//! Bytes of frames are copied as they are found, perhaps while a node writes others there, and are used only if the entry
//! that named the frame has not changed meanwhile (`FrameEntry::seq`) and their checksums are right. A mapping is
//! as long as the sealed memfd behind it; nothing in the memory, which a hostile node could fill as it likes, is used as an
//! offset before it is checked against that length.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

use super::block::{BLOCK_BYTES, BlockKey, PART_BYTES, SUM_BYTES};
use super::entry::{FrameEntry, PART_SUMS, Spread, StoredPart};

const MAGIC: u64 = u64::from_le_bytes(*b"stavblk3");
/// Entries that a key may be in.
pub(super) const WAYS: usize = 8;
/// There is an entry for each frame, so that files of one part fill the memory, and for so many frames one more: sets fill unevenly.
const FRAMES_PER_SPARE_ENTRY: usize = 7;
/// A block of several parts has so many frames at least.
const FRAMES_PER_SPREAD: usize = 2;
const PAGE: usize = 4096;
/// The number of times that a read begins again because the entry changed under it, before it gives up: each change
/// means that the block was evicted or got a part, so that more than a few are not luck.
const TRIES: usize = 16;

/// At the start of the memory.
#[repr(C)]
struct Header {
    magic: AtomicU64,
    sets: AtomicU64,
    frames: AtomicU64,
}

/// The first look-up of a key: a cache line of key bits, 0 for none.
#[repr(C, align(64))]
pub(super) struct Set {
    pub tags: [AtomicU64; WAYS],
}

/// The reason for which a read gave nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Miss {
    /// Not there, or not all of it.
    Absent,
    /// It is there and a checksum is wrong: the memory has changed under it. Drop the block.
    Damaged,
}

/// Sizes and places, derived from two numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    pub sets: usize,
    pub frames: usize,
}

impl Layout {
    /// For so many frames. A pool of files of one part fills its memory still.
    pub(super) fn for_frames(frames: usize) -> Layout {
        let entries = frames + frames.div_ceil(FRAMES_PER_SPARE_ENTRY) + WAYS;
        Layout {
            sets: entries.div_ceil(WAYS),
            frames,
        }
    }

    pub(super) fn entries(&self) -> usize {
        self.sets * WAYS
    }

    /// Blocks that may have several parts.
    pub(super) fn spreads(&self) -> usize {
        self.frames / FRAMES_PER_SPREAD
    }

    fn sets_at(&self) -> usize {
        PAGE
    }

    fn entries_at(&self) -> usize {
        self.sets_at() + self.sets * size_of::<Set>()
    }

    fn spreads_at(&self) -> usize {
        self.entries_at() + self.entries() * size_of::<FrameEntry>()
    }

    fn frames_at(&self) -> usize {
        let end = self.spreads_at() + self.spreads() * size_of::<Spread>();
        end.next_multiple_of(PAGE)
    }

    pub(super) fn bytes(&self) -> usize {
        self.frames_at() + self.frames * PART_BYTES
    }

    /// As a stranger's memory says it, if it fits into `bytes`.
    fn checked(sets: u64, frames: u64, bytes: usize) -> Option<Layout> {
        let most = bytes as u64;
        let fits = sets > 0
            && sets <= most / size_of::<Set>() as u64
            && frames <= most / PART_BYTES as u64;
        let layout = Layout {
            sets: sets as usize,
            frames: frames as usize,
        };
        (fits && layout.bytes() <= bytes).then_some(layout)
    }
}

/// The shared memory, mapped for reading.
#[derive(Debug)]
pub struct BlockMapping {
    base: NonNull<u8>,
    bytes: usize,
    layout: Layout,
    memfd: OwnedFd,
}

// SAFETY: address space and a descriptor; neither belongs to a thread.
unsafe impl Send for BlockMapping {}
// SAFETY: everything reached through `&BlockMapping` is atomics, but for frames, which `copy_out` and
// `Blocks::put` (one owner per frame) care for.
unsafe impl Sync for BlockMapping {}

impl Drop for BlockMapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping that `map` made, and nothing borrowed from `self` is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

impl BlockMapping {
    /// New memory, zero, for the node that owns it.
    pub(super) fn create(layout: Layout) -> io::Result<BlockMapping> {
        // SAFETY: the name is a C string; the call touches no memory of ours.
        let raw = unsafe {
            let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
            libc::memfd_create(c"staves-blocks".as_ptr(), flags)
        };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `raw` was made just now and nobody else owns it.
        let memfd = unsafe { OwnedFd::from_raw_fd(raw) };
        let size = i64::try_from(layout.bytes()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        // SAFETY: plain system calls on a descriptor that we own. A file that cannot shrink is never a SIGBUS
        // to who has mapped it.
        let made = unsafe {
            libc::ftruncate(raw, size) == 0 && libc::fcntl(raw, libc::F_ADD_SEALS, seals) == 0
        };
        if !made {
            return Err(io::Error::last_os_error());
        }
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let mapping = BlockMapping::map_bytes(memfd, layout, prot, layout.bytes())?;
        let header = mapping.header();
        header.sets.store(layout.sets as u64, Relaxed);
        header.frames.store(layout.frames as u64, Relaxed);
        header.magic.store(MAGIC, Release);
        Ok(mapping)
    }

    /// Maps what [`super::Blocks::descriptor`] gave.
    ///
    /// # Errors
    /// It is not such a memory, or may still shrink, or cannot be mapped.
    pub fn open(memfd: OwnedFd) -> io::Result<BlockMapping> {
        let strange = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        // SAFETY: plain system call on a descriptor that we own.
        let seals = unsafe { libc::fcntl(memfd.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return Err(strange(
                "not a node's blocks: it is not sealed against shrinking",
            ));
        }
        let bytes = std::fs::File::from(memfd.try_clone()?).metadata()?.len();
        let bytes =
            usize::try_from(bytes).map_err(|_| strange("larger than this machine's memory"))?;
        if bytes < PAGE {
            return Err(strange("not a node's blocks: it is too short"));
        }
        // Not more than a look, until the header has told its sizes.
        let smallest = Layout { sets: 0, frames: 0 };
        let mut mapping = BlockMapping::map_bytes(memfd, smallest, libc::PROT_READ, bytes)?;
        let header = mapping.header();
        if header.magic.load(Acquire) != MAGIC {
            return Err(strange(
                "not a node's blocks, or of another version of Staves",
            ));
        }
        let (sets, frames) = (header.sets.load(Relaxed), header.frames.load(Relaxed));
        mapping.layout = Layout::checked(sets, frames, bytes)
            .ok_or_else(|| strange("a node's blocks whose sizes cannot be"))?;
        Ok(mapping)
    }

    fn map_bytes(
        memfd: OwnedFd,
        layout: Layout,
        prot: i32,
        bytes: usize,
    ) -> io::Result<BlockMapping> {
        assert!(bytes >= PAGE && layout.bytes() <= bytes.max(PAGE));
        // SAFETY: a new mapping at an address that the kernel chooses; nothing of ours is replaced.
        let base = unsafe {
            let fd = memfd.as_raw_fd();
            libc::mmap(std::ptr::null_mut(), bytes, prot, libc::MAP_SHARED, fd, 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base =
            NonNull::new(base.cast::<u8>()).expect("mmap without MAP_FIXED never maps page 0");
        // SAFETY: the range is the mapping just made. A hint only: failure changes speed, not meaning.
        unsafe { libc::madvise(base.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        Ok(BlockMapping {
            base,
            bytes,
            layout,
            memfd,
        })
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    pub(super) fn memfd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping is at least a page, aligned to one, and `Header` is atomics only.
        unsafe { self.base.cast().as_ref() }
    }

    pub(super) fn set(&self, index: usize) -> &Set {
        assert!(index < self.layout.sets);
        // SAFETY: within the mapping by the layout that was checked against it, aligned (the table begins on
        // a page and a set is 64 bytes), atomics only.
        unsafe {
            let sets = self.base.add(self.layout.sets_at()).cast::<Set>();
            sets.add(index).as_ref()
        }
    }

    pub(super) fn entry(&self, index: usize) -> &FrameEntry {
        assert!(index < self.layout.entries());
        // SAFETY: as for `set`; an entry's size is a multiple of its alignment of 64.
        unsafe {
            let entries = self.base.add(self.layout.entries_at()).cast::<FrameEntry>();
            entries.add(index).as_ref()
        }
    }

    /// A block's frames; `None` if there is no such place.
    pub(super) fn spread(&self, number: u32) -> Option<&Spread> {
        let number = number as usize;
        // SAFETY: as for `entry`: within the mapping by the layout, and aligned, for entries end on 64 bytes.
        (number < self.layout.spreads()).then(|| unsafe {
            let spreads = self.base.add(self.layout.spreads_at()).cast::<Spread>();
            spreads.add(number).as_ref()
        })
    }

    /// The place of a part of a key's block; `None` if the entry contradicts itself.
    pub(super) fn part(
        &self,
        entry: &FrameEntry,
        key: BlockKey,
        part: usize,
    ) -> Option<StoredPart> {
        match entry.spread() {
            Some(number) => Some(self.spread(number)?.part(key, part)),
            None => entry.only(key, part),
        }
    }

    /// The beginning of a frame; `None` if there is no such frame.
    fn frame(&self, index: u32) -> Option<NonNull<u8>> {
        let index = index as usize;
        // SAFETY: a frame below `frames` lies within the mapping, by the layout.
        (index < self.layout.frames).then(|| unsafe {
            let frames = self.base.add(self.layout.frames_at());
            frames.add(index * PART_BYTES)
        })
    }

    /// Puts bytes into a frame that the caller alone owns and no entry names.
    ///
    /// # Panics
    /// If they are more than a part, or there is no such frame.
    pub(super) fn fill(&self, frame: u32, bytes: &[u8]) {
        assert!(bytes.len() <= PART_BYTES);
        let to = self.frame(frame).expect("a frame of ours");
        // An entry that named this frame has had its number raised; who still copies from it must not see the
        // bytes that follow and the old number.
        fence(Release);
        // SAFETY: the frame is PART_BYTES of the writable mapping. Readers of a former owner may copy from it
        // meanwhile; they find the number raised and throw away what they copied.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
    }

    /// Gives the memory of frames that no entry names back to the kernel, neighbours together. Those that it took, and those that it
    /// did not.
    pub(super) fn punch_all(&self, mut frames: Vec<u32>) -> (Vec<u32>, Vec<u32>) {
        frames.sort_unstable();
        let (mut punched, mut kept) = (Vec::new(), Vec::new());
        for run in frames.chunk_by(|a, b| a + 1 == *b) {
            match self.punch(run[0], run.len()) {
                true => punched.extend(run),
                false => kept.extend(run),
            }
        }
        (punched, kept)
    }

    fn punch(&self, first: u32, frames: usize) -> bool {
        let at = self.layout.frames_at() + first as usize * PART_BYTES;
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (fd, bytes) = (self.memfd.as_raw_fd(), frames * PART_BYTES);
        // SAFETY: plain system call on our descriptor; the frames are free.
        unsafe { libc::fallocate(fd, mode, at as i64, bytes as i64) == 0 }
    }

    /// Copies `into.len()` bytes of a frame, from `from`. False if it has no such bytes.
    fn copy_out(&self, frame: u32, from: usize, into: &mut [u8]) -> bool {
        let Some(start) = self
            .frame(frame)
            .filter(|_| from + into.len() <= PART_BYTES)
        else {
            return false;
        };
        // SAFETY: the range lies within the frame, as just checked. The node may write to it meanwhile; then the
        // caller throws the bytes away (see the head of this file).
        unsafe {
            std::ptr::copy_nonoverlapping(start.as_ptr().add(from), into.as_mut_ptr(), into.len())
        };
        true
    }

    /// The entry that a key has, if it is in the table.
    pub(super) fn find(&self, key: BlockKey) -> Option<usize> {
        let tag = key.mixed();
        let within = |set: usize| {
            let tags = &self.set(set).tags;
            let mut ways = (0..WAYS).filter(|way| tags[*way].load(Acquire) == tag);
            let entry = ways.find(|way| self.entry(set * WAYS + way).key() == key);
            entry.map(|way| set * WAYS + way)
        };
        self.sets(tag).into_iter().find_map(within)
    }

    /// Key bits of who is in an entry; 0: nobody.
    pub(super) fn tag(&self, entry: usize) -> &AtomicU64 {
        &self.set(entry / WAYS).tags[entry % WAYS]
    }

    /// The entries in which a key may be: those of two sets. With one alone some sets would overflow long before the
    /// table is full.
    pub(super) fn ways(&self, tag: u64) -> impl Iterator<Item = usize> + use<> {
        let of = |set: usize| set * WAYS..(set + 1) * WAYS;
        self.sets(tag).into_iter().flat_map(of)
    }

    fn sets(&self, tag: u64) -> [usize; 2] {
        let sets = self.layout.sets as u128;
        [tag, tag.wrapping_mul(0x9e37_79b9_7f4a_7c15)]
            .map(|bits| ((u128::from(bits) * sets) >> 64) as usize)
    }

    /// Fills `into` with the bytes of a block from `from` on.
    ///
    /// Gives the entry that it was read from, for [`super::Blocks::touch`].
    ///
    /// # Errors
    /// [`Miss`]; what is then in `into` means nothing.
    pub fn read(&self, key: BlockKey, from: usize, into: &mut [u8]) -> Result<u32, Miss> {
        let Some(end) = from
            .checked_add(into.len())
            .filter(|end| *end <= BLOCK_BYTES)
        else {
            return Err(Miss::Absent);
        };
        let mut damaged = false;
        for _ in 0..TRIES {
            let index = self.find(key).ok_or(Miss::Absent)?;
            let entry = self.entry(index);
            let seq = entry.seq.load(Acquire);
            if seq & 1 == 1 {
                std::hint::spin_loop();
                continue;
            }
            let got = self.copy_sums(entry, key, from..end, into);
            fence(Acquire);
            if entry.seq.load(Relaxed) != seq {
                continue;
            }
            match got {
                Err(Miss::Damaged) if !damaged => damaged = true, // looked at twice before it is believed
                Err(miss) => return Err(miss),
                Ok(()) => return Ok(index as u32),
            }
        }
        Err(Miss::Absent)
    }

    /// Copies and checks, sum by sum.
    fn copy_sums(
        &self,
        entry: &FrameEntry,
        key: BlockKey,
        range: std::ops::Range<usize>,
        into: &mut [u8],
    ) -> Result<(), Miss> {
        let bytes = entry.bytes.load(Relaxed) as usize;
        if entry.key() != key || bytes > BLOCK_BYTES || range.end > bytes {
            return Err(Miss::Absent);
        }
        let parts = entry.parts.load(Relaxed);
        let mut scratch = None;
        let mut at = range.start;
        while at < range.end {
            let sum = at / SUM_BYTES;
            let part = at / PART_BYTES;
            if parts & 1 << part == 0 {
                return Err(Miss::Absent);
            }
            let start = sum * SUM_BYTES;
            let whole = start..(start + SUM_BYTES).min(bytes);
            let wanted = at..range.end.min(whole.end);
            let to = &mut into[wanted.start - range.start..wanted.end - range.start];
            let direct = wanted == whole;
            let copied = match direct {
                true => &mut *to,
                false => &mut scratch.get_or_insert([0; SUM_BYTES])[..whole.len()],
            };
            let stored = self.part(entry, key, part).ok_or(Miss::Damaged)?;
            let there = self.copy_out(stored.frame, start % PART_BYTES, copied);
            if !there || super::block::sum(copied) != stored.sums[sum % PART_SUMS] {
                return Err(Miss::Damaged);
            }
            if let Some(scratch) = &scratch
                && !direct
            {
                to.copy_from_slice(&scratch[wanted.start - start..wanted.end - start]);
            }
            at = wanted.end;
        }
        Ok(())
    }
}
