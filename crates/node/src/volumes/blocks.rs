//! The bytes of a volume, through the node's router.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use staves_client::turn::ServiceOp;
use staves_client::{Piece, pieces};
use staves_model::{
    CHUNK_BYTES, ClusterMap, ImageState, Pool, Region, RegionId, ServiceId, Stretch,
};
use staves_wire::ErrorCode;
use staves_wire::memory::Action;
use staves_wire::service::{Address, Answer, PoolRef};

use super::error::{BlockError, VolumeFault};
use crate::running::Running;

/// The time that one read or write may take: while a node is replaced, it waits.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Most chunks of one request to the router: each has its own deadline.
pub(super) const PIECES_MAX: usize = 512;
/// Most bytes that are zeroed at a time.
const ZERO_BYTES: u64 = PIECES_MAX as u64 * CHUNK_BYTES;
static ZEROES: [u8; CHUNK_BYTES as usize] = [0; CHUNK_BYTES as usize];

/// The bytes of one volume.
#[derive(Clone)]
pub(crate) struct VolumeBytes {
    pub(super) running: Arc<Running>,
    pub(super) id: RegionId,
}

impl VolumeBytes {
    pub(crate) fn new(running: Arc<Running>, id: RegionId) -> VolumeBytes {
        VolumeBytes { running, id }
    }

    /// Checks that a range lies within the volume.
    pub(crate) fn check(&self, (offset, len): (u64, u64)) -> Result<(), BlockError> {
        let map = self.map();
        let size_bytes = self.entry(&map)?.1.size_bytes;
        let end = offset.checked_add(len);
        if end.is_some_and(|end| end <= size_bytes) {
            return Ok(());
        }
        let text = format!(
            "{len} bytes at {offset} do not lie within the volume, which has {size_bytes} bytes"
        );
        Err(BlockError::new(VolumeFault::BadRequest, text))
    }

    /// The bytes of a range, in parts.
    pub(crate) async fn read(&self, offset: u64, len: u32) -> Result<Vec<Bytes>, BlockError> {
        let (image, pieces) = self.pieces(offset, u64::from(len))?;
        let read = |piece: &Piece| Action::Read {
            image,
            offset: piece.offset,
            len: piece.len as u32,
        };
        let answers = self.execute(&pieces, read).await?;
        self.check_kept(image)?;
        let parts = answers
            .into_iter()
            .zip(&pieces)
            .map(|(answer, piece)| match answer {
                Answer::Value(part) if part.len() == piece.len => Ok(part),
                other => Err(senseless(&other, false)),
            });
        parts.collect()
    }

    /// Puts bytes.
    pub(crate) async fn write(
        &self,
        session: u64,
        offset: u64,
        mut bytes: Bytes,
    ) -> Result<(), BlockError> {
        let (image, pieces) = self.pieces(offset, bytes.len() as u64)?;
        let parts: Vec<Bytes> = pieces
            .iter()
            .map(|piece| bytes.split_to(piece.len))
            .collect();
        let mut parts = parts.into_iter();
        let put = |piece: &Piece| Action::Put {
            image,
            session,
            offset: piece.offset,
            bytes: parts.next().unwrap_or_default(),
        };
        self.change(&pieces, put).await
    }

    /// Makes bytes zeroes; whole chunks give their memory back, unless `keeps` says that it stays reserved.
    pub(crate) async fn zero(
        &self,
        session: u64,
        (mut offset, len): (u64, u64),
        keeps: bool,
    ) -> Result<(), BlockError> {
        let zero = |image: u32, piece: &Piece| match keeps {
            true => Action::Put {
                image,
                session,
                offset: piece.offset,
                bytes: Bytes::from_static(&ZEROES[..piece.len]),
            },
            false => Action::Zero {
                image,
                session,
                offset: piece.offset,
                len: piece.len as u32,
            },
        };
        // Clients zero gigabytes at a time.
        let end = offset + len;
        while offset < end {
            let until = end.min((offset / ZERO_BYTES + 1) * ZERO_BYTES);
            let (image, pieces) = self.pieces(offset, until - offset)?;
            self.change(&pieces, |piece| zero(image, piece)).await?;
            offset = until;
        }
        Ok(())
    }

    /// Gives the memory of whole chunks back; the rest of the range stays as it is.
    pub(crate) async fn trim(&self, session: u64, offset: u64, len: u64) -> Result<(), BlockError> {
        let first = offset.next_multiple_of(CHUNK_BYTES);
        let end = (offset + len) / CHUNK_BYTES * CHUNK_BYTES;
        match first < end {
            true => self.zero(session, (first, end - first), false).await,
            false => Ok(()),
        }
    }

    /// Tells every bucket of a stretch of the session, so that nothing of an earlier one takes effect there any more.
    pub(crate) async fn fence(&self, session: u64, stretch: Stretch) -> Result<(), BlockError> {
        let (image, pieces) = self.buckets(&[stretch])?;
        self.change(&pieces, |_| Action::Fence { image, session })
            .await
    }

