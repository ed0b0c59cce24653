//! A disk in memory that does what disks do: it forgets, tears and reorders what was not synced, fails, fills up and rots; and a system that forgets
//! what a failed sync left in its memory.
//! One seed gives one behaviour.

use std::io;

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use crate::device::Device;

/// The unit that a real disk writes whole, mostly: some of those in flight are torn when the power fails.
const SECTOR: usize = 512;

/// A disk with faults. What is read is what the system has in memory; what survives [`lose_power`](Self::lose_power) is what was synced, and of the
/// rest what chance leaves.
#[derive(Debug)]
pub struct FaultyDevice {
    state: Mutex<DiskState>,
}

#[derive(Debug)]
struct DiskState {
    durable: Vec<u8>,
    cached: Vec<u8>,
    /// Reads give back memory, so that a second look may see other bytes.
    evicts: bool,
    /// Sectors that a sync would write, in the order of their writes.
    dirty: Vec<(usize, [u8; SECTOR])>,
    /// Sectors that a failed sync called clean, written or not.
    called_clean: Vec<usize>,
    rng: SmallRng,
    /// So many calls more, the one after them ends in the middle, and all that follow fail.
    calls_left: Option<u64>,
    off: bool,
    syncs_fail: bool,
    writes_fail: Option<io::ErrorKind>,
    unreadable: Vec<usize>,
    calls: u64,
}

impl FaultyDevice {
    /// A disk of so many bytes, a multiple of a sector, all zero.
    pub fn new(bytes: usize, seed: u64) -> FaultyDevice {
        assert!(bytes.is_multiple_of(SECTOR), "whole sectors");
        let state = DiskState {
            durable: vec![0; bytes],
            cached: vec![0; bytes],
            evicts: false,
            dirty: Vec::new(),
            called_clean: Vec::new(),
            rng: SmallRng::seed_from_u64(seed),
            calls_left: None,
            off: false,
            syncs_fail: false,
            writes_fail: None,
            unreadable: Vec::new(),
            calls: 0,
        };
        FaultyDevice {
            state: Mutex::new(state),
        }
    }

    /// The power goes off in the middle of the call after so many more writes and syncs: it is done in part, and all that follow fail.
    pub fn power_off_after(&self, calls: u64) {
        self.state.lock().calls_left = Some(calls);
    }

    /// The writes and syncs so far.
    pub fn calls(&self) -> u64 {
        self.state.lock().calls
    }

    /// Power fails and comes back: of each sector that was not synced, any of its writes or none is there.
    pub fn lose_power(&self) {
        let mut state = self.state.lock();
        state.write_some();
        state.cached = state.durable.clone();
        state.called_clean.clear();
        state.off = false;
        state.calls_left = None;
    }

    /// The process ends and another begins: the system remembers what was written, or [`evict`](Self::evict)s some of it.
    pub fn restart_process(&self) {
        let mut state = self.state.lock();
        state.off = false;
        state.calls_left = None;
        if state.rng.random_bool(0.3) {
            state.evict();
        }
    }

    /// The system gives some of its memory back: what is clean there is what is on disk from then on, also if a failed sync called it clean.
    pub fn evict(&self) {
        self.state.lock().evict();
    }

    /// Some reads evict from now on, or none do.
    pub fn evict_while_reading(&self, evicts: bool) {
        self.state.lock().evicts = evicts;
    }

    /// Syncs fail from now on, or no more. A failed sync writes some of what is dirty and forgets that the rest is: it is in memory, and no later sync writes it.
    pub fn fail_syncs(&self, fail: bool) {
        self.state.lock().syncs_fail = fail;
    }

    /// Writes fail from now on, with some of their bytes written, or no more.
    pub fn fail_writes(&self, error: Option<io::ErrorKind>) {
        self.state.lock().writes_fail = error;
    }

    /// A sector cannot be read any more.
    pub fn make_unreadable(&self, at: usize) {
        self.state.lock().unreadable.push(at / SECTOR);
    }

