//! Writes that pass the system's memory by.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::fs::OFlags;

use crate::device::BLOCK_BYTES;
use crate::format::BATCH_BYTES_MAX;

/// Writes that pass the system's memory by: they cost a third of the time, and what is written there is not read from that memory soon.
#[derive(Debug)]
pub(super) struct DirectWriter {
    file: File,
    /// Shorter writes go another way.
    least: usize,
    /// Memory that begins at a multiple of a block, as the system wants it.
    aligned: Mutex<Vec<u8>>,
    /// The file system took it when the file was opened, and does not write so.
    is_refused: AtomicBool,
}

impl DirectWriter {
    /// `None` if the file system knows no such writes.
    pub(super) fn open(path: &Path, least: usize) -> Option<DirectWriter> {
        let mut options = OpenOptions::new();
        #[allow(clippy::cast_possible_wrap)] // a flag of the lower bits
        let flags = OFlags::DIRECT.bits() as i32;
        let file = options.write(true).custom_flags(flags).open(path).ok()?;
        Some(DirectWriter {
            file,
            least,
            aligned: Mutex::default(),
            is_refused: AtomicBool::new(false),
        })
    }

    /// Writes parts that are so long together. False if they are to go another way, with any part of the bytes written.
    ///
    /// # Errors
    /// Those of the disk.
    pub(super) fn write(&self, at: u64, length: usize, parts: &[&[u8]]) -> io::Result<bool> {
        let is_whole = at.is_multiple_of(BLOCK_BYTES as u64) && length.is_multiple_of(BLOCK_BYTES);
        if !is_whole || length < self.least || self.is_refused.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let mut aligned = self.aligned.lock();
        let most = length.min(BATCH_BYTES_MAX);
        if aligned.len() < most + BLOCK_BYTES {
            aligned.resize(most + BLOCK_BYTES, 0);
        }
        let from = aligned.as_ptr().align_offset(BLOCK_BYTES);
        let Some(room) = aligned.get_mut(from..from + most) else {
            return Ok(false);
        };
        let (mut at, mut filled) = (at, 0);
        for part in parts {
            let mut part = *part;
            while !part.is_empty() {
                let (now, later) = part.split_at(part.len().min(most - filled));
                room[filled..filled + now.len()].copy_from_slice(now);
                filled += now.len();
                part = later;
                if filled == most {
                    if !self.put(at, room)? {
                        return Ok(false);
                    }
                    at += filled as u64;
                    filled = 0;
                }
            }
        }
        match filled {
            0 => Ok(true),
            _ => self.put(at, &room[..filled]),
        }
    }

    fn put(&self, at: u64, bytes: &[u8]) -> io::Result<bool> {
        match self.file.write_all_at(bytes, at) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.is_refused.store(true, Ordering::Relaxed);
                Ok(false)
            }
            written => written.map(|()| true),
        }
    }
}
