//! The encoding of values as bytes: the few rules that every message follows.
//!
//! Integers are little-endian and of fixed width. A `bool` or an `Option` is one byte, 0 or 1, the
//! latter followed by the value. Bytes, texts and lists carry a 32-bit length or count, which may be
//! zero. A struct is its fields in order, an enum one tag byte and then its fields. Nothing is
//! aligned, nothing is padded, and every value has exactly one encoding. Behind a message's last field
//! may come fields of a newer version: they are skipped (docs/PROTOCOL.md has the rules).
//!
//! Decoding trusts nothing: each length is compared with what is left before anything is allocated, and
//! a list never reserves more memory than the bytes that are left take up already.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use staves_model::change::GROUPS_MAX;
use staves_model::{
    ClientId, ClusterId, DiskId, Epoch, Group, GroupId, HASH_SLOTS, HashSlot, Incarnation, K_MAX,
    Label, M_MAX, MemberSlot, NodeId, Pool, PoolId, Revision, ServiceId, Time, slots_max,
};
use std::sync::Arc;

/// Most bytes of a text.
pub const TEXT_BYTES_MAX: usize = 64 << 10;

/// The reason why bytes are not the message that their header names.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end too early.
    #[error("{what} needs {needed} bytes and {left} are left")]
    Truncated {
        /// The thing that was being read.
        what: &'static str,
        /// The bytes that it takes.
        needed: usize,
        /// The bytes that there are.
        left: usize,
    },
    /// A tag that names nothing.
    #[error("{what} has the tag {tag}, which this version does not know")]
    Tag {
        /// The thing that was being read.
        what: &'static str,
        /// The tag.
        tag: u64,
    },
    /// More than there may be.
    #[error("{what} has {len}, and at most {max} are allowed")]
    TooMany {
        /// The thing that was being read.
        what: &'static str,
        /// Its count or length.
        len: usize,
        /// The bound.
        max: usize,
    },
    /// A value that breaks a rule of its type.
    #[error("{what}: {reason}")]
    Invalid {
        /// The thing that was being read.
        what: &'static str,
        /// The rule.
        reason: &'static str,
    },
    /// Bytes after the message's end.
    #[error("{left} bytes are left after the end")]
    Trailing {
        /// Their number.
        left: usize,
    },
}

/// Bytes being decoded.
pub(crate) struct Reader(Bytes);

impl Reader {
    /// Reads from the start.
    pub(crate) fn new(bytes: Bytes) -> Reader {
        Reader(bytes)
    }

    /// The number of bytes left.
    pub(crate) fn left(&self) -> usize {
        self.0.len()
    }

    fn need(&self, what: &'static str, needed: usize) -> Result<(), DecodeError> {
        let left = self.left();
        if left < needed {
            Err(DecodeError::Truncated { what, needed, left })
        } else {
            Ok(())
        }
    }

    /// The next `len` bytes, not copied. None at all hold on to no memory, wherever they stand: `split_to` gives the rest away with all
    /// that it shares.
    pub(crate) fn slice(&mut self, what: &'static str, len: usize) -> Result<Bytes, DecodeError> {
        self.need(what, len)?;
        if len == 0 {
            return Ok(Bytes::new());
        }
        Ok(self.0.split_to(len))
    }

    /// Copies the next bytes without taking them; zeroes past the end.
    pub(crate) fn peek(&self, into: &mut [u8]) {
        let len = into.len().min(self.left());
        into[..len].copy_from_slice(&self.0[..len]);
    }

    /// That nothing is left.
    pub(crate) fn end(self) -> Result<(), DecodeError> {
        match self.left() {
            0 => Ok(()),
            left => Err(DecodeError::Trailing { left }),
        }
    }
}

/// A value with one encoding. Every value takes up at least one byte.
pub(crate) trait Wire: Sized {
    /// Appends it.
    fn put(&self, out: &mut BytesMut);
    /// Takes it off the front.
    fn take(from: &mut Reader) -> Result<Self, DecodeError>;
}

/// A message's body: its fields, and behind them perhaps those of a newer version, which are skipped.
pub(crate) fn decode_front<T: Wire>(bytes: Bytes) -> Result<T, DecodeError> {
    T::take(&mut Reader::new(bytes))
}

/// One value and nothing after it.
pub(crate) fn decode_whole<T: Wire>(bytes: Bytes) -> Result<T, DecodeError> {
    let mut from = Reader::new(bytes);
    let value = T::take(&mut from)?;
    from.end()?;
    Ok(value)
}

/// A length or count as it goes on the wire.
pub(crate) fn put_len(len: usize, out: &mut BytesMut) {
    let len = u32::try_from(len)
        .expect("a field is part of a message, and no message comes near 4 GiB (VALUE_BYTES_MAX)");
    out.put_u32_le(len);
}

/// The number of a list's items, each of which takes up a byte at the least.
pub(crate) fn take_count(from: &mut Reader) -> Result<usize, DecodeError> {
    let count = take_len("the length of a list", from)?;
    from.need("a list", count)?;
    Ok(count)
}

