//! Volumes, as people and their tools look at them: their bytes are read and written through NBD.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use staves_model::{
    Change, ClusterMap, Image, ImageKind, ImageState, NodeState, Pool, Region, RegionId,
    VolumeCopy, VolumeLimit, VolumeWriter, snapshot_name,
};
use staves_wire::ErrorCode;

use crate::client::Client;
use crate::error::ClientError;
use crate::region::{RegionStat, stat};

/// The time after which a copy is not waited for any more: the nodes give it up before.
const COPIED_MAX: Duration = Duration::from_secs(30);
/// The pause between two looks whether copies are made.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The kind of a volume that is to be made, for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum VolumeKind {
    /// One client writes to it at a time. In a pool on disk a write is answered once all members have synced it.
    #[default]
    Durable,
    /// The same in a pool on disk, but writes are answered once all members hold them in memory: a flush waits for their disks. Its clones
    /// are like it.
    Writeback,
    /// Several clients write to it at a time, as file systems of clusters do: all connections share its session.
    Shared,
}

/// The state of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeStat {
    /// The state that any region has.
    pub region: RegionStat,
    /// The number of its last session; 0 if it was never attached.
    pub session: u64,
    /// The client that it is attached to, and through which node.
    pub writer: Option<VolumeWriter>,
    /// That node's name, if the node is up: a session ends with its door.
    pub node: Option<String>,
    /// True if several clients may write to it at a time.
    pub is_shared: bool,
    /// Of such a volume: the names of the nodes through which clients write to it, as far as they are up.
    pub doors: Vec<String>,
    /// The limit of what its clients may do each second.
    pub limit: Option<VolumeLimit>,
    /// Its writes are answered before disks have them.
    pub is_writeback: bool,
    /// The copy that it is, if it is one, or is being deleted.
    pub image: Option<Image>,
    /// The name of what it was copied from, while that is there.
    pub of: Option<String>,
}

impl Client {
    /// Makes a volume in a memory pool. It reads as zeroes, and takes up memory only where it is written.
    pub async fn create_volume(
        &self,
        pool: &str,
        name: &str,
        size_bytes: u64,
    ) -> Result<VolumeStat, ClientError> {
        let kind = VolumeKind::default();
        self.create_volume_with(pool, name, (size_bytes, None), kind)
            .await
    }

    /// The same of some kind, and with so many bytes in each data bucket ([`staves_model::is_bucket_bytes`]), or as many as suit its size.
    pub async fn create_volume_with(
        &self,
        pool: &str,
        name: &str,
        (size_bytes, bucket_bytes): (u64, Option<u64>),
        kind: VolumeKind,
    ) -> Result<VolumeStat, ClientError> {
        self.make(pool, name, (size_bytes, bucket_bytes), Some(kind))
            .await?;
        self.volume(name).await
    }

    /// All volumes, by pool and in the order in which they were made.
    pub async fn volumes(&self) -> Result<Vec<VolumeStat>, ClientError> {
        let map = self.refresh().await?;
        let in_pool = |pool: &Pool| {
            let volumes = pool.regions().iter().filter_map(|r| of(&map, pool, r));
            volumes.collect::<Vec<_>>()
        };
        Ok(map.pools.values().flat_map(in_pool).collect())
    }

    /// A volume by name.
    pub async fn volume(&self, name: &str) -> Result<VolumeStat, ClientError> {
        let map = self.refresh().await?;
        let named = map.region_named(name);
        let stat = named.and_then(|(pool, region)| of(&map, pool, region));
        stat.ok_or_else(|| no_volume(name))
    }

    /// Lets a volume end at `size_bytes`. Nothing moves; clients of NBD see it when they connect anew.
    pub async fn grow_volume(&self, name: &str, size_bytes: u64) -> Result<(), ClientError> {
        let name = self.volume(name).await?.region.name;
        let bucket_bytes = self.map().bucket_bytes_to_grow(&name, size_bytes);
        let extend = Change::ExtendRegion {
            name,
            size_bytes,
            bucket_bytes,
        };
        self.propose(&extend).await
    }

    /// Limits what a volume's clients may do each second, at each node that serves it; `None` takes the limit away.
    pub async fn limit_volume(
        &self,
        name: &str,
        limit: Option<VolumeLimit>,
    ) -> Result<(), ClientError> {
        let name = self.volume(name).await?.region.name;
        self.propose(&Change::LimitVolume { name, limit }).await
    }

    /// Deletes a volume that nobody has attached, with all that it holds.
    pub async fn delete_volume(&self, name: &str) -> Result<(), ClientError> {
        let name = self.volume(name).await?.region.name;
        self.propose(&Change::DeleteRegion { name }).await
    }

    /// Makes snapshots of volumes, all at one instant: what was answered before is in them, what is sent after they are made is not. A pair is a
    /// volume and the name of its snapshot, which is called `volume@name`.
    ///
    /// # Errors
    /// Besides those of any change: some bucket did not have its copy in time, and all of them were given up.
    pub async fn snapshot_volumes(
        &self,
        copies: &[(String, String)],
    ) -> Result<Vec<VolumeStat>, ClientError> {
        let names = copies.iter().map(|(of, name)| snapshot_name(of, name));
        let names: Vec<String> = names.collect();
        self.copy_volumes(copies, ImageKind::Snapshot, &names).await
    }

