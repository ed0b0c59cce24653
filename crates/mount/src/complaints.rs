//! Errors in the log, but no more than one line of a kind each second: a reader that meets an error meets it often.

use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::files::FileError;

const EACH: Duration = Duration::from_secs(1);

/// Since when, and how many of that kind were not logged.
type Kept = Option<(Instant, u64)>;

/// The recent complaints, by kind.
#[derive(Debug, Default)]
pub struct Complaints(Mutex<[Kept; 4]>);

impl Complaints {
    /// Logs an error, or counts it.
    pub fn log(&self, path: &Path, error: &FileError) {
        if let Some(unsaid) = self.take(Instant::now(), error) {
            tracing::warn!(path = %path.display(), unsaid, "{error}");
        }
    }

    /// Returns the number of suppressed complaints of its kind if this one should be logged.
    fn take(&self, now: Instant, error: &FileError) -> Option<u64> {
        let kind = match error {
            FileError::NotFound => return None,
            FileError::Stale(_) => 0,
            FileError::TimedOut(_) => 1,
            FileError::Denied(_) => 2,
            FileError::Io(_) => 3,
        };
        let kept = &mut self.0.lock()[kind];
        match kept {
            Some((since, unsaid)) if now < *since + EACH => {
                *unsaid += 1;
                None
            }
            _ => Some(kept.replace((now, 0)).map_or(0, |(_, unsaid)| unsaid)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_of_each_kind_and_none_is_uncounted() {
        let complaints = Complaints::default();
        let now = Instant::now();
        let (io, late) = (FileError::Io("a".into()), FileError::TimedOut("b".into()));
        assert_eq!(complaints.take(now, &io), Some(0));
        for i in 0..5 {
            assert_eq!(complaints.take(now + EACH * i / 6, &io), None);
        }
        assert_eq!(complaints.take(now, &late), Some(0), "another kind");
        assert_eq!(complaints.take(now + EACH, &io), Some(5));
        assert_eq!(complaints.take(now + EACH * 3, &io), Some(0));
        assert_eq!(complaints.take(now, &FileError::NotFound), None);
    }
}