    /// Every bucket of some stretches.
    pub(super) fn buckets(&self, stretches: &[Stretch]) -> Result<(u32, Vec<Piece>), BlockError> {
        let map = self.map();
        let (pool, _) = self.entry(&map)?;
        let (m, pool) = (pool.scheme.m, pool.id);
        let groups = stretches.iter().flat_map(|stretch| stretch.groups());
        let buckets = groups.flat_map(|group| {
            let slots = (0..m).map(staves_model::MemberSlot);
            slots.map(move |slot| Address::Bucket(group, slot))
        });
        let pieces = buckets.map(|to| Piece {
            at: 0,
            pool,
            to,
            offset: 0,
            len: 0,
        });
        Ok((map.image_number(self.id), pieces.collect()))
    }

    /// Makes this image a copy of `of` in every bucket of some stretches; nobody writes to that in a session before this one then.
    pub(super) async fn copy(
        &self,
        of: u32,
        session: u64,
        stretches: &[Stretch],
    ) -> Result<(), BlockError> {
        let (image, pieces) = self.buckets(stretches)?;
        let copy = |_: &Piece| Action::Copy { of, session, image };
        self.change(&pieces, copy).await
    }

    /// Takes this image out of every bucket of some stretches.
    pub(super) async fn drop_image(&self, stretches: &[Stretch]) -> Result<(), BlockError> {
        let (image, mut left) = self.buckets(stretches)?;
        while !left.is_empty() {
            let answers = self.execute(&left, |_| Action::Drop { image }).await?;
            let mut answers = answers.into_iter();
            let mut odd = None;
            left.retain(|_| match answers.next() {
                Some(Answer::Int(0)) => false,
                Some(Answer::Int(_)) => true,
                other => {
                    odd = other;
                    true
                }
            });
            if let Some(answer) = odd {
                return Err(senseless(&answer, true));
            }
        }
        Ok(())
    }

    /// Refuses what was read while the volume was deleted, if others share its buckets: those give its chunks back one after another, and what is
    /// given back reads as zeroes.
    pub(super) fn check_kept(&self, image: u32) -> Result<(), BlockError> {
        let map = self.running.directory.map().borrow().clone();
        if image == 0 && map.volumes.images.is_empty() {
            return Ok(());
        }
        self.entry(&map)?;
        match map.image(self.id).map(|image| image.state) {
            Some(ImageState::Deleting) => {
                let text = "the volume was deleted".to_owned();
                Err(BlockError::of(ErrorCode::NotFound, text, false))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn map(&self) -> Arc<ClusterMap> {
        self.running.host.routes().map.clone()
    }

    pub(super) fn entry<'a>(
        &self,
        map: &'a ClusterMap,
    ) -> Result<(&'a Pool, &'a Region), BlockError> {
        map.region(self.id).ok_or_else(|| {
            BlockError::of(
                ErrorCode::NotFound,
                "the volume was deleted".to_owned(),
                true,
            )
        })
    }

    /// The pieces of a range, and the image that they are of.
    fn pieces(&self, offset: u64, len: u64) -> Result<(u32, Vec<Piece>), BlockError> {
        let map = self.map();
        let (pool, region) = self.entry(&map)?;
        let pieces = pieces(pool, region, &[(offset, len)]);
        let pieces = pieces.map_err(|e| BlockError::of_client(&e, false))?;
        Ok((map.image_number(self.id), pieces))
    }

    pub(super) async fn change(
        &self,
        pieces: &[Piece],
        action: impl FnMut(&Piece) -> Action,
    ) -> Result<(), BlockError> {
        for answer in self.execute(pieces, action).await? {
            if answer != Answer::Ok {
                return Err(senseless(&answer, true));
            }
        }
        Ok(())
    }

    /// The answers to one operation for each piece, none of them an error.
    async fn execute(
        &self,
        pieces: &[Piece],
        mut action: impl FnMut(&Piece) -> Action,
    ) -> Result<Vec<Answer>, BlockError> {
        let mut all = Vec::with_capacity(pieces.len());
        for pieces in pieces.chunks(PIECES_MAX) {
            let Some(pool) = pieces.first().map(|piece| PoolRef::Id(piece.pool)) else {
                break;
            };
            let mut heads = BytesMut::with_capacity(32 * pieces.len());
            let mut is_write = false;
            let ops = pieces.iter().map(|piece| {
                let action = action(piece);
                is_write |= action.is_write();
                ServiceOp {
                    to: piece.to,
                    is_write: action.is_write(),
                    answer_bytes: if action.is_write() { 0 } else { piece.len },
                    body: action.into_body(&mut heads),
                }
            });
            let ops: Vec<ServiceOp> = ops.collect();
            let (router, deadline) = (self.running.host.router(), Instant::now() + PATIENCE);
            let answers = router
                .execute(ServiceId::MEMORY, &pool, ops, deadline)
                .await;
            let answers = answers.map_err(|error| BlockError::of_client(&error, is_write))?;
            // One whose outcome is not known first: the whole is then not known either.
            let errors = || {
                answers.iter().filter_map(|answer| match answer {
                    Answer::Error(code, text) => Some((*code, text)),
                    _ => None,
                })
            };
            let unknown = errors().find(|(code, _)| !code.nothing_done());
            if let Some((code, text)) = unknown.or(errors().next()) {
                return Err(BlockError::of(code, text.clone(), is_write));
            }
            all.extend(answers);
        }
        Ok(all)
    }
}

pub(super) fn senseless(answer: &Answer, is_write: bool) -> BlockError {
    let text = format!("an answer that makes no sense: {answer:?}");
    BlockError::of(ErrorCode::Internal, text, is_write)
}
