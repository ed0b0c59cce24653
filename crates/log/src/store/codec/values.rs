//! The bytes of names, terms, records of logs and entries.

use std::sync::Arc;

use staves_model::{GroupId, Incarnation, NodeId};

use super::{CodeError, CodeReader, CodeWriter, Coded, coded};
use crate::entry::Entry;
use crate::retention::{LogRetention, WhenFull};
use crate::types::{
    AppendId, AppendMode, DataPlace, Leadership, LogId, LogOptions, LogRecord, LogView, PageEntry,
    PageRun, Projection, ProjectionSegment, SequencerId, SessionId, TagLink, Term,
};

macro_rules! coded_newtype {
    ($($name:ident),*) => {$(
        impl Coded for $name {
            fn put(&self, out: &mut CodeWriter) {
                self.0.put(out);
            }
            fn take(from: &mut CodeReader<'_>) -> Result<$name, CodeError> {
                Coded::take(from).map($name)
            }
        }
    )*};
}

coded_newtype!(GroupId, Incarnation, NodeId, LogId, Term);

impl Coded for Arc<Projection> {
    fn put(&self, out: &mut CodeWriter) {
        self.segments.put(out);
    }

    fn take(from: &mut CodeReader<'_>) -> Result<Arc<Projection>, CodeError> {
        let segments = Coded::take(from)?;
        Ok(Arc::new(Projection { segments }))
    }
}

coded!(struct SessionId, SessionId { term, count });
coded!(struct AppendId, AppendId { session, seq });
coded!(struct SequencerId, SequencerId { node, incarnation });
coded!(enum AppendMode, AppendMode, "way of appends" {
    0 => Bind,
    1 => Predict,
    2 => Corfu,
});
coded!(struct LogOptions, LogOptions { mode, page_positions, hole_us, read_hole_us });
coded!(struct ProjectionSegment, ProjectionSegment { first, units });
coded!(struct LogView, LogView { log, options, term, sequencer, start, projection, trim });
coded!(struct Leadership, Leadership { term, sequencer, added });
coded!(enum WhenFull, WhenFull, "use of old records" {
    0 => Keep,
    1 => Discard,
    2 => Refuse,
});
coded!(struct LogRetention, LogRetention { records, bytes, seconds, when_full });
coded!(struct LogRecord, LogRecord { name, view, lead, cursors, retention });
coded!(struct TagLink, TagLink { tag, back });
coded!(struct DataPlace, DataPlace { at, bytes });
coded!(enum PageEntry, PageEntry, "entry of a map page" {
    0 => Unit(unit),
    1 => Junk,
    2 => Trimmed,
});
coded!(struct PageRun, PageRun { count, entry });
coded!(enum Entry, Entry, "entry of a unit" {
    1 => Seal { log, term, options },
    2 => Start { log, start },
    3 => Commit { log, position, id, low, links, places },
    4 => Junk { log, position, count },
    5 => Trim { log, position },
    6 => Punch { log, position },
    7 => Page { log, page, runs },
    8 => Prefix { log, position },
    9 => Forget { log },
    10 => Create { name, log, options },
    11 => Lead { name, term, sequencer, added },
    12 => Open { name, term, start },
    13 => RecordTrim { name, position },
    14 => Delete { name },
    15 => Cursor { name, cursor, position },
    16 => Retention { name, retention },
    17 => Floor { log, session },
});
