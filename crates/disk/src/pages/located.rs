//! A page on the disk, read without a lock.

use staves_model::GroupId;
use staves_model::mutant::{Mutant, planted};

use crate::device::{BLOCK_BYTES, Device};
use crate::format::crc;
pub(super) use crate::placed::offset;

/// A page that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// The disk did not read.
    #[error("page {page} of group {group} cannot be read at place {place}: {error}")]
    Read {
        /// Its group.
        group: u32,
        /// Its number.
        page: u32,
        /// Its place.
        place: u32,
        /// The disk's error.
        error: std::io::Error,
    },
    /// The bytes are not those that were written.
    #[error("page {page} of group {group} is damaged at place {place}")]
    Damaged {
        /// Its group.
        group: u32,
        /// Its number.
        page: u32,
        /// Its place.
        place: u32,
    },
}

/// The place of a page, for a look at the disk without a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Located {
    pub(super) group: GroupId,
    pub(super) page: u32,
    pub(super) place: u32,
    pub(super) sum: u32,
}

impl Located {
    /// Returns whether the page is all zero, and lies nowhere.
    pub fn is_zero(self) -> bool {
        self.place == 0
    }

    /// Reads the page; `None` if it is all zero. A page that was written anew meanwhile may look damaged: whoever finds it so locates it again,
    /// and reads once more if it lies elsewhere.
    ///
    /// # Errors
    /// See [`PageError`].
    pub fn read(self, device: &dyn Device) -> Result<Option<Box<[u8]>>, PageError> {
        if self.is_zero() {
            return Ok(None);
        }
        let mut bytes = vec![0; BLOCK_BYTES].into_boxed_slice();
        self.read_into(device, &mut bytes)?;
        Ok(Some(bytes))
    }

    /// The same into `into`, of one page; it stays as it is if the page is all zero.
    ///
    /// # Errors
    /// See [`PageError`].
    ///
    /// # Panics
    /// If `into` is not of a page's length.
    pub fn read_into(self, device: &dyn Device, into: &mut [u8]) -> Result<(), PageError> {
        let Located {
            group,
            page,
            place,
            sum,
        } = self;
        assert_eq!(into.len(), BLOCK_BYTES, "room for a page");
        if self.is_zero() {
            return Ok(());
        }
        let read = device.read(offset(place), into);
        read.map_err(|error| PageError::Read {
            group: group.0,
            page,
            place,
            error,
        })?;
        if crc(into) != sum && !planted(Mutant::PagesUnchecked) {
            return Err(PageError::Damaged {
                group: group.0,
                page,
                place,
            });
        }
        Ok(())
    }
}

impl Located {
    /// The same if the system has the page in memory: false if it would have to wait for the disk, or if the page is not good.
    pub fn read_now(self, device: &dyn Device, into: &mut [u8]) -> bool {
        assert_eq!(into.len(), BLOCK_BYTES, "room for a page");
        if self.is_zero() {
            return true;
        }
        let is_read = device.read_now(offset(self.place), into).unwrap_or(false);
        is_read && crc(into) == self.sum
    }

    /// Returns whether it lies at this place.
    pub fn is_at(self, place: u32) -> bool {
        self.place == place
    }

    /// Returns whether `next` lies right behind it.
    pub fn is_before(self, next: Located) -> bool {
        !self.is_zero() && self.place + 1 == next.place
    }

    /// Reads pages each of which lies right behind the one before, with one access, and says of each whether it is good. `into` has them in their order.
    ///
    /// # Errors
    /// The disk's.
    ///
    /// # Panics
    /// If `into` is not as long as they are.
    pub fn read_run(
        run: &[Located],
        device: &dyn Device,
        into: &mut [u8],
    ) -> std::io::Result<Vec<bool>> {
        assert_eq!(into.len(), run.len() * BLOCK_BYTES, "room for the pages");
        if let Some(first) = run.first().filter(|first| !first.is_zero()) {
            device.read(offset(first.place), into)?;
        }
        let pages = run.iter().zip(into.chunks_exact(BLOCK_BYTES));
        let is_good = |(page, bytes): (&Located, &[u8])| page.is_zero() || crc(bytes) == page.sum;
        Ok(pages.map(is_good).collect())
    }
}
