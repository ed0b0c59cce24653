//! Volumes and snapshots read as they lie in their buckets: by what differs from another image, for exports.

use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use staves_model::{BucketPart, CHUNK_BYTES, ClusterMap, ImageState, RegionId, ServiceId};
use staves_wire::ErrorCode;
use staves_wire::memory::{Action, ChunkBits};
use staves_wire::service::{Address, Answer, PoolRef};

use crate::client::{Client, senseless};
use crate::error::ClientError;
use crate::pieces::{Piece, pieces};
use crate::router::{Router, Transport};
use crate::turn::ServiceOp;

/// Most buckets, or chunks, of one request to the router.
const OPS_MAX: usize = 512;
/// The time that one read may take: while a node is replaced, it waits.
const PATIENCE: Duration = Duration::from_secs(30);

/// The chunks of a range of a volume that take up memory; or those that may differ from what another image of it has, by its region.
/// Both regions' buckets must be those of the same volume.
///
/// # Errors
/// There is no such volume, or a bucket has not answered in time.
pub async fn written_chunks<T: Transport>(
    router: &Router<T>,
    map: &ClusterMap,
    (id, since): (RegionId, Option<RegionId>),
    chunks: Range<u64>,
    deadline: Instant,
) -> Result<Vec<bool>, ClientError> {
    let (pool, region) = map.region(id).ok_or_else(|| gone(id))?;
    let image = map.image_number(id);
    let since = since.map(|since| map.image_number(since));
    let parts = region.bucket_parts(chunks.clone(), pool.scheme.m);
    let parts: Vec<BucketPart> = parts.collect();
    let pool = PoolRef::Id(pool.id);
    let mut marks = vec![false; (chunks.end - chunks.start) as usize];
    for parts in parts.chunks(OPS_MAX) {
        let mut heads = BytesMut::with_capacity(32 * parts.len());
        let ops = parts
            .iter()
            .map(|part| question(part, (image, since), &mut heads));
        let answers = router.execute(ServiceId::MEMORY, &pool, ops.collect(), deadline);
        for (part, answer) in parts.iter().zip(&answers.await?) {
            mark(&mut marks, chunks.start, part, answer)?;
        }
    }
    Ok(marks)
}

/// The question to a bucket for its chunks.
fn question(
    part: &BucketPart,
    (image, since): (u32, Option<u32>),
    heads: &mut BytesMut,
) -> ServiceOp {
    let (offset, len) = (part.offset, (part.count * CHUNK_BYTES) as u32);
    let action = match since {
        None => Action::Allocated { image, offset, len },
        Some(since) => Action::Changed {
            image,
            since,
            offset,
            len,
        },
    };
    ServiceOp {
        to: Address::Bucket(part.group, part.slot),
        is_write: false,
        answer_bytes: ChunkBits::bytes_of(part.count),
        body: action.into_body(heads),
    }
}

/// Marks what a bucket has told, in marks from chunk `first` on.
fn mark(
    marks: &mut [bool],
    first: u64,
    part: &BucketPart,
    answer: &Answer,
) -> Result<(), ClientError> {
    match answer {
        Answer::Value(bits) if bits.len() == ChunkBits::bytes_of(part.count) => {
            let marks = marks.iter_mut().skip((part.first - first) as usize);
            for (row, mark) in (0..part.count).zip(marks.step_by(part.step as usize)) {
                *mark = ChunkBits::is_set(bits, row);
            }
            Ok(())
        }
        Answer::Error(code, text) => Err(ClientError::of(*code, text.clone())),
        other => Err(senseless("a question for chunks", &format!("{other:?}"))),
    }
}

fn gone(id: RegionId) -> ClientError {
    ClientError::of(ErrorCode::NotFound, format!("volume {id} was deleted"))
}

/// A volume or a snapshot, to read.
#[derive(Clone)]
pub struct VolumeReader {
    client: Client,
    id: RegionId,
    /// Its length when it was opened.
    size_bytes: u64,
}

impl Client {
    /// Opens a volume or a snapshot to read.
    pub async fn volume_reader(&self, name: &str) -> Result<VolumeReader, ClientError> {
        let stat = self.volume(name).await?;
        let reader = VolumeReader {
            client: self.clone(),
            id: self.id_of(name)?,
            size_bytes: stat.region.size_bytes,
        };
        reader.check_in_use(&self.map())?;
        Ok(reader)
    }
}

