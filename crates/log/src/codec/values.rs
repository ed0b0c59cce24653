//! The encoding of ids, bindings, projections and records of logs.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use staves_model::{GroupId, Incarnation, NodeId};
use staves_wire::DecodeError;

use super::{Field, Item, need, unknown};
use crate::message::{
    AppendCondition, NAMES_MAX, ParkedAppend, SEALED_ITEMS_MAX, SealCursor, SealedItem, TermStart,
};
use crate::retention::{CURSORS_MAX, LogCursors, LogRetention, WhenFull};
use crate::types::{
    AppendId, AppendMode, BACK_POINTERS, BATCH_RECORDS_MAX, Binding, Leadership, LogId, LogOptions,
    LogRecord, LogView, NAME_BYTES_MAX, PAGE_POSITIONS_MAX, PageEntry, PageRun, Projection,
    ProjectionSegment, RecordHead, SEGMENT_UNITS_MAX, SEGMENTS_MAX, SequencerId, SessionId,
    TAGS_MAX, TagLink, Term,
};

/// A struct: its fields in order.
macro_rules! structs {
    ($($type:ident $(<$d:ident>)? { $($field:ident),* $(,)? })*) => {$(
        impl $(<$d: Field>)? Field for $type $(<$d>)? {
            fn put(&self, out: &mut BytesMut) {
                $(self.$field.put(out);)*
            }
            fn take(from: &mut Bytes) -> Result<Self, DecodeError> {
                $(let $field = Field::take(from)?;)*
                Ok($type { $($field),* })
            }
        }
    )*};
}
pub(super) use structs;

/// An enum: its tag, and the fields of the variant.
macro_rules! enums {
    ($($type:ident $(<$d:ident>)? as $what:literal {
        $($tag:literal => $variant:ident $({ $($field:ident),* $(,)? })? $(($one:ident))?,)*
    })*) => {$(
        impl $(<$d: Field>)? Field for $type $(<$d>)? {
            fn put(&self, out: &mut BytesMut) {
                match self {
                    $($type::$variant $({ $($field),* })? $(($one))? => {
                        out.put_u8($tag);
                        $($($field.put(out);)*)?
                        $($one.put(out);)?
                    })*
                }
            }
            fn take(from: &mut Bytes) -> Result<Self, DecodeError> {
                Ok(match u8::take(from)? {
                    $($tag => {
                        $($(let $field = Field::take(from)?;)*)?
                        $(let $one = Field::take(from)?;)?
                        $type::$variant $({ $($field),* })? $(($one))?
                    })*
                    tag => return Err(unknown($what, tag)),
                })
            }
        }
    )*};
}
pub(super) use enums;

macro_rules! newtypes {
    ($($type:ident)*) => {$(
        impl Field for $type {
            fn put(&self, out: &mut BytesMut) {
                self.0.put(out);
            }
            fn take(from: &mut Bytes) -> Result<$type, DecodeError> {
                Field::take(from).map($type)
            }
        }
    )*};
}

newtypes! { LogId Term GroupId NodeId Incarnation }

macro_rules! items {
    ($($type:ty, $list:literal, $max:expr;)*) => {$(
        impl Item for $type {
            const LIST: &'static str = $list;
            const MAX: usize = $max;
        }
    )*};
}

items! {
    u32, "the records of an append", BATCH_RECORDS_MAX as usize;
    u64, "tags or positions of a tag", if TAGS_MAX > BACK_POINTERS { TAGS_MAX } else { BACK_POINTERS };
    TagLink, "the tags of a record", TAGS_MAX;
    PageRun, "the runs of a map page", PAGE_POSITIONS_MAX as usize;
    SealedItem, "the items of a sealed unit", SEALED_ITEMS_MAX;
    GroupId, "the units of a log", SEGMENT_UNITS_MAX;
    ProjectionSegment, "the segments of a projection", SEGMENTS_MAX;
    String, "names of logs", NAMES_MAX as usize;
}

impl Field for String {
    fn put(&self, out: &mut BytesMut) {
        out.put_u32_le(self.len() as u32);
        out.put_slice(self.as_bytes());
    }

    fn take(from: &mut Bytes) -> Result<String, DecodeError> {
        let (what, max) = ("the name of a log", NAME_BYTES_MAX);
        need(from, what, 4)?;
        let len = from.get_u32_le() as usize;
        if len > max {
            return Err(DecodeError::TooMany { what, len, max });
        }
        need(from, what, len)?;
        let text = from.split_to(len);
        let text = std::str::from_utf8(&text).map_err(|_| DecodeError::Invalid {
            what,
            reason: "it is UTF-8",
        })?;
        Ok(text.to_owned())
    }
}

impl Field for LogCursors {
    fn put(&self, out: &mut BytesMut) {
        out.put_u32_le(self.len() as u32);
        for (cursor, position) in self {
            cursor.put(out);
            position.put(out);
        }
    }

    fn take(from: &mut Bytes) -> Result<LogCursors, DecodeError> {
        let (what, max) = ("the cursors of a log", CURSORS_MAX);
        let len = u32::take(from)? as usize;
        if len > max {
            return Err(DecodeError::TooMany { what, len, max });
        }
        (0..len).map(|_| Field::take(from)).collect()
    }
}

impl Field for Arc<Projection> {
    fn put(&self, out: &mut BytesMut) {
        self.segments.put(out);
    }

    fn take(from: &mut Bytes) -> Result<Arc<Projection>, DecodeError> {
        let segments: Vec<ProjectionSegment> = Field::take(from)?;
        let ascend = segments
            .windows(2)
            .all(|pair| pair[0].first < pair[1].first);
        if !ascend || segments.iter().any(|segment| segment.units.is_empty()) {
            return Err(DecodeError::Invalid {
                what: "a projection",
                reason: "its segments ascend and have units",
            });
        }
        Ok(Arc::new(Projection { segments }))
    }
}

structs! {
    SessionId { term, count }
    AppendId { session, seq }
    SequencerId { node, incarnation }
    TermStart { term, start, sequencer }
    TagLink { tag, back }
    Binding { position, count, id, links }
    RecordHead { id, index, count, links }
    PageRun { count, entry }
    ProjectionSegment { first, units }
    LogOptions { mode, page_positions, hole_us, read_hole_us }
    LogView { log, options, term, sequencer, start, projection, trim }
    Leadership { term, sequencer, added }
    LogRetention { records, bytes, seconds, when_full }
    LogRecord { name, view, lead, cursors, retention }
    AppendCondition { tag, tail }
    ParkedAppend<D> { id, low, count, tags, condition, sequencer, data }
}

enums! {
    WhenFull as "the use of old records" {
        0 => Keep,
        1 => Discard,
        2 => Refuse,
    }
    AppendMode as "the way of an append" {
        0 => Bind,
        1 => Predict,
        2 => Corfu,
    }
    PageEntry as "an entry of a map page" {
        0 => Unit(unit),
        1 => Junk,
        2 => Trimmed,
    }
    SealCursor as "a place among a sealed unit's items" {
        0 => Ids(id),
        1 => Lows(session),
        2 => Tags(tag),
        3 => Claims(position),
    }
    SealedItem as "an item of a sealed unit" {
        0 => Id { id, position, count },
        1 => Low { session, low },
        2 => Tag { tag, positions },
        3 => Claim { position, count },
    }
}
