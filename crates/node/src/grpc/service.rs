//! The calls on volumes.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use staves_grpc::v1::volumes_server::Volumes;
use staves_grpc::{READ_BYTES_MAX, WRITE_BYTES_MAX, v1};
use staves_model::{ClusterMap, NodeId, RegionId};
use tokio::time::timeout;
use tonic::codegen::BoxStream;
use tonic::{Code, Request, Response, Status, async_trait};

use super::CHECKS_MAX;
use super::bodies::{answer_memory, held};
use super::connection::{GrpcConnection, GrpcSession, SessionGuard, when_taken};
use super::consistency;
use super::counted::CountedCall;
use super::failure::{no_session, no_volume, settled, status};
use super::states;
use crate::running::Running;
use crate::volumes::blocks::VolumeBytes;
use crate::volumes::error::BlockError;
use crate::volumes::newest::newest_map;
use crate::volumes::{ServedVolume, VolumeOp};

/// Bytes that are counted for a volume in a list, and for a group of one: their names are bounded.
const ENTRY_BYTES: usize = 512;

const OVERTAKEN: &str = "it was done, and its session ended meanwhile: what else was under way in that may take effect after it; attach anew, and write it again";

/// The time in which the node takes in a map that it has.
const MAP_MAX: Duration = Duration::from_secs(5);

/// The calls of one connection.
#[derive(Clone)]
pub(super) struct VolumeService(Arc<GrpcConnection>);

impl VolumeService {
    pub(super) fn new(connection: Arc<GrpcConnection>) -> VolumeService {
        VolumeService(connection)
    }

    fn running(&self) -> Result<&Arc<Running>, Status> {
        self.0.running()
    }

    /// The newest map that the node knows of, and goes by.
    async fn map(&self) -> Result<Arc<ClusterMap>, Status> {
        let newest = timeout(MAP_MAX, newest_map(self.running()?)).await;
        newest.map_err(|_| {
            let text = format!("the node did not take in its newest map within {MAP_MAX:?}");
            settled(Code::Unavailable, text)
        })
    }

    /// The bytes of a volume by name.
    async fn bytes(&self, name: &str) -> Result<(VolumeBytes, Arc<ServedVolume>), Status> {
        let running = self.running()?;
        let map = self.map().await?;
        let id = id(&map, name)?;
        let served = running.volumes.open(&map, id);
        Ok((VolumeBytes::new(running.clone(), id), served))
    }

    /// Changes bytes of a range in a session of this connection. A call that ends without an answer, or of which it is not known whether it
    /// was done, ends the session.
    async fn change<F>(
        &self,
        (volume, number): (&str, u64),
        (op, range): (VolumeOp, (u64, u64)),
        change: impl Fn(VolumeBytes, u64) -> F,
    ) -> Result<(), Status>
    where
        F: Future<Output = Result<(), BlockError>>,
    {
        let running = self.running()?;
        let session = self.0.session(volume, number)?;
        let GrpcSession {
            attachment,
            bytes,
            served,
            ..
        } = session;
        bytes.check(range).map_err(|error| status(&error))?;
        let mut unanswered = SessionGuard::new(&self.0.door.attachments, &attachment);
        let changed = async {
            let counted = CountedCall::begin(&served, (op, range.1), attachment.over()).await?;
            let change = |session| change(bytes.clone(), session);
            let done = attachment.change(running, range, change).await;
            counted.end(done.is_ok());
            done
        };
        match changed.await {
            // What its client has given up may still take effect, and after this one.
            Ok(()) if attachment.is_over() => Err(Status::aborted(OVERTAKEN)),
            Ok(()) => {
                unanswered.keep();
                self.0.door.places.state.count_write(range.1);
                Ok(())
            }
            Err(error) => {
                if !error.ends_session && !attachment.is_over() {
                    unanswered.keep();
                }
                Err(status(&error))
            }
        }
    }
}

/// The volume of a name.
fn id(map: &ClusterMap, name: &str) -> Result<RegionId, Status> {
    let named = map.region_named(name).map(|(_, region)| region);
    let volume = named.filter(|region| region.volume.is_some() && map.is_in_use(region.id));
    volume
        .map(|region| region.id)
        .ok_or_else(|| no_volume(name))
}