    /// Flips a bit of a byte, in memory and on disk, without a word.
    pub fn rot(&self, at: usize) {
        let mut state = self.state.lock();
        let bit = 1 << state.rng.random_range(0..8);
        state.durable[at] ^= bit;
        state.cached[at] ^= bit;
    }

    /// The bytes that are on disk.
    pub fn durable(&self) -> Vec<u8> {
        self.state.lock().durable.clone()
    }
}

impl DiskState {
    /// Counts a call. An error if the power is off; true if it goes off in the middle of this one.
    fn begin(&mut self) -> io::Result<bool> {
        if self.off {
            return Err(io::Error::other("the power is off"));
        }
        self.calls += 1;
        match &mut self.calls_left {
            Some(0) => self.off = true,
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(self.off)
    }

    fn evict(&mut self) {
        let share = [0.1, 0.5, 1.0][self.rng.random_range(0..3)];
        for sector in &self.called_clean {
            let is_dirty = self.dirty.iter().any(|(dirty, _)| dirty == sector);
            if !is_dirty && self.rng.random_bool(share) {
                let bytes = sector * SECTOR..(sector + 1) * SECTOR;
                self.cached[bytes.clone()].copy_from_slice(&self.durable[bytes]);
            }
        }
    }

    /// Some of the dirty sectors reach the disk, in any order, and some of those in part.
    fn write_some(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        let sectors = dirty.iter().map(|(sector, _)| *sector);
        self.called_clean.extend(sectors);
        dirty.shuffle(&mut self.rng);
        // Sometimes all, sometimes none, so that whole batches are lost and kept, too.
        let share = [0.0, 0.5, 0.9, 1.0][self.rng.random_range(0..4)];
        for (sector, bytes) in dirty {
            if !self.rng.random_bool(share) {
                continue;
            }
            let part = match self.rng.random_range(0..20) {
                0 => self.rng.random_range(0..SECTOR),
                // So that headers are torn, too.
                1 => self.rng.random_range(0..SECTOR / 4),
                _ => SECTOR,
            };
            self.durable[sector * SECTOR..][..part].copy_from_slice(&bytes[..part]);
        }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.cached[at..at + bytes.len()].copy_from_slice(bytes);
        for sector in at / SECTOR..(at + bytes.len()).div_ceil(SECTOR) {
            let mut image = [0; SECTOR];
            image.copy_from_slice(&self.cached[sector * SECTOR..][..SECTOR]);
            self.dirty.push((sector, image));
        }
    }
}

impl Device for FaultyDevice {
    fn bytes(&self) -> u64 {
        self.state.lock().cached.len() as u64
    }

    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.off {
            return Err(io::Error::other("the power is off"));
        }
        let at = usize::try_from(at).map_err(io::Error::other)?;
        let sectors = at / SECTOR..(at + into.len()).div_ceil(SECTOR);
        if state.unreadable.iter().any(|bad| sectors.contains(bad)) {
            return Err(io::Error::other("a sector cannot be read"));
        }
        let bytes = state.cached.get(at..at + into.len());
        into.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        if state.evicts && state.rng.random_bool(0.3) {
            state.evict();
        }
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        let cut = state.begin()?;
        let at = usize::try_from(at).map_err(io::Error::other)?;
        if at + bytes.len() > state.cached.len() {
            return Err(io::Error::other("a write beyond the end of the device"));
        }
        let fails = state.writes_fail;
        let part = match cut || fails.is_some() {
            true => state.rng.random_range(0..=bytes.len() / SECTOR) * SECTOR,
            false => bytes.len(),
        };
        state.write(at, &bytes[..part]);
        match fails {
            _ if cut => Err(io::Error::other("the power is off")),
            Some(kind) => Err(io::Error::new(kind, "the write failed")),
            None => Ok(()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.begin()? || state.syncs_fail {
            state.write_some();
            return Err(io::Error::other("the sync failed"));
        }
        for (sector, bytes) in std::mem::take(&mut state.dirty) {
            state.durable[sector * SECTOR..][..SECTOR].copy_from_slice(&bytes);
        }
        Ok(())
    }
}