impl VolumeReader {
    /// Its length.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Checks that it is still there by the newest map: the bytes that were read before are its own, and not what is left while it is deleted.
    pub async fn check(&self) -> Result<(), ClientError> {
        let map = self.client.refresh().await?;
        self.check_in_use(&map)
    }

    fn check_in_use(&self, map: &ClusterMap) -> Result<(), ClientError> {
        let (_, region) = map.region(self.id).ok_or_else(|| gone(self.id))?;
        match map.image(self.id).map(|image| image.state) {
            None | Some(ImageState::Ready) => Ok(()),
            Some(ImageState::Copying { .. }) => {
                let text = format!("'{}' is being made: try again in a moment", region.name);
                Err(ClientError::of(ErrorCode::Refused, text))
            }
            Some(ImageState::Deleting) => {
                let text = format!("'{}' is being deleted", region.name);
                Err(ClientError::of(ErrorCode::NotFound, text))
            }
        }
    }

    /// Returns whether both have the same buckets: one is a copy of the other, or both are of a third.
    pub fn is_related(&self, other: &VolumeReader) -> bool {
        let map = self.client.map();
        let first = |id| {
            map.region(id)
                .and_then(|(_, region)| region.groups().next())
        };
        first(self.id).is_some() && first(self.id) == first(other.id)
    }

    /// For each of these chunks of 64 KiB, true if it takes up memory, or may differ from what `since` has.
    pub async fn chunks(
        &self,
        since: Option<&VolumeReader>,
        chunks: Range<u64>,
    ) -> Result<Vec<bool>, ClientError> {
        let images = (self.id, since.map(|since| since.id));
        let (router, map) = (self.client.router(), self.client.map());
        written_chunks(router, &map, images, chunks, Instant::now() + PATIENCE).await
    }

    /// Bytes of a range that lies within it.
    pub async fn read(&self, offset: u64, len: usize) -> Result<Bytes, ClientError> {
        let map = self.client.map();
        let (pool, region) = map.region(self.id).ok_or_else(|| gone(self.id))?;
        let image = map.image_number(self.id);
        let all = pieces(pool, region, &[(offset, len as u64)])?;
        let mut bytes = BytesMut::with_capacity(len);
        for pieces in all.chunks(OPS_MAX) {
            let mut heads = BytesMut::with_capacity(32 * pieces.len());
            let ops = pieces.iter().map(|piece: &Piece| ServiceOp {
                to: piece.to,
                is_write: false,
                answer_bytes: piece.len,
                body: Action::Read {
                    image,
                    offset: piece.offset,
                    len: piece.len as u32,
                }
                .into_body(&mut heads),
            });
            let (pool, until) = (PoolRef::Id(pool.id), Instant::now() + PATIENCE);
            let router = self.client.router();
            let answers = router.execute(ServiceId::MEMORY, &pool, ops.collect(), until);
            for (piece, answer) in pieces.iter().zip(answers.await?) {
                match answer {
                    Answer::Value(part) if part.len() == piece.len => bytes.extend(part),
                    Answer::Error(code, text) => return Err(ClientError::of(code, text)),
                    other => return Err(senseless("a read", &format!("{other:?}"))),
                }
            }
        }
        Ok(bytes.freeze())
    }
}

#[cfg(test)]
mod tests {
    use staves_model::{GroupId, MemberSlot};

    use super::*;

    #[test]
    fn what_a_bucket_tells_marks_its_chunks() {
        let part = BucketPart {
            group: GroupId(7),
            slot: MemberSlot(0),
            offset: 0,
            count: 3,
            first: 11,
            step: 2,
        };
        let marked = |answer: &Answer| {
            let mut marks = vec![false; 6];
            let told = mark(&mut marks, 10, &part, answer);
            told.map(|()| marks).map_err(|error| error.code())
        };
        let told = marked(&Answer::Value(vec![0b101].into()));
        assert_eq!(told, Ok(vec![false, true, false, false, false, true]));
        // One that is not understood, and one that the bucket could not give.
        let odd = Answer::Value(vec![0, 0].into());
        assert_eq!(marked(&odd), marked(&Answer::Ok));
        let lost = marked(&Answer::error(ErrorCode::Lost, "gone"));
        assert_eq!(lost, Err(ErrorCode::Lost));
    }
}