fn take_len(what: &'static str, from: &mut Reader) -> Result<usize, DecodeError> {
    from.need(what, 4)?;
    Ok(from.0.get_u32_le() as usize)
}

macro_rules! integer {
    ($($type:ty, $put:ident, $get:ident;)*) => {$(
        impl Wire for $type {
            #[inline]
            fn put(&self, out: &mut BytesMut) {
                out.$put(*self);
            }
            #[inline]
            fn take(from: &mut Reader) -> Result<$type, DecodeError> {
                from.need(stringify!($type), size_of::<$type>())?;
                Ok(from.0.$get())
            }
        }
    )*};
}

integer! {
    u8, put_u8, get_u8;
    u16, put_u16_le, get_u16_le;
    u32, put_u32_le, get_u32_le;
    u64, put_u64_le, get_u64_le;
    i64, put_i64_le, get_i64_le;
}

macro_rules! newtype {
    ($($name:ident;)*) => {$(
        impl Wire for $name {
            #[inline]
            fn put(&self, out: &mut BytesMut) {
                self.0.put(out);
            }
            #[inline]
            fn take(from: &mut Reader) -> Result<$name, DecodeError> {
                Wire::take(from).map($name)
            }
        }
    )*};
}

newtype! {
    ClientId; ClusterId; DiskId; Epoch; GroupId; Incarnation; MemberSlot; NodeId; PoolId; Revision;
    ServiceId; Time;
}

impl Wire for HashSlot {
    fn put(&self, out: &mut BytesMut) {
        self.0.put(out);
    }

    fn take(from: &mut Reader) -> Result<HashSlot, DecodeError> {
        match u16::take(from)? {
            slot if slot < HASH_SLOTS => Ok(HashSlot(slot)),
            _ => Err(DecodeError::Invalid {
                what: "hash slot",
                reason: "there are 16,384 of them, from 0",
            }),
        }
    }
}

impl Wire for bool {
    fn put(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(*self));
    }

    fn take(from: &mut Reader) -> Result<bool, DecodeError> {
        match u8::take(from)? {
            0 => Ok(false),
            1 => Ok(true),
            tag => Err(DecodeError::Tag {
                what: "a yes or no",
                tag: u64::from(tag),
            }),
        }
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut BytesMut) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(from: &mut Reader) -> Result<Option<T>, DecodeError> {
        if bool::take(from)? {
            T::take(from).map(Some)
        } else {
            Ok(None)
        }
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, out: &mut BytesMut) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(from: &mut Reader) -> Result<(A, B), DecodeError> {
        Ok((A::take(from)?, B::take(from)?))
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut BytesMut) {
        put_len(self.len(), out);
        for item in self {
            item.put(out);
        }
    }

    fn take(from: &mut Reader) -> Result<Vec<T>, DecodeError> {
        let count = take_count(from)?;
        let mut items = Vec::with_capacity(count.min(from.left() / size_of::<T>().max(1)));
        for _ in 0..count {
            items.push(T::take(from)?);
        }
        Ok(items)
    }
}

impl Wire for Bytes {
    fn put(&self, out: &mut BytesMut) {
        put_len(self.len(), out);
        out.extend_from_slice(self);
    }

    fn take(from: &mut Reader) -> Result<Bytes, DecodeError> {
        let len = take_len("the length of a byte string", from)?;
        from.slice("a byte string", len)
    }
}

/// Every byte by itself, for [`take_kept`].
static SINGLE: [u8; 256] = {
    let mut all = [0; 256];
    let mut i = 0;
    while i < 256 {
        all[i] = i as u8;
        i += 1;
    }
    all
};

/// Bytes that are kept long (answers in request tables) are copied, so that they do not hold on to
/// the frame that they came in; the shortest without an allocation.
pub(crate) fn take_kept(from: &mut Reader) -> Result<Bytes, DecodeError> {
    let bytes: Bytes = Wire::take(from)?;
    Ok(match *bytes {
        [] => Bytes::new(),
        [one] => Bytes::from_static(&SINGLE[usize::from(one)..][..1]),
        _ => Bytes::copy_from_slice(&bytes),
    })
}

impl Wire for String {
    fn put(&self, out: &mut BytesMut) {
        put_len(self.len(), out);
        out.extend_from_slice(self.as_bytes());
    }

    fn take(from: &mut Reader) -> Result<String, DecodeError> {
        let len = take_len("the length of a text", from)?;
        if len > TEXT_BYTES_MAX {
            return Err(DecodeError::TooMany {
                what: "a text's bytes",
                len,
                max: TEXT_BYTES_MAX,
            });
        }
        let bytes = from.slice("a text", len)?;
        match std::str::from_utf8(&bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(DecodeError::Invalid {
                what: "a text",
                reason: "it is not UTF-8",
            }),
        }
    }
}

/// A group's entry of the map travels as the map does, in postcard, inside a byte string: it is rare
/// and belongs to the model.
impl Wire for Arc<Group> {
    fn put(&self, out: &mut BytesMut) {
        let bytes = postcard::to_allocvec(&**self)
            .expect("a Group is plain data: postcard writes it to memory without fail");
        Bytes::from(bytes).put(out);
    }

