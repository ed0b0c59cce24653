//! A page on the disk, read without a lock.

use staves_model::GroupId;
use staves_model::mutant::{Mutant, planted};

use crate::device::{BLOCK_BYTES, Device};
use crate::format::crc;

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
    /// Reads the page; `None` if it is all zero. A page that was written anew meanwhile may look damaged: whoever finds it so locates it again,
    /// and reads once more if it lies elsewhere.
    ///
    /// # Errors
    /// See [`PageError`].
    pub fn read(self, device: &dyn Device) -> Result<Option<Box<[u8]>>, PageError> {
        let Located {
            group,
            page,
            place,
            sum,
        } = self;
        if place == 0 {
            return Ok(None);
        }
        let mut bytes = vec![0; BLOCK_BYTES].into_boxed_slice();
        let read = device.read(offset(place), &mut bytes);
        read.map_err(|error| PageError::Read {
            group: group.0,
            page,
            place,
            error,
        })?;
        if crc(&bytes) != sum && !planted(Mutant::PagesUnchecked) {
            return Err(PageError::Damaged {
                group: group.0,
                page,
                place,
            });
        }
        Ok(Some(bytes))
    }
}

/// The offset of a place in the page file.
pub(super) fn offset(place: u32) -> u64 {
    u64::from(place) * BLOCK_BYTES as u64
}
