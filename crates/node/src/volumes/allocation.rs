//! The map of a volume: which of its bytes take up memory, by questions to its buckets.
//!
//! A bucket is asked once for all of its chunks of a window of the volume. The first window is small, each further one larger: clients ask for gigabytes
//! at a time, and take the first extent of them, or as many as a reply has.

use std::ops::Range;
use std::time::Instant;

use staves_client::written_chunks;
use staves_model::CHUNK_BYTES;

use super::blocks::{PATIENCE, VolumeBytes};
use super::error::BlockError;

/// Most extents of a reply; the client asks again for the rest.
pub(crate) const EXTENTS_MAX: usize = 1024;
/// Memory that a reply takes at most while it is made: marks and questions for 4 GiB, and extents.
pub(crate) const EXTENTS_BYTES: usize = 256 << 10;
/// Chunks of the first window: 16 MiB.
const WINDOW_CHUNKS: u64 = 256;
/// A window has as many times the chunks of the one before.
const WINDOW_GROWTH: u64 = 4;

impl VolumeBytes {
    /// The extents from `offset` on: the length of each, and whether it is a hole. They end after `len` bytes, or where there are
    /// more than `extents_max`.
    pub(crate) async fn extents(
        &self,
        offset: u64,
        len: u32,
        extents_max: usize,
    ) -> Result<Vec<(u32, bool)>, BlockError> {
        let deadline = Instant::now() + PATIENCE;
        let end = (offset + u64::from(len)).div_ceil(CHUNK_BYTES);
        let (mut chunk, mut window) = (offset / CHUNK_BYTES, WINDOW_CHUNKS);
        let mut extents = Extents::new((offset, len), extents_max);
        while chunk < end {
            let until = end.min(chunk + window);
            for is_hole in self.holes(chunk..until, deadline).await? {
                if !extents.push(is_hole) {
                    return Ok(extents.all);
                }
            }
            chunk = until;
            window *= WINDOW_GROWTH;
        }
        Ok(extents.all)
    }

    /// For each of these chunks, true if it is a hole.
    async fn holes(&self, chunks: Range<u64>, until: Instant) -> Result<Vec<bool>, BlockError> {
        let (map, router) = (self.map(), self.running.host.router());
        let written = written_chunks(router, &map, (self.id, None), chunks, until).await;
        let written = written.map_err(|error| BlockError::of_client(&error, false))?;
        self.check_kept(map.image_number(self.id))?;
        Ok(written.into_iter().map(|written| !written).collect())
    }
}

/// The extents so far, neighbours of one kind in one.
struct Extents {
    all: Vec<(u32, bool)>,
    extents_max: usize,
    /// The first byte that has none yet.
    at: u64,
    end: u64,
}

impl Extents {
    fn new((offset, len): (u64, u32), extents_max: usize) -> Extents {
        Extents {
            all: Vec::new(),
            extents_max,
            at: offset,
            end: offset + u64::from(len),
        }
    }

    /// Adds the next chunk, or what the range has of it; false if that would be an extent too many.
    fn push(&mut self, is_hole: bool) -> bool {
        let chunk_end = (self.at / CHUNK_BYTES + 1) * CHUNK_BYTES;
        let end = chunk_end.min(self.end);
        let bytes = (end - self.at) as u32;
        let room = self.all.len() < self.extents_max;
        match self.all.last_mut() {
            Some((len, kind)) if *kind == is_hole => *len += bytes,
            _ if room => self.all.push((bytes, is_hole)),
            _ => return false,
        }
        self.at = end;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u32 = CHUNK_BYTES as u32;

    fn extents(range: (u64, u32), extents_max: usize, holes: &[bool]) -> Vec<(u32, bool)> {
        let mut extents = Extents::new(range, extents_max);
        let _ = holes.iter().all(|is_hole| extents.push(*is_hole));
        extents.all
    }

    #[test]
    fn extents_are_joined_cut_to_the_range_and_bounded() {
        let holes = [true, true, false, true];
        let whole = [(2 * CHUNK, true), (CHUNK, false), (CHUNK, true)];
        assert_eq!(extents((0, 4 * CHUNK), 9, &holes), whole);
        assert_eq!(extents((0, 4 * CHUNK), 3, &holes), whole);
        assert_eq!(extents((0, 4 * CHUNK), 2, &holes), whole[..2]);
        assert_eq!(extents((0, 4 * CHUNK), 1, &holes), whole[..1]);
        let within = (7 * CHUNK_BYTES + 100, 3 * CHUNK);
        let cut = [(2 * CHUNK - 100, true), (CHUNK, false), (100, true)];
        assert_eq!(extents(within, 9, &holes), cut);
        assert_eq!(extents((CHUNK_BYTES - 1, 1), 9, &holes[..1]), [(1, true)]);
        let largest = vec![true; 65_536];
        assert_eq!(extents((0, u32::MAX), 9, &largest), [(u32::MAX, true)]);
    }
}
