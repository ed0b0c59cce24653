//! The loading itself: stretch by stretch, several at a time. One file that its source refuses holds up no other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use staves_client::{Dataset, SourceError};
use staves_wire::files::FILE_BYTES_MAX;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{FoundFile, Teller};

/// Stretches that are fetched at a time.
const AT_ONCE: usize = 8;
/// With so many files in a row of which there is no answer, the source is taken for gone.
const IN_A_ROW: usize = 8;

/// The files that their source does not let be read, and its words.
#[derive(Default)]
pub struct RefusedFiles {
    errors: BTreeMap<String, SourceError>,
    /// Files without an answer since the last answer.
    in_a_row: BTreeSet<String>,
}

impl RefusedFiles {
    /// True for a file that another try would find refused.
    pub fn has(&self, found: &FoundFile) -> bool {
        let error = self.errors.get(&found.path());
        error.is_some_and(|error| !matches!(error, SourceError::Unreachable { .. }))
    }

    /// A message about them, if there are any.
    pub fn message(&self) -> Option<String> {
        let (_, first) = self.errors.first_key_value()?;
        Some(match self.errors.len() {
            1 => first.to_string(),
            all => format!("{first} (and {} more such files)", all - 1),
        })
    }

    /// Another round: files that were late are tried again.
    fn begin(&mut self) {
        let refused = |error: &SourceError| !matches!(error, SourceError::Unreachable { .. });
        self.errors.retain(|_, error| refused(error));
        self.in_a_row.clear();
    }

    /// Notes the end of a stretch. An error: the source as a whole says nothing any more.
    fn note(&mut self, path: String, ended: Result<(), SourceError>) -> Result<(), SourceError> {
        let Err(error) = ended else {
            self.in_a_row.clear();
            return Ok(());
        };
        match &error {
            SourceError::NotFound { .. }
            | SourceError::Changed { .. }
            | SourceError::Denied { .. }
            | SourceError::Private { .. } => self.in_a_row.clear(),
            SourceError::Unreachable { .. } => {
                self.in_a_row.insert(path.clone());
                if self.in_a_row.len() > IN_A_ROW {
                    return Err(error);
                }
            }
            SourceError::Absent { .. } | SourceError::Malformed { .. } => return Err(error),
        }
        self.errors.entry(path).or_insert(error);
        Ok(())
    }
}

/// Has homes fetch all of the files.
pub async fn load(
    data: &Dataset,
    files: &[&FoundFile],
    teller: &mut Teller,
    refused: &mut RefusedFiles,
) -> Result<(), SourceError> {
    refused.begin();
    let done = Arc::new(AtomicU64::new(0));
    teller.began = Instant::now();
    let stretch = u64::from(FILE_BYTES_MAX);
    let pieces = files.iter().flat_map(|found| {
        let starts = (0..found.file.size()).step_by(stretch as usize);
        starts.map(move |from| (*found, from))
    });
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let mut tasks: JoinSet<(String, Result<(), SourceError>)> = JoinSet::new();
    for (found, from) in pieces {
        if refused.errors.contains_key(&found.path()) {
            continue;
        }
        let place = room
            .clone()
            .acquire_owned()
            .await
            .expect("it is never closed");
        let (data, counted) = (data.clone(), done.clone());
        let (file, path) = (found.file.clone(), found.path());
        tasks.spawn(async move {
            let loaded = data.load(&file, from, stretch as usize).await;
            drop(place);
            let ended = loaded.map(|bytes| {
                counted.fetch_add(bytes, Ordering::Relaxed);
            });
            (path, ended)
        });
        while let Some(ended) = tasks.try_join_next() {
            let (path, ended) = ended.expect("a load does not panic");
            refused.note(path, ended)?;
        }
        teller.tell(done.load(Ordering::Relaxed));
    }
    while let Some(ended) = tasks.join_next().await {
        let (path, ended) = ended.expect("a load does not panic");
        refused.note(path, ended)?;
        teller.tell(done.load(Ordering::Relaxed));
    }
    Ok(())
}
