//! Names that hold every thread that asks for them: a dead file server that is mounted somewhere below a folder, say, while the rest of the folder
//! answers. Each such name may hold the threads that were at it when it began to, and no more: or all would be gone after a while.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::workers::SILENCE;
use crate::source::SourceError;

/// Bytes on a slow line may take as long: see `folder/workers.rs`.
const READ: Duration = Duration::from_secs(30);

/// A question about a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    Stat,
    List,
    Read,
}

/// The questions under way: as many as there are threads.
#[derive(Clone, Debug, Default)]
pub struct Held(Arc<Mutex<Vec<Entry>>>);

#[derive(Debug)]
struct Entry {
    number: u64,
    asked: Asked,
    path: Vec<u8>,
    since: Instant,
}

/// One thread is at it, until this is dropped.
#[derive(Debug)]
pub struct At {
    held: Held,
    number: u64,
}

impl Held {
    /// Somebody begins to ask.
    pub fn enter(&self, asked: Asked, path: &[u8]) -> At {
        let mut all = self.0.lock();
        let number = all.last().map_or(0, |last| last.number + 1);
        all.push(Entry {
            number,
            asked,
            path: path.to_owned(),
            since: Instant::now(),
        });
        At {
            held: self.clone(),
            number,
        }
    }

    /// Refuses what holds somebody for long already, and what lies below that.
    pub fn refuse(&self, place: &str, asked: Asked, path: &[u8]) -> Result<(), SourceError> {
        let all = self.0.lock();
        let late = all.iter().filter(|entry| {
            let most = match entry.asked {
                Asked::Read => READ,
                Asked::Stat | Asked::List => SILENCE,
            };
            entry.since.elapsed() >= most
        });
        let mut of_this = late.filter(|entry| match path.strip_prefix(&*entry.path) {
            // A list of the folder may be held by one name in it.
            Some([]) => entry.asked == asked,
            Some([b'/', ..]) => !entry.path.is_empty() && entry.asked != Asked::List,
            _ => false,
        });
        let Some(entry) = of_this.next() else {
            return Ok(());
        };
        let name = match &*entry.path {
            b"" => place.to_owned(),
            path => format!("{place}/{}", String::from_utf8_lossy(path)),
        };
        Err(SourceError::Unreachable {
            place: name,
            reason: format!(
                "whoever asked for it has had no answer for {} s: see whether something is mounted there whose server is gone",
                entry.since.elapsed().as_secs()
            ),
        })
    }
}

impl At {
    /// It goes on.
    pub fn goes_on(&self) {
        let mut all = self.held.0.lock();
        let own = all.iter_mut().find(|entry| entry.number == self.number);
        if let Some(own) = own {
            own.since = Instant::now();
        }
    }
}

impl Drop for At {
    fn drop(&mut self) {
        let mut all = self.held.0.lock();
        all.retain(|entry| entry.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_somebody_is_refused_to_the_next_and_nothing_else_is() {
        let held = Held::default();
        let at = [
            held.enter(Asked::Stat, b"old"),
            held.enter(Asked::List, b""),
            held.enter(Asked::Read, b"a/f"),
        ];
        let refused = |asked, path: &[u8]| held.refuse("/srv", asked, path).is_err();
        assert!(!refused(Asked::Stat, b"old"), "it may be slow");
        for entry in held.0.lock().iter_mut() {
            entry.since -= READ;
        }
        assert!(refused(Asked::Stat, b"old") && refused(Asked::Stat, b"old/x"));
        assert!(refused(Asked::List, b"") && refused(Asked::Read, b"a/f"));
        assert!(!refused(Asked::Stat, b"") && !refused(Asked::Stat, b"older"));
        assert!(!refused(Asked::Stat, b"a/f") && !refused(Asked::List, b"a"));
        let said = held.refuse("/srv", Asked::Stat, b"old/x").unwrap_err();
        assert!(said.to_string().contains("/srv/old"), "{said}");
        at[1].goes_on();
        assert!(!refused(Asked::List, b""), "a long list is no dead one");
        drop(at);
        assert!(!refused(Asked::Stat, b"old") && held.0.lock().is_empty());
    }
}