/// The parts of a range as one.
fn joined(mut parts: Vec<Bytes>) -> Bytes {
    if parts.len() == 1 {
        return parts.pop().unwrap_or_default();
    }
    let mut all = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
    parts.iter().for_each(|part| all.extend_from_slice(part));
    all.freeze()
}

fn too_long(what: &str, length: usize, bytes_max: usize) -> Status {
    let text = format!("{what} of {length} bytes; one has {bytes_max} at most: split it");
    settled(Code::InvalidArgument, text)
}

#[async_trait]
impl Volumes for VolumeService {
    async fn list(
        &self,
        _request: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListReply>, Status> {
        let running = self.running()?;
        let map = self.map().await?;
        let regions: usize = map.pools.values().map(|pool| pool.regions().len()).sum();
        let part = answer_memory(&running.in_flight, regions * ENTRY_BYTES).await?;
        let volumes = states::volumes(&map);
        Ok(held(v1::ListReply { volumes }, part))
    }

    async fn get_state(
        &self,
        request: Request<v1::GetStateRequest>,
    ) -> Result<Response<v1::GetStateReply>, Status> {
        let running = self.running()?;
        let name = request.into_inner().volume;
        let map = self.map().await?;
        let (pool, region) = map.region_named(&name).ok_or_else(|| no_volume(&name))?;
        let entries = 1 + region.groups().count();
        let part = answer_memory(&running.in_flight, entries * ENTRY_BYTES).await?;
        let state = states::state(&map, pool, region).ok_or_else(|| no_volume(&name))?;
        Ok(held(state, part))
    }

    async fn attach(
        &self,
        request: Request<v1::AttachRequest>,
    ) -> Result<Response<v1::AttachReply>, Status> {
        let running = self.running()?;
        if running.is_stopping() {
            let text = "the node is stopping: attach through another";
            return Err(settled(Code::Unavailable, text));
        }
        let v1::AttachRequest {
            volume,
            wait_ms,
            take_over,
        } = request.into_inner();
        let map = self.map().await?;
        let id = id(&map, &volume)?;
        let taken = when_taken(wait_ms, take_over);
        let session = self.0.attach((&volume, id), taken).await?;
        let map = running.host.routes().map.clone();
        let (_, region) = map.region(id).ok_or_else(|| no_volume(&volume))?;
        Ok(Response::new(v1::AttachReply {
            session,
            size_bytes: region.size_bytes,
        }))
    }

    async fn detach(
        &self,
        request: Request<v1::DetachRequest>,
    ) -> Result<Response<v1::DetachReply>, Status> {
        let v1::DetachRequest { volume, session } = request.into_inner();
        match self.0.detach(&volume, session).await? {
            true => Ok(Response::new(v1::DetachReply {})),
            false => Err(no_session(&volume, session)),
        }
    }

    async fn read(
        &self,
        request: Request<v1::ReadRequest>,
    ) -> Result<Response<v1::ReadReply>, Status> {
        let v1::ReadRequest {
            volume,
            offset,
            length,
        } = request.into_inner();
        if length as usize > READ_BYTES_MAX {
            return Err(too_long("a read", length as usize, READ_BYTES_MAX));
        }
        let (bytes, served) = self.bytes(&volume).await?;
        let range = (offset, length.into());
        bytes.check(range).map_err(|error| status(&error))?;
        // Before it takes memory.
        let kind = (VolumeOp::Read, length.into());
        let counted = CountedCall::begin(&served, kind, std::future::pending()).await;
        let counted = counted.map_err(|error| status(&error))?;
        let read = async {
            let part = answer_memory(&self.running()?.in_flight, length as usize).await?;
            let parts = bytes.read(offset, length).await;
            Ok::<_, Status>((joined(parts.map_err(|error| status(&error))?), part))
        };
        let read = read.await;
        counted.end(read.is_ok());
        let (data, part) = read?;
        self.0.door.places.state.count_read(length.into());
        Ok(held(v1::ReadReply { data }, part))
    }

    async fn write(
        &self,
        request: Request<v1::WriteRequest>,
    ) -> Result<Response<v1::WriteReply>, Status> {
        let v1::WriteRequest {
            volume,
            session,
            offset,
            data,
        } = request.into_inner();
        if data.len() > WRITE_BYTES_MAX {
            return Err(too_long("a write", data.len(), WRITE_BYTES_MAX));
        }
        let range = (offset, data.len() as u64);
        let write = |bytes: VolumeBytes, session| {
            let data = data.clone();
            async move { bytes.write(session, offset, data).await }
        };
        self.change((&volume, session), (VolumeOp::Write, range), write)
            .await?;
        Ok(Response::new(v1::WriteReply {}))
    }

    async fn zero(
        &self,
        request: Request<v1::ZeroRequest>,
    ) -> Result<Response<v1::ZeroReply>, Status> {
        let v1::ZeroRequest {
            volume,
            session,
            offset,
            length,
        } = request.into_inner();
        let range = (offset, length);
        let zero =
            |bytes: VolumeBytes, session| async move { bytes.zero(session, range, false).await };
        self.change((&volume, session), (VolumeOp::Zero, range), zero)
            .await?;
        Ok(Response::new(v1::ZeroReply {}))
    }

    async fn discard(
        &self,
        request: Request<v1::DiscardRequest>,
    ) -> Result<Response<v1::DiscardReply>, Status> {
        let v1::DiscardRequest {
            volume,
            session,
            offset,
            length,
        } = request.into_inner();
        let trim =
            |bytes: VolumeBytes, session| async move { bytes.trim(session, offset, length).await };
        self.change(
            (&volume, session),
            (VolumeOp::Discard, (offset, length)),
            trim,
        )
        .await?;
        Ok(Response::new(v1::DiscardReply {}))
    }

    async fn flush(
        &self,
        request: Request<v1::FlushRequest>,
    ) -> Result<Response<v1::FlushReply>, Status> {
        let v1::FlushRequest { volume, session } = request.into_inner();
        let (bytes, served, attachment) = match session {
            0 => {
                let (bytes, served) = self.bytes(&volume).await?;
                (bytes, served, None)
            }
            session => {
                let session = self.0.session(&volume, session)?;
                (session.bytes, session.served, Some(session.attachment))
            }
        };
        let never = std::future::pending();
        let counted = CountedCall::begin(&served, (VolumeOp::Flush, 0), never).await;
        let counted = counted.map_err(|error| status(&error))?;
        let done = match &attachment {
            Some(attachment) => attachment.flush(&bytes).await,
            None => bytes.flush(0).await,
        };
        counted.end(done.is_ok());
        if let (Err(error), Some(attachment)) = (&done, &attachment)
            && error.ends_session
        {
            attachment.set_over();
        }
        done.map_err(|error| status(&error))?;
        Ok(Response::new(v1::FlushReply {}))
    }

    async fn heartbeat(
        &self,
        _request: Request<v1::HeartbeatRequest>,
    ) -> Result<Response<v1::HeartbeatReply>, Status> {
        let running = self.running()?;
        let life = running.host.life;
        let map = running.host.routes().map.clone();
        let name = |id: NodeId| map.nodes.get(&id).map(|node| node.name.clone());
        let sessions = self.0.sessions().into_iter();
        let sessions = sessions.map(|(volume, session)| v1::Session { volume, session });
        Ok(Response::new(v1::HeartbeatReply {
            cluster: life.cluster.0,
            node: life.node.0,
            node_name: name(life.node).unwrap_or_default(),
            incarnation: life.incarnation.0,
            map_revision: map.revision.0,
            stopping: running.is_stopping(),
            sessions: sessions.collect(),
        }))
    }

    type CheckConsistencyStream = BoxStream<v1::CheckConsistencyReply>;

    async fn check_consistency(
        &self,
        request: Request<v1::CheckConsistencyRequest>,
    ) -> Result<Response<Self::CheckConsistencyStream>, Status> {
        let running = self.running()?.clone();
        let name = request.into_inner().volume;
        let map = self.map().await?;
        let id = id(&map, &name)?;
        let place = self.0.door.checks.clone().try_acquire_owned();
        let place = place.map_err(|_| {
            let text = format!("{CHECKS_MAX} checks are under way at this node already: ask again later, or another");
            settled(Code::Unavailable, text)
        })?;
        Ok(Response::new(consistency::check(running, id, place)))
    }
}