    fn take(from: &mut Reader) -> Result<Arc<Group>, DecodeError> {
        let wrong = |reason| DecodeError::Invalid {
            what: "a group's map entry",
            reason,
        };
        let bytes: Bytes = Wire::take(from)?;
        let (group, rest) = postcard::take_from_bytes::<Group>(&bytes)
            .map_err(|_| wrong("its bytes do not decode"))?;
        if !rest.is_empty() {
            return Err(wrong("bytes are left after its end"));
        }
        check_group(&group).map_err(wrong)?;
        Ok(Arc::new(group))
    }
}

/// Checks the rules that indexing into a group relies on.
pub(crate) fn check_group(group: &Group) -> Result<(), &'static str> {
    if group.m == 0 || group.m > M_MAX {
        return Err("m is out of range");
    }
    let width_max = slots_max(group.m);
    if group.members.len() < usize::from(group.m) || group.members.len() > width_max {
        return Err("its number of members is out of range");
    }
    if group.kept.len() != group.members.len() || group.last_open.members.len() > width_max {
        return Err("its member lists do not fit each other");
    }
    if group.coordinator.index() >= group.members.len() {
        return Err("its coordinator is not a member");
    }
    // Once the epoch is open, it is itself the last open one, and `kept` tells of the one before, which
    // may have been wider.
    let mut kept = group.kept.iter().flatten();
    if !group.open && kept.any(|slot| slot.index() >= group.last_open.members.len()) {
        return Err("it retains a member that the last open epoch did not have");
    }
    Ok(())
}

/// Checks the rules that looking for bytes in a pool relies on.
pub(crate) fn check_pool(pool: &Pool) -> Result<(), &'static str> {
    let scheme = pool.scheme;
    if scheme.m == 0 || scheme.m > M_MAX || scheme.k > K_MAX {
        return Err("a pool's scheme is out of range");
    }
    if pool.holdings().is_some_and(|h| h.buckets.is_empty()) {
        return Err("a files pool has no buckets");
    }
    for region in pool.regions() {
        // Images have groups that others have: each region by itself.
        let mut groups = GROUPS_MAX as u32;
        for stretch in &region.stretches {
            let left = groups.checked_sub(stretch.count);
            groups = left.ok_or("a region has more groups than there may be")?;
            if stretch.first.0.checked_add(stretch.count).is_none() {
                return Err("a region's groups have no numbers");
            }
        }
    }
    Ok(())
}

/// A struct: its fields in order. Fields in brackets travel in the frame's header instead. A field is decoded
/// by the function behind it, if there is one; the function behind the struct checks the whole.
macro_rules! wire_struct {
    ($name:ident { $($fields:tt)* } $($check:ident)?) => {
        wire_struct!($name [] { $($fields)* } $($check)?);
    };
    ($name:ident [$($header:ident),*] { $($field:ident $(: $take:path)?),* $(,)? } $($check:ident)?) => {
        impl crate::codec::Wire for $name {
            fn put(&self, out: &mut bytes::BytesMut) {
                $(crate::codec::Wire::put(&self.$field, out);)*
            }
            fn take(
                from: &mut crate::codec::Reader,
            ) -> Result<$name, crate::codec::DecodeError> {
                let whole = $name {
                    $($header: Default::default(),)*
                    $($field: wire_struct!(@take from $($take)?),)*
                };
                $($check(&whole)?;)?
                Ok(whole)
            }
        }
    };
    (@take $from:ident $take:path) => { $take($from)? };
    (@take $from:ident) => { crate::codec::Wire::take($from)? };
}

/// An enum: a tag byte, then the variant's fields in order.
macro_rules! wire_enum {
    ($name:ident {
        $($tag:literal => $variant:ident $({ $($field:ident),* $(,)? })? $(( $($inner:ident),* ))?),* $(,)?
    }) => {
        impl crate::codec::Wire for $name {
            fn put(&self, out: &mut bytes::BytesMut) {
                match self {$(
                    $name::$variant $({ $($field),* })? $(( $($inner),* ))? => {
                        bytes::BufMut::put_u8(out, $tag);
                        $($(crate::codec::Wire::put($field, out);)*)?
                        $($(crate::codec::Wire::put($inner, out);)*)?
                    }
                )*}
            }
            fn take(
                from: &mut crate::codec::Reader,
            ) -> Result<$name, crate::codec::DecodeError> {
                match <u8 as crate::codec::Wire>::take(from)? {
                    $($tag => {
                        $($(let $field = crate::codec::Wire::take(from)?;)*)?
                        $($(let $inner = crate::codec::Wire::take(from)?;)*)?
                        Ok($name::$variant $({ $($field),* })? $(( $($inner),* ))?)
                    })*
                    tag => Err(crate::codec::DecodeError::Tag {
                        what: stringify!($name),
                        tag: u64::from(tag),
                    }),
                }
            }
        }
    };
}

pub(crate) use {wire_enum, wire_struct};

wire_struct!(Label { epoch, seq });
