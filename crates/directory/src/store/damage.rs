//! The check that a file holds what was written, before any of it is used.
//!
//! redb has a checksum for each page, and looks at them only where it was not closed well: of a file in which bytes have
//! changed meanwhile it would take a wrong vote for ours, or end by a panic. So all of it is looked through at each
//! start, in a copy: what redb mends it mends by going back to an older state, and Raft must not forget what it has promised.

use std::cell::Cell;
use std::fs::{File, TryLockError};
use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use redb::backends::InMemoryBackend;
use redb::{Builder, DatabaseError, StorageBackend};

/// The reason for which a file is not opened.
pub(super) enum Damage {
    /// Another process has it open, and changes it.
    InUse,
    /// The fault and the remedy.
    Found(String),
}

thread_local! {
    static LOOKING: Cell<bool> = const { Cell::new(false) };
}

/// True if a panic of this thread, now, comes of a damaged file and becomes an error, so that it is not reported as one.
pub fn panic_becomes_an_error() -> bool {
    LOOKING.get()
}

/// Looks through a file, if there is one.
pub(super) fn look(path: &Path) -> Result<(), Damage> {
    let bytes = match read_alone(path) {
        Ok(bytes) => bytes,
        Err(Damage::Found(_)) if !path.exists() => return Ok(()),
        Err(damage) => return Err(damage),
    };
    LOOKING.set(true);
    // The copy goes with the unwinding: nothing of it is looked at again.
    let looked = catch_unwind(AssertUnwindSafe(|| is_whole(&bytes)));
    LOOKING.set(false);
    let what = match looked {
        Ok(Ok(true)) => return Ok(()),
        Ok(Ok(false)) => "its newest state is not what was written".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "what is in it makes no sense".to_owned(),
    };
    Err(Damage::Found(format!(
        "it is damaged ({what}), so look at the disk; if other voters run, remove the folder to begin the node anew"
    )))
}

/// Its bytes, while nobody writes.
fn read_alone(path: &Path) -> Result<Vec<u8>, Damage> {
    let found = |error: io::Error| Damage::Found(error.to_string());
    let mut file = File::open(path).map_err(found)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(Damage::InUse),
        Err(TryLockError::Error(error)) => return Err(found(error)),
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(found)?;
    Ok(bytes)
}

/// True if all checksums fit. A file that was not closed well is put in order first: that is no damage.
fn is_whole(bytes: &[u8]) -> Result<bool, DatabaseError> {
    let copy = InMemoryBackend::new();
    copy.set_len(bytes.len() as u64)?;
    copy.write(0, bytes)?;
    let mut db = Builder::new()
        .set_cache_size(super::CACHE_BYTES)
        .create_with_backend(copy)?;
    db.check_integrity()
}

#[cfg(test)]
mod tests {
    use staves_model::testing::Dice;
    use staves_model::{ClusterId, NodeId};

    use super::super::{FILE, Identity, Store};
    use crate::error::StoreError;

    /// Regression: a damaged file ended the node by a panic of the library, or was believed.
    #[tokio::test]
    async fn a_damaged_file_is_refused_or_is_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let identity = Identity {
            cluster: ClusterId(0x5eed_5eed_5eed_5eed),
            node: NodeId(7),
            founder: true,
        };
        let store = Store::open(Some(folder.path())).unwrap();
        store.save_identity(identity).await.unwrap();
        store.close().await;
        drop(store);
        let path = folder.path().join(FILE);
        let sound = std::fs::read(&path).unwrap();
        let written: Vec<usize> = (0..sound.len()).filter(|at| sound[*at] != 0).collect();
        let (mut dice, mut refused) = (Dice(1600), 0);
        for turn in 0..120 {
            let mut bytes = sound.clone();
            let mut at = || dice.pick(&written).expect("it is not empty");
            match turn % 4 {
                0 => bytes[at()] ^= 1 << (turn / 4 % 8),
                1 => (0..20).for_each(|_| bytes[at()] = turn as u8),
                2 => bytes.truncate(at()),
                _ => {
                    let page = at() / 4096 * 4096;
                    bytes[page..page + 4096].fill(0);
                }
            }
            std::fs::write(&path, &bytes).unwrap();
            match Store::open(Some(folder.path())) {
                // What changed was no part of what is there.
                Ok(store) => {
                    let found = store.identity().map(|i| (i.cluster, i.node));
                    assert_eq!(
                        found,
                        Some((identity.cluster, identity.node)),
                        "turn {turn}"
                    );
                    store.close().await;
                }
                Err(StoreError::Unreadable { .. }) => refused += 1,
                Err(error) => panic!("turn {turn}: {error}"),
            }
        }
        assert!(refused > 60, "only {refused} were refused");
    }

    /// A node that is killed leaves its file as it is at that moment: in order, after some mending.
    #[tokio::test]
    async fn a_file_that_was_not_closed_is_no_damage() {
        let [folder, other] = [0, 1].map(|_| tempfile::tempdir().unwrap());
        let store = Store::open(Some(folder.path())).unwrap();
        for n in 1..20 {
            let identity = Identity {
                cluster: ClusterId(5),
                node: NodeId(n),
                founder: false,
            };
            store.save_identity(identity).await.unwrap();
            std::fs::copy(folder.path().join(FILE), other.path().join(FILE)).unwrap();
            let copy = Store::open(Some(other.path())).unwrap();
            assert_eq!(copy.identity().map(|i| i.node), Some(NodeId(n)));
            copy.close().await;
        }
    }
}
