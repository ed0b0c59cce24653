//! Names that hold every thread that asks for them: a dead file server that is mounted somewhere below a folder, say, while the rest of the folder
//! answers. Each such name may hold the threads that were at it when it began to, and no more: or all would be gone after a while.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::workers::SILENCE;
use crate::source::SourceError;

/// Bytes on a slow line may take as long: see `folder/workers.rs`.
const READ: Duration = Duration::from_secs(30);

/// A kind of call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    Stat,
    List,
    Read,
}

/// The calls under way: as many as there are threads.
#[derive(Clone, Debug, Default)]
pub struct InFlight(Arc<Mutex<Vec<PendingCall>>>);

#[derive(Debug)]
struct PendingCall {
    number: u64,
    operation: Operation,
    path: Vec<u8>,
    since: Instant,
}

/// The entry of one thread's call, until this is dropped.
#[derive(Debug)]
pub struct InFlightGuard {
    in_flight: InFlight,
    number: u64,
}

impl InFlight {
    /// Records that a thread begins this call.
    pub fn enter(&self, operation: Operation, path: &[u8]) -> InFlightGuard {
        let mut all = self.0.lock();
        let number = all.last().map_or(0, |last| last.number + 1);
        all.push(PendingCall {
            number,
            operation,
            path: path.to_owned(),
            since: Instant::now(),
        });
        InFlightGuard {
            in_flight: self.clone(),
            number,
        }
    }

    /// Rejects a name that holds a thread for long already, and names below it.
    pub fn refuse(
        &self,
        place: &str,
        operation: Operation,
        path: &[u8],
    ) -> Result<(), SourceError> {
        let all = self.0.lock();
        let late = all.iter().filter(|entry| {
            let most = match entry.operation {
                Operation::Read => READ,
                Operation::Stat | Operation::List => SILENCE,
            };
            entry.since.elapsed() >= most
        });
        let mut of_this = late.filter(|entry| match path.strip_prefix(&*entry.path) {
            // A list of the folder may be held by one name in it.
            Some([]) => entry.operation == operation,
            Some([b'/', ..]) => !entry.path.is_empty() && entry.operation != Operation::List,
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
                "whoever operation for it has had no answer for {} s: see whether something is mounted there whose server is gone",
                entry.since.elapsed().as_secs()
            ),
        })
    }
}

impl InFlightGuard {
    /// Records a sign of life.
    pub fn goes_on(&self) {
        let mut all = self.in_flight.0.lock();
        let own = all.iter_mut().find(|entry| entry.number == self.number);
        if let Some(own) = own {
            own.since = Instant::now();
        }
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        let mut all = self.in_flight.0.lock();
        all.retain(|entry| entry.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_somebody_is_refused_to_the_next_and_nothing_else_is() {
        let in_flight = InFlight::default();
        let at = [
            in_flight.enter(Operation::Stat, b"old"),
            in_flight.enter(Operation::List, b""),
            in_flight.enter(Operation::Read, b"a/f"),
        ];
        let refused = |operation, path: &[u8]| in_flight.refuse("/srv", operation, path).is_err();
        assert!(!refused(Operation::Stat, b"old"), "it may be slow");
        for entry in in_flight.0.lock().iter_mut() {
            entry.since -= READ;
        }
        assert!(refused(Operation::Stat, b"old") && refused(Operation::Stat, b"old/x"));
        assert!(refused(Operation::List, b"") && refused(Operation::Read, b"a/f"));
        assert!(!refused(Operation::Stat, b"") && !refused(Operation::Stat, b"older"));
        assert!(!refused(Operation::Stat, b"a/f") && !refused(Operation::List, b"a"));
        let said = in_flight
            .refuse("/srv", Operation::Stat, b"old/x")
            .unwrap_err();
        assert!(said.to_string().contains("/srv/old"), "{said}");
        at[1].goes_on();
        assert!(!refused(Operation::List, b""), "a long list is no dead one");
        drop(at);
        assert!(!refused(Operation::Stat, b"old") && in_flight.0.lock().is_empty());
    }
}
