//! The contract of a disk: bytes at offsets, and a word for when they would survive a loss of power.

use std::io;

/// Reads and writes are whole blocks of this size, in bytes, at multiples of it. Nothing rests on a block being written whole.
pub const BLOCK_BYTES: usize = 4096;

/// A disk, or a file, of a fixed size.
pub trait Device: Send + Sync + 'static {
    /// Its size in bytes.
    fn bytes(&self) -> u64;

    /// Reads all of `into`. What was never written reads as zeroes.
    ///
    /// # Errors
    /// Those of the disk; a range beyond its end.
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()>;

    /// The same if it takes no wait for the disk: false if it would, or if that cannot be told.
    ///
    /// # Errors
    /// As [`Device::read`].
    fn read_now(&self, _at: u64, _into: &mut [u8]) -> io::Result<bool> {
        Ok(false)
    }

    /// Writes all of `bytes`. Before the next sync any part of them may be lost, whatever was written earlier or later.
    ///
    /// # Errors
    /// Those of the disk, with any part of the bytes written; a range beyond its end.
    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// The same of parts that lie one behind the other.
    ///
    /// # Errors
    /// As [`Device::write`].
    fn write_parts(&self, at: u64, parts: &[&[u8]]) -> io::Result<()> {
        let mut at = at;
        for part in parts {
            self.write(at, part)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Makes what was written before survive a loss of power.
    ///
    /// # Errors
    /// Those of the disk. What was written since the last sync may be lost then, though it can be read, and no later
    /// sync says anything of it: whoever sees this error trusts nothing that it had not synced before.
    fn sync(&self) -> io::Result<()>;
}
