//! A file as a device.

mod direct;

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{ReadWriteFlags, preadv2};

use self::direct::DirectWriter;
use crate::device::{BLOCK_BYTES, Device};
use crate::format::DiskId;
use crate::journal::Journal;

/// Writes of pages from here on pass the system's memory by: shorter ones take less time through it.
const LONG_BYTES: usize = 32 << 10;

/// A file whose whole size is allocated when it is made, so that a write within it cannot fail for want of room. It is locked while it is open:
/// two that write one journal would destroy it.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    bytes: u64,
    direct: Option<DirectWriter>,
}

impl FileDevice {
    /// Makes an empty journal of so many bytes for a disk. It has its name once all of it is durable: a crash leaves a whole journal, or none and
    /// perhaps a file `PATH.new`, which the next attempt makes anew. The folder must be durable.
    ///
    /// # Errors
    /// `AlreadyExists`: there is such a file. No room for it, or too few bytes: nothing is left. Those of the disk.
    pub fn create_journal(path: &Path, bytes: u64, disk: DiskId) -> io::Result<FileDevice> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => File::open(folder)?,
            _ => File::open(".")?,
        };
        // One at a time: two that make the same file would take each other's for what a crash left.
        folder.lock()?;
        if path.try_exists()? {
            let there = format!("{} exists", path.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, there));
        }
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".new");
        let temporary = PathBuf::from(temporary);
        let made = fill(&temporary, bytes, disk).and_then(|device| {
            std::fs::rename(&temporary, path)?;
            Ok(device)
        });
        if made.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        let device = made?;
        folder.sync_all()?;
        Ok(device)
    }

    /// Makes a file of so many bytes, all zero, in the place of one that may be there. It is not durable yet.
    ///
    /// # Errors
    /// No room for it, and nothing is left; those of the disk.
    pub fn allocate(path: &Path, bytes: u64) -> io::Result<FileDevice> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        let file = options.open(path)?;
        lock(&file, path)?;
        if let Err(error) = allocate(&file, bytes) {
            let _ = std::fs::remove_file(path);
            return Err(error);
        }
        let direct = None;
        Ok(FileDevice {
            file,
            bytes,
            direct,
        })
    }

    /// Makes all of the file durable, its size included.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Opens a file that is there.
    ///
    /// # Errors
    /// There is none; `WouldBlock`: it is open elsewhere; those of the disk.
    pub fn open(path: &Path) -> io::Result<FileDevice> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        lock(&file, path)?;
        let bytes = file.metadata()?.len();
        let direct = None;
        Ok(FileDevice {
            file,
            bytes,
            direct,
        })
    }

    /// Opens a file that whoever calls has open already, for other writes: it is not locked once more. Long writes pass the system's memory by.
    ///
    /// # Errors
    /// There is none; those of the disk.
    pub fn open_again(path: &Path) -> io::Result<FileDevice> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let bytes = file.metadata()?.len();
        let direct = DirectWriter::open(path, LONG_BYTES);
        Ok(FileDevice {
            file,
            bytes,
            direct,
        })
    }

    /// Opens a file that is there and is mostly written. Writes pass the system's memory by, where the file system can do that.
    ///
    /// # Errors
    /// As [`FileDevice::open`].
    pub fn open_to_write(path: &Path) -> io::Result<FileDevice> {
        let mut device = FileDevice::open(path)?;
        device.direct = DirectWriter::open(path, BLOCK_BYTES);
        Ok(device)
    }
}

fn fill(path: &Path, bytes: u64, disk: DiskId) -> io::Result<FileDevice> {
    let device = FileDevice::allocate(path, bytes)?;
    Journal::create(&device, disk)?;
    device.sync_all()?;
    Ok(device)
}

fn lock(file: &File, path: &Path) -> io::Result<()> {
    file.try_lock().map_err(|error| match error {
        TryLockError::Error(error) => error,
        TryLockError::WouldBlock => {
            let path = path.display();
            let taken = format!(
                "{path} is open already, in this process or in another one that has not ended yet"
            );
            io::Error::new(io::ErrorKind::WouldBlock, taken)
        }
    })
}

fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    loop {
        match fallocate(file, FallocateFlags::empty(), 0, bytes) {
            Err(rustix::io::Errno::INTR) => {}
            // A file system that knows no allocation: the size is all that it gives.
            Err(rustix::io::Errno::OPNOTSUPP) => return file.set_len(bytes),
            other => return other.map_err(io::Error::from),
        }
    }
}

impl Device for FileDevice {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, at)
    }

    // The system has the bytes in memory, or says that it has not.
    fn read_now(&self, at: u64, into: &mut [u8]) -> io::Result<bool> {
        let len = into.len();
        let mut into = [io::IoSliceMut::new(into)];
        match preadv2(&self.file, &mut into, at, ReadWriteFlags::NOWAIT) {
            Ok(read) => Ok(read == len),
            Err(_) => Ok(false),
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_parts(at, &[bytes])
    }

    fn write_parts(&self, at: u64, parts: &[&[u8]]) -> io::Result<()> {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        let end = at.checked_add(length as u64);
        if end.is_none_or(|end| end > self.bytes) {
            return Err(io::Error::other("a write beyond the end of the device"));
        }
        if let Some(direct) = &self.direct
            && direct.write(at, length, parts)?
        {
            return Ok(());
        }
        let mut at = at;
        for part in parts {
            self.file.write_all_at(part, at)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
