//! A round of saving: the pages of a member that changed go to the page file.

use staves_disk::{Device, PageFileError, PageWork};
use staves_group::{Effects, Member, SaveLimits, SavedPages};
use staves_model::GroupId;
use staves_model::mutant::{Mutant, planted};

use crate::store::DiskStore;

/// Most pages that are copied under a member's lock at once: 1 MiB.
const PAGES_AT_ONCE: usize = 256;

/// A round that did not come to its end. What was not saved counts as changed.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The page file takes no more, or not now.
    #[error("pages of group {group} are not saved: {error}")]
    Pages {
        /// The group.
        group: GroupId,
        /// The page file's error.
        error: PageFileError,
    },
    /// The journal has failed.
    #[error("the journal has failed: {0}")]
    Journal(String),
}

/// The driver's part: members and the store, each under its lock, and the journal.
pub trait SaveDriver {
    /// Does something to a group's member, and hands over its records before anybody else steps it. False if there is no such member.
    fn with_member(
        &mut self,
        group: GroupId,
        act: &mut dyn FnMut(&mut Member, &mut Effects),
    ) -> bool;

    /// Does something to the store.
    fn with_store<R>(&mut self, act: impl FnOnce(&mut DiskStore) -> R) -> R;

    /// Appends what waits for room in the journal, as far as there is some now.
    fn append_waiting(&mut self);

    /// Waits until so many records of a member are durable. False if it was made anew, or does not exist any more.
    ///
    /// # Errors
    /// The journal has failed.
    fn wait(&mut self, group: GroupId, records: u64) -> Result<bool, String>;

    /// The device of the page file.
    fn pages(&self) -> &dyn Device;

    /// The device of its table.
    fn table(&self) -> &dyn Device;
}

/// One round of saving a member: a snapshot, then all pages that had changed. `for_room`: the journal is to let go of the last snapshot, whether or not anything has
/// changed since. True if it came to its end.
///
/// # Errors
/// See [`SaveError`].
pub fn save<D: SaveDriver>(
    driver: &mut D,
    group: GroupId,
    for_room: bool,
) -> Result<bool, SaveError> {
    driver.with_store(|store| store.set_saved(group, true));
    driver.append_waiting();
    let saved = save_round(driver, group, for_room);
    driver.with_store(|store| store.set_saved(group, false));
    saved
}

fn save_round<D: SaveDriver>(
    driver: &mut D,
    group: GroupId,
    for_room: bool,
) -> Result<bool, SaveError> {
    let mut begun = None;
    driver.with_member(group, &mut |member, out| {
        begun = member.begin_save(for_room, out).zip(member.columns());
    });
    let Some((_, columns)) = begun else {
        return Ok(false);
    };
    // What comes to the journal from now on is copied.
    let (pages, placed) =
        driver.with_store(|store| (store.pages_at_once(columns), store.placed.labels_of(group)));
    let most = SaveLimits {
        pages,
        copies: PAGES_AT_ONCE,
        placed: &placed,
    };
    loop {
        let (mut images, mut records) = (None, 0);
        driver.with_member(group, &mut |member, out| {
            images = member.take_images(most, out);
            records = member.records();
        });
        let Some(images) = images else {
            return Ok(false);
        };
        let is_last = images.is_whole.is_some();
        let pages = images.pages.iter().map(|(page, ..)| *page);
        let pages: Vec<u32> = pages.chain(images.forgotten.iter().copied()).collect();
        let saved = write(driver, group, records, images);
        if !matches!(saved, Ok(true)) {
            driver.with_member(group, &mut |member, _| {
                member.not_saved(pages.iter().copied());
            });
            return saved;
        }
        if is_last {
            driver.with_member(group, &mut |member, _| member.saved());
            return Ok(true);
        }
    }
}

/// Writes pages once all of their deltas are durable, which are among so many records. False if they do not become so.
fn write<D: SaveDriver>(
    driver: &mut D,
    group: GroupId,
    records: u64,
    images: SavedPages,
) -> Result<bool, SaveError> {
    let waits = !planted(Mutant::PageBeforeJournal);
    if waits && !driver.wait(group, records).map_err(SaveError::Journal)? {
        return Ok(false);
    }
    let begun = driver.with_store(|store| store.begin_checkpoint(group, images));
    finish(driver, group, begun)
}

fn finish<D: SaveDriver>(
    driver: &mut D,
    group: GroupId,
    begun: Result<PageWork, PageFileError>,
) -> Result<bool, SaveError> {
    let finished = begun.and_then(|work| {
        let performed = work.perform(driver.pages(), driver.table());
        driver.with_store(|store| store.finish(performed))
    });
    let pages = |error| SaveError::Pages { group, error };
    finished.map(|()| true).map_err(pages)
}

/// Strikes the pages of members that are gone, as is durable up to a record of the journal.
///
/// # Errors
/// See [`SaveError`].
pub fn strike<D: SaveDriver>(driver: &mut D, synced: u64) -> Result<(), SaveError> {
    let gone = driver.with_store(|store| store.take_gone(synced));
    let Some(group) = gone.first().copied() else {
        return Ok(());
    };
    let begun = driver.with_store(|store| store.begin_strike(gone));
    finish(driver, group, begun).map(drop)
}