    /// Makes a volume that holds what another one, or a snapshot, holds now. Both have the same bytes in memory until one is written to.
    ///
    /// # Errors
    /// As for snapshots.
    pub async fn clone_volume(&self, of: &str, name: &str) -> Result<VolumeStat, ClientError> {
        let copies = [(of.to_owned(), name.to_owned())];
        let names = [name.to_owned()];
        let made = self.copy_volumes(&copies, ImageKind::Clone, &names).await?;
        made.into_iter().next().ok_or_else(|| no_volume(name))
    }

    async fn copy_volumes(
        &self,
        copies: &[(String, String)],
        kind: ImageKind,
        names: &[String],
    ) -> Result<Vec<VolumeStat>, ClientError> {
        for (of, _) in copies {
            self.volume(of).await?;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let copies = copies.iter().map(|(of, name)| VolumeCopy {
            of: of.clone(),
            name: name.clone(),
        });
        let change = Change::CopyVolumes {
            copies: copies.collect(),
            kind,
            at_ms: now.map_or(0, |now| now.as_millis() as u64),
        };
        self.propose(&change).await?;
        let deadline = Instant::now() + COPIED_MAX;
        loop {
            let map = self.refresh().await?;
            let stats = names.iter().map(|name| {
                let (pool, region) = map.region_named(name)?;
                of(&map, pool, region)
            });
            let stats: Option<Vec<VolumeStat>> = stats.collect();
            let states = |state: fn(ImageState) -> bool| {
                let images = stats.iter().flatten().filter_map(|stat| stat.image);
                images.filter(|image| state(image.state)).count()
            };
            if states(|state| state == ImageState::Ready) == names.len() {
                return Ok(stats.unwrap_or_default());
            }
            let given_up = states(|state| state == ImageState::Deleting) > 0;
            if given_up || stats.is_none() || Instant::now() > deadline {
                let text = format!(
                    "not every bucket could make the copy, and it was given up: 'staves status' says which groups do not answer and which pools are full; then try again ({})",
                    names.join(", ")
                );
                return Err(ClientError::of(ErrorCode::Deadline, text));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Takes a volume away from whom it is attached to: its connections end. False if nobody had it.
    ///
    /// # Errors
    /// The volume is not there; or the map changes so often that none could be found on which to do it, and then it was not done.
    pub async fn detach_volume(&self, name: &str) -> Result<bool, ClientError> {
        let deadline = Instant::now() + COPIED_MAX;
        loop {
            let map = self.refresh().await?;
            let (_, region) = map.region_named(name).ok_or_else(|| no_volume(name))?;
            let volume = region.volume.as_ref().ok_or_else(|| no_volume(name))?;
            if volume.writer.is_none() {
                return Ok(false);
            }
            let detach = Change::DetachVolume {
                volume: region.id,
                session: volume.session,
            };
            // On a later map the session may be another: it would go on.
            let made = self.propose_on(Some(map.revision), &detach).await?;
            match made {
                Ok(()) => return Ok(true),
                Err(_) if Instant::now() < deadline => tokio::time::sleep(LOOK_AGAIN).await,
                Err((_, text)) => return Err(ClientError::of(ErrorCode::Refused, text)),
            }
        }
    }

    pub(crate) fn id_of(&self, name: &str) -> Result<RegionId, ClientError> {
        let map = self.map();
        let named = map.region_named(name);
        named
            .map(|(_, region)| region.id)
            .ok_or_else(|| no_volume(name))
    }
}

fn of(map: &ClusterMap, pool: &Pool, region: &Region) -> Option<VolumeStat> {
    let volume = region.volume.as_ref()?;
    let node = |writer: &VolumeWriter| {
        let node = map.nodes.get(&writer.node)?;
        let lives = node.state == NodeState::Up && node.incarnation == writer.incarnation;
        lives.then(|| node.name.clone())
    };
    let doors = map.shared_doors(region.id);
    let doors = doors.filter_map(|id| Some(map.nodes.get(&id)?.name.clone()));
    Some(VolumeStat {
        region: stat(map, pool, region),
        session: volume.session,
        node: volume.writer.as_ref().and_then(node),
        writer: volume.writer.clone(),
        is_shared: map.is_shared(region.id),
        doors: doors.collect(),
        limit: map.volumes.limits.get(&region.id).copied(),
        is_writeback: map.writeback(region.id).is_some(),
        image: map.image(region.id).copied(),
        of: map
            .image(region.id)
            .filter(|image| image.of != region.id)
            .and_then(|image| Some(map.region(image.of)?.1.name.clone())),
    })
}

fn no_volume(name: &str) -> ClientError {
    let text =
        format!("there is no volume '{name}': 'staves volume list' shows those that there are");
    ClientError::of(ErrorCode::NotFound, text)
}
