//! Ranges of a region, cut where its chunks end.

use staves_model::{Pool, PoolId, Region, with_unit};
use staves_wire::ErrorCode;
use staves_wire::service::Address;

use crate::error::ClientError;

/// Most bytes of one read or write: what a caller holds in memory anyway.
pub const TRANSFER_BYTES_MAX: u64 = 1 << 30;

/// A piece of a request that lies in one chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The offset in the region.
    pub at: u64,
    /// The region's pool.
    pub pool: PoolId,
    /// The data bucket.
    pub to: Address,
    /// The offset in the bucket.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
}

/// The pieces of these ranges of a region, in order.
///
/// # Errors
/// A range is empty, ends beyond the region, or all of them are more than one request may have.
pub fn pieces(
    pool: &Pool,
    region: &Region,
    ranges: &[(u64, u64)],
) -> Result<Vec<Piece>, ClientError> {
    let total = ranges
        .iter()
        .try_fold(0u64, |sum, (_, len)| sum.checked_add(*len));
    if total.is_none_or(|total| total > TRANSFER_BYTES_MAX) {
        let most = with_unit(TRANSFER_BYTES_MAX);
        let text = format!("one request takes at most {most}: make several");
        return Err(ClientError::of(ErrorCode::TooLarge, text));
    }
    let mut pieces = Vec::new();
    for (offset, len) in ranges {
        check_range(region, *offset, *len)?;
        let (mut at, end) = (*offset, offset + len);
        while at < end {
            let place = region.place(at, pool.scheme.m).ok_or_else(|| {
                let at = with_unit(at);
                wrong(format!(
                    "region '{}' has no group for offset {at}",
                    region.name
                ))
            })?;
            let part = place.left.min(end - at);
            pieces.push(Piece {
                at,
                pool: pool.id,
                to: Address::Bucket(place.group, place.slot),
                offset: place.offset,
                len: part as usize,
            });
            at += part;
        }
    }
    Ok(pieces)
}

/// Checks that a range lies in a region.
pub(crate) fn check_range(region: &Region, offset: u64, len: u64) -> Result<(), ClientError> {
    let (name, size) = (&region.name, with_unit(region.size_bytes));
    let (at, count) = (with_unit(offset), with_unit(len));
    if len == 0 {
        return Err(wrong(format!(
            "0 bytes at offset {at} of region '{name}': give at least one"
        )));
    }
    if offset
        .checked_add(len)
        .is_none_or(|end| end > region.size_bytes)
    {
        return Err(wrong(format!(
            "region '{name}' ends at {size}: there are no {count} at offset {at}; let it grow with 'staves memory grow'"
        )));
    }
    Ok(())
}

/// A request that no map could take.
pub(crate) fn wrong(text: impl Into<String>) -> ClientError {
    ClientError::of(ErrorCode::Malformed, text)
}
