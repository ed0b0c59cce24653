//! The bytes of entries in a unit's pages: little-endian numbers, one behind the other. Messages have an encoding of their own, with bounds that pages do not know.
//!
//! Everything is checked as it is read.

mod values;

use std::collections::BTreeMap;

/// Bytes that are none of the log's values.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the bytes are no {0}")]
pub(crate) struct CodeError(pub &'static str);

/// A value that is written.
#[derive(Clone, Default, Debug)]
pub(crate) struct CodeWriter {
    pub head: Vec<u8>,
}

/// A value that is read.
pub(crate) struct CodeReader<'a> {
    rest: &'a [u8],
}

impl<'a> CodeReader<'a> {
    fn bytes(&mut self, what: &'static str, len: usize) -> Result<&'a [u8], CodeError> {
        let (part, rest) = self.rest.split_at_checked(len).ok_or(CodeError(what))?;
        self.rest = rest;
        Ok(part)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], CodeError> {
        let part = self.bytes(what, N)?;
        part.try_into().map_err(|_| CodeError(what))
    }

    /// The number of things that follow, of a byte each at the least.
    fn count(&mut self, what: &'static str) -> Result<usize, CodeError> {
        let count = u32::take(self)? as usize;
        match count <= self.rest.len() {
            true => Ok(count),
            false => Err(CodeError(what)),
        }
    }
}

/// A value with bytes.
pub(crate) trait Coded: Sized {
    /// Appends it.
    fn put(&self, out: &mut CodeWriter);
    /// Reads it.
    ///
    /// # Errors
    /// The bytes are none.
    fn take(from: &mut CodeReader<'_>) -> Result<Self, CodeError>;
}

/// The value that is all of some bytes.
pub(crate) fn decode<T: Coded>(head: &[u8]) -> Result<T, CodeError> {
    let mut from = CodeReader { rest: head };
    let value = T::take(&mut from)?;
    match from.rest.is_empty() {
        true => Ok(value),
        false => Err(CodeError("value of the log, but more than one")),
    }
}

/// The bytes of a value.
pub(crate) fn encode<T: Coded>(value: &T) -> CodeWriter {
    let mut out = CodeWriter::default();
    value.put(&mut out);
    out
}

macro_rules! coded_number {
    ($($type:ty),*) => {$(
        impl Coded for $type {
            fn put(&self, out: &mut CodeWriter) {
                out.head.extend_from_slice(&self.to_le_bytes());
            }
            fn take(from: &mut CodeReader<'_>) -> Result<$type, CodeError> {
                Ok(<$type>::from_le_bytes(from.array(stringify!($type))?))
            }
        }
    )*};
}

coded_number!(u8, u32, u64);

impl Coded for bool {
    fn put(&self, out: &mut CodeWriter) {
        u8::from(*self).put(out);
    }

    fn take(from: &mut CodeReader<'_>) -> Result<bool, CodeError> {
        match u8::take(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(CodeError("yes or no")),
        }
    }
}

impl Coded for String {
    fn put(&self, out: &mut CodeWriter) {
        (self.len() as u32).put(out);
        out.head.extend_from_slice(self.as_bytes());
    }

    fn take(from: &mut CodeReader<'_>) -> Result<String, CodeError> {
        let len = from.count("text")?;
        let text = std::str::from_utf8(from.bytes("text", len)?);
        text.map(str::to_owned).map_err(|_| CodeError("text"))
    }
}

impl<T: Coded> Coded for Option<T> {
    fn put(&self, out: &mut CodeWriter) {
        self.is_some().put(out);
        self.iter().for_each(|value| value.put(out));
    }

    fn take(from: &mut CodeReader<'_>) -> Result<Option<T>, CodeError> {
        match bool::take(from)? {
            true => T::take(from).map(Some),
            false => Ok(None),
        }
    }
}

impl<T: Coded> Coded for Box<T> {
    fn put(&self, out: &mut CodeWriter) {
        self.as_ref().put(out);
    }

    fn take(from: &mut CodeReader<'_>) -> Result<Box<T>, CodeError> {
        T::take(from).map(Box::new)
    }
}

impl<A: Coded, B: Coded> Coded for (A, B) {
    fn put(&self, out: &mut CodeWriter) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(from: &mut CodeReader<'_>) -> Result<(A, B), CodeError> {
        Ok((A::take(from)?, B::take(from)?))
    }
}

impl<T: Coded> Coded for Vec<T> {
    fn put(&self, out: &mut CodeWriter) {
        (self.len() as u32).put(out);
        self.iter().for_each(|value| value.put(out));
    }

    fn take(from: &mut CodeReader<'_>) -> Result<Vec<T>, CodeError> {
        // No memory is taken for what is only announced.
        let count = from.count("list")?;
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(T::take(from)?);
        }
        Ok(all)
    }
}

impl<K: Coded + Ord, V: Coded> Coded for BTreeMap<K, V> {
    fn put(&self, out: &mut CodeWriter) {
        (self.len() as u32).put(out);
        for (key, value) in self {
            key.put(out);
            value.put(out);
        }
    }

    fn take(from: &mut CodeReader<'_>) -> Result<BTreeMap<K, V>, CodeError> {
        let count = from.count("list")?;
        let mut all = BTreeMap::new();
        for _ in 0..count {
            all.insert(K::take(from)?, V::take(from)?);
        }
        Ok(all)
    }
}

/// The codes of a struct, or of an enum with a number for each variant.
macro_rules! coded {
    (struct $name:ty, $path:ident { $($field:ident),* }) => {
        impl $crate::store::codec::Coded for $name {
            fn put(&self, out: &mut $crate::store::codec::CodeWriter) {
                $(self.$field.put(out);)*
            }
            fn take(
                from: &mut $crate::store::codec::CodeReader<'_>,
            ) -> Result<$name, $crate::store::codec::CodeError> {
                Ok($path { $($field: $crate::store::codec::Coded::take(from)?),* })
            }
        }
    };
    (enum $name:ty, $path:ident, $what:literal {
        $($tag:literal => $variant:ident $({ $($field:ident),* })? $(( $($part:ident),* ))?,)*
    }) => {
        impl $crate::store::codec::Coded for $name {
            fn put(&self, out: &mut $crate::store::codec::CodeWriter) {
                match self {
                    $($path::$variant $({ $($field),* })? $(( $($part),* ))? => {
                        out.head.push($tag);
                        $($($field.put(out);)*)?
                        $($($part.put(out);)*)?
                    })*
                }
            }
            fn take(
                from: &mut $crate::store::codec::CodeReader<'_>,
            ) -> Result<$name, $crate::store::codec::CodeError> {
                match u8::take(from)? {
                    $($tag => {
                        $($(let $field = $crate::store::codec::Coded::take(from)?;)*)?
                        $($(let $part = $crate::store::codec::Coded::take(from)?;)*)?
                        Ok($path::$variant $({ $($field),* })? $(( $($part),* ))?)
                    })*
                    _ => Err($crate::store::codec::CodeError($what)),
                }
            }
        }
    };
}

pub(crate) use coded;
