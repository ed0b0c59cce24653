//! Snapshots and clones on their way: every bucket is told of a copy, and gives back what a deleted one had alone.
//!
//! The directory says what is to be done, and one node does it: the lowest that is up. If that one dies another goes on; if two do it for a
//! moment, buckets do it once. While a volume is copied its writes wait, so a copy that takes too long is given up.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use staves_model::{
    Change, ClusterMap, GroupId, ImageState, NodeId, NodeState, RegionId, Stretch, StretchState,
};

use tokio::task::JoinSet;

use super::blocks::VolumeBytes;
use super::directory::{follow, propose};
use super::error::{BlockError, VolumeFault};
use crate::entry::Entry;
use crate::running::Running;

/// The time for all buckets to have copies that are made together.
const COPY_MAX: Duration = Duration::from_secs(5);
/// The time that the directory may take to hear of it.
const PROPOSE_MAX: Duration = Duration::from_secs(5);
/// The pause between two looks at what is left to do.
const AGAIN: Duration = Duration::from_secs(1);

/// Makes copies and deletes images, as the directory says, where that is this node's part. Does not end.
pub(crate) async fn watch_over_images(entry: Arc<Entry>) {
    // Writes wait for copies: those do not wait for what is deleted.
    tokio::join!(watch(&entry, true), watch(&entry, false));
}

async fn watch(entry: &Entry, copies: bool) {
    loop {
        let Some(running) = entry.get() else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        let mut maps = running.directory.map();
        let map = maps.borrow_and_update().clone();
        if is_driver(&map, running.host.life.node) {
            match copies {
                true => make_copies(running, &map).await,
                false => delete_images(running, &map).await,
            }
        }
        // What failed is tried again though nothing has changed.
        if let Ok(Err(_)) = tokio::time::timeout(AGAIN, maps.changed()).await {
            return;
        }
    }
}

/// True if it is for this node to do.
fn is_driver(map: &ClusterMap, node: NodeId) -> bool {
    let up = map.nodes.values().filter(|n| n.state == NodeState::Up);
    let first = up.map(|node| node.id).min();
    !map.volumes.images.is_empty() && first == Some(node)
}

/// Waits until this node's router goes by the map, too: it comes a moment later there.
async fn is_followed(running: &Running, map: &ClusterMap) -> bool {
    let followed = follow(running, map.revision, Instant::now() + PROPOSE_MAX).await;
    if let Err(error) = &followed {
        tracing::debug!(text = error.text, "images wait for the map");
    }
    followed.is_ok()
}

async fn make_copies(running: &Arc<Running>, map: &Arc<ClusterMap>) {
    let images = map.volumes.images.values();
    let copying = images.filter_map(|image| match image.state {
        ImageState::Copying { together, .. } => Some(together),
        _ => None,
    });
    let sets: BTreeSet<RegionId> = copying.collect();
    if sets.is_empty() || !is_followed(running, map).await {
        return;
    }
    // Beside each other: one that is given up takes its time.
    let mut tasks = JoinSet::new();
    for together in sets {
        let (running, map) = (running.clone(), map.clone());
        tasks.spawn(async move {
            let are_good = are_copied(&running, &map, together).await;
            end(&running, Change::EndCopies { together, are_good }).await;
        });
    }
    while tasks.join_next().await.is_some() {}
}

/// True once every bucket has the copies of a set; false if they are given up.
async fn are_copied(running: &Arc<Running>, map: &ClusterMap, together: RegionId) -> bool {
    match tokio::time::timeout(COPY_MAX, copy(running, map, together)).await {
        Ok(Ok(())) => true,
        Ok(Err(error)) => {
            tracing::warn!(text = error.text, "copies of volumes are given up");
            false
        }
        Err(_) => {
            tracing::warn!("copies of volumes are given up: some buckets did not answer in time");
            false
        }
    }
}

async fn delete_images(running: &Arc<Running>, map: &ClusterMap) {
    let images = map.volumes.images.iter();
    let deleted = images.filter(|(_, image)| image.state == ImageState::Deleting);
    let deleted: Vec<RegionId> = deleted.map(|(id, _)| *id).collect();
    if deleted.is_empty() {
        return;
    }
    // All doors are to know of it first: what is given back reads as zeroes.
    tokio::time::sleep(AGAIN).await;
    if !is_followed(running, map).await {
        return;
    }
    for id in deleted {
        match drop_image(running, map, id).await {
            Ok(()) => end(running, Change::ForgetImage(id)).await,
            Err(error) => {
                tracing::debug!(region = %id, text = error.text, "not deleted yet");
            }
        }
    }
}

/// Copies all images of a set.
async fn copy(
    running: &Arc<Running>,
    map: &ClusterMap,
    together: RegionId,
) -> Result<(), BlockError> {
    let images = map.volumes.images.iter();
    let set = images.filter_map(|(id, image)| match image.state {
        ImageState::Copying {
            session,
            together: of,
        } if of == together => Some((*id, map.image_number(image.of), session)),
        _ => None,
    });
    let mut tasks = JoinSet::new();
    for (id, of, session) in set {
        let bytes = VolumeBytes::new(running.clone(), id);
        let stretches = written(map, id);
        tasks.spawn(async move { bytes.copy(of, session, &stretches).await });
    }
    let mut done = Ok(());
    while let Some(copied) = tasks.join_next().await {
        let failed = |error| BlockError::new(VolumeFault::Failed, format!("{error}"));
        done = done.and(copied.unwrap_or_else(|error| Err(failed(error))));
    }
    done
}

async fn drop_image(
    running: &Arc<Running>,
    map: &ClusterMap,
    id: RegionId,
) -> Result<(), BlockError> {
    let bytes = VolumeBytes::new(running.clone(), id);
    let kept = kept_groups(map);
    let mut stretches = written(map, id);
    stretches.retain(|stretch| stretch.groups().any(|group| kept.contains(&group)));
    bytes.drop_image(&stretches).await
}

/// The groups of regions that are not being deleted. All others go with the last region that has them, also those that do not answer.
fn kept_groups(map: &ClusterMap) -> BTreeSet<GroupId> {
    let is_deleted = |id| map.image(id).map(|i| i.state) == Some(ImageState::Deleting);
    let kept = map.regions().filter(|(_, region)| !is_deleted(region.id));
    kept.flat_map(|(_, region)| region.groups()).collect()
}

/// The stretches of an image whose buckets may have something of it.
fn written(map: &ClusterMap, id: RegionId) -> Vec<Stretch> {
    let Some((_, region)) = map.region(id) else {
        return Vec::new();
    };
    let stretches = region.stretches.iter().copied();
    stretches
        .filter(|stretch| stretch.state == StretchState::Written)
        .collect()
}

async fn end(running: &Running, change: Change) {
    if let Err(error) = propose(running, change, Instant::now() + PROPOSE_MAX).await {
        tracing::debug!(%error, "the directory has not heard of a copy yet");
    }
}
