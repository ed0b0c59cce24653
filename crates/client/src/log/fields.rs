//! Fields of the records that the library's own structures keep in streams: little-endian, lengths of 32 bits. A field that is not there is
//! none.

use bytes::{Buf, BufMut, Bytes, BytesMut};

pub(super) fn put(out: &mut BytesMut, bytes: &[u8]) {
    out.put_u32_le(bytes.len() as u32);
    out.extend_from_slice(bytes);
}

pub(super) fn take_byte(from: &mut Bytes) -> Option<u8> {
    (!from.is_empty()).then(|| from.get_u8())
}

pub(super) fn take_u32(from: &mut Bytes) -> Option<u32> {
    (from.len() >= 4).then(|| from.get_u32_le())
}

pub(super) fn take_u64(from: &mut Bytes) -> Option<u64> {
    (from.len() >= 8).then(|| from.get_u64_le())
}

pub(super) fn take_array<const N: usize>(from: &mut Bytes) -> Option<[u8; N]> {
    let found = from.get(..N)?.try_into().ok()?;
    from.advance(N);
    Some(found)
}

pub(super) fn take(from: &mut Bytes) -> Option<Bytes> {
    let len = take_u32(from)? as usize;
    (from.len() >= len).then(|| from.split_to(len))
}
