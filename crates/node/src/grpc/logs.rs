//! The calls on logs.

use std::sync::Arc;

use prost::Message;
use staves_client::{AppendMode, LogStat};
use staves_grpc::logs_v1::logs_server::Logs;
use staves_grpc::logs_v1::{self as v1, FollowReply, Mode, Record};
use tokio::sync::mpsc;
use tonic::codegen::BoxStream;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, async_trait};

use super::bodies::{StreamProgress, held};
use super::connection::GrpcConnection;
use super::cursors;
use super::failure::settled;
use super::log_failure::{failed, status, target, until};
use crate::log_gateway::appends::GatewayAppend;
use crate::log_gateway::follow::{FollowEvent, FollowForm, FollowFrom, Follower};
use crate::log_gateway::{
    APPEND_RECORDS_MAX, LIST_MAX, LOG_BATCH_BYTES_MAX, LogGateway, READ_RECORDS_MAX, ReadFrom,
};

/// Most bytes of an append's message: its records, what stands before each, and the rest.
pub(super) const APPEND_MESSAGE_BYTES_MAX: usize =
    LOG_BATCH_BYTES_MAX + 8 * APPEND_RECORDS_MAX + (4 << 10);
/// gRPC's head of a message.
const HEAD_BYTES: usize = 5;

/// The calls of one connection.
#[derive(Clone)]
pub(super) struct LogService(Arc<GrpcConnection>);

impl LogService {
    pub(super) fn new(connection: Arc<GrpcConnection>) -> LogService {
        LogService(connection)
    }

    fn logs(&self) -> &Arc<LogGateway> {
        &self.0.door.logs
    }
}

/// A number of things where 0 is the most.
fn at_most(asked: u32, most: usize) -> usize {
    match asked {
        0 => most,
        asked => most.min(asked as usize),
    }
}

fn log(stat: LogStat) -> v1::Log {
    let mode = match stat.mode {
        AppendMode::Bind => Mode::Bind,
        AppendMode::Predict => Mode::Predict,
        AppendMode::Corfu => Mode::Corfu,
    };
    v1::Log {
        name: stat.name,
        pool: stat.pool,
        mode: mode.into(),
        term: stat.term,
        sequencer: stat.sequencer,
        units: u32::try_from(stat.units).unwrap_or(u32::MAX),
        trim: stat.trim,
    }
}

fn records(records: Vec<(u64, bytes::Bytes)>) -> Vec<Record> {
    let record = |(position, value)| Record { position, value };
    records.into_iter().map(record).collect()
}

/// Records as messages of a stream. HTTP/2 asks by itself whether a client lives.
struct GrpcForm;

impl FollowForm for GrpcForm {
    type Item = Result<FollowReply, Status>;

    fn item(event: FollowEvent) -> Option<(Self::Item, usize)> {
        match event {
            FollowEvent::Records(all) => {
                let reply = FollowReply {
                    records: records(all),
                };
                let bytes = HEAD_BYTES + reply.encoded_len();
                Some((Ok(reply), bytes))
            }
            FollowEvent::Quiet => None,
            FollowEvent::Ended(error) => Some((Err(status(&error)), 0)),
        }
    }
}

#[async_trait]
impl Logs for LogService {
    async fn create(
        &self,
        request: Request<v1::CreateRequest>,
    ) -> Result<Response<v1::CreateReply>, Status> {
        let request = request.into_inner();
        let mode = match Mode::try_from(request.mode) {
            Ok(Mode::Unspecified | Mode::Bind) => AppendMode::Bind,
            Ok(Mode::Predict) => AppendMode::Predict,
            Ok(Mode::Corfu) => AppendMode::Corfu,
            Err(_) => {
                let text = format!(
                    "there is no mode {}: MODE_BIND, MODE_PREDICT or MODE_CORFU",
                    request.mode
                );
                return Err(settled(Code::InvalidArgument, text));
            }
        };
        let target = target(request.name, request.pool);
        let made = self.logs().create(&target, mode, until(0)).await;
        let log = Some(log(made.map_err(failed)?));
        Ok(Response::new(v1::CreateReply { log }))
    }

    async fn list(
        &self,
        request: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListReply>, Status> {
        let v1::ListRequest {
            pool,
            after_pool,
            after_name,
            limit,
        } = request.into_inner();
        let after = after_name.map(|name| (after_pool.unwrap_or_default(), name));
        let most = at_most(limit, LIST_MAX);
        let page = self.logs().list(pool.as_deref(), after, most, until(0));
        let page = page.await.map_err(failed)?;
        Ok(Response::new(v1::ListReply {
            logs: page.logs.into_iter().map(log).collect(),
            more: page.more,
        }))
    }

    async fn show(
        &self,
        request: Request<v1::ShowRequest>,
    ) -> Result<Response<v1::ShowReply>, Status> {
        let v1::ShowRequest { name, pool } = request.into_inner();
        let stat = self.logs().show(&target(name, pool), until(0)).await;
        let log = Some(log(stat.map_err(failed)?));
        Ok(Response::new(v1::ShowReply { log }))
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteRequest>,
    ) -> Result<Response<v1::DeleteReply>, Status> {
        let v1::DeleteRequest { name, pool } = request.into_inner();
        let deleted = self.logs().delete(&target(name, pool), until(0)).await;
        let warning = deleted.map_err(failed)?.warning.unwrap_or_default();
        Ok(Response::new(v1::DeleteReply { warning }))
    }

    async fn append(
        &self,
        request: Request<v1::AppendRequest>,
    ) -> Result<Response<v1::AppendReply>, Status> {
        let v1::AppendRequest {
            name,
            pool,
            records,
            timeout_ms,
            tags,
            if_tail,
            if_tag,
        } = request.into_inner();
        let count = records.len() as u64;
        let target = target(name, pool);
        let append = GatewayAppend::new(records, tags, (if_tail, if_tag)).map_err(failed)?;
        let appended = self.logs().append(&target, append, until(timeout_ms));
        let first = appended.await.map_err(failed)?;
        Ok(Response::new(v1::AppendReply {
            positions: (first..first.saturating_add(count)).collect(),
        }))
    }

    async fn read(
        &self,
        request: Request<v1::ReadRequest>,
    ) -> Result<Response<v1::ReadReply>, Status> {
        let v1::ReadRequest {
            name,
            pool,
            from,
            count,
            timeout_ms,
            tag,
        } = request.into_inner();
        let (target, count) = (target(name, pool), at_most(count, READ_RECORDS_MAX));
        let from = ReadFrom {
            position: from,
            tag,
        };
        let read = self.logs().read(&target, from, count, until(timeout_ms));
        let batch = read.await.map_err(failed)?;
        let reply = v1::ReadReply {
            records: records(batch.records),
            next: batch.next,
            tail: batch.tail,
        };
        Ok(held(reply, batch.part))
    }

    async fn tail(
        &self,
        request: Request<v1::TailRequest>,
    ) -> Result<Response<v1::TailReply>, Status> {
        let v1::TailRequest { name, pool } = request.into_inner();
        let tail = self.logs().tail(&target(name, pool), until(0)).await;
        let tail = tail.map_err(failed)?;
        Ok(Response::new(v1::TailReply { tail }))
    }

    async fn trim(
        &self,
        request: Request<v1::TrimRequest>,
    ) -> Result<Response<v1::TrimReply>, Status> {
        let v1::TrimRequest { name, pool, to } = request.into_inner();
        let trimmed = self.logs().trim(&target(name, pool), to, until(0)).await;
        let log = Some(log(trimmed.map_err(failed)?));
        Ok(Response::new(v1::TrimReply { log }))
    }

    async fn punch(
        &self,
        request: Request<v1::PunchRequest>,
    ) -> Result<Response<v1::PunchReply>, Status> {
        let v1::PunchRequest { name, pool, at } = request.into_inner();
        let punched = self.logs().punch(&target(name, pool), at, until(0)).await;
        punched.map_err(failed)?;
        Ok(Response::new(v1::PunchReply {}))
    }

    async fn list_cursors(
        &self,
        request: Request<v1::ListCursorsRequest>,
    ) -> Result<Response<v1::ListCursorsReply>, Status> {
        let v1::ListCursorsRequest { name, pool } = request.into_inner();
        cursors::list(self.logs(), target(name, pool)).await
    }

    async fn get_cursor(
        &self,
        request: Request<v1::GetCursorRequest>,
    ) -> Result<Response<v1::GetCursorReply>, Status> {
        cursors::get(self.logs(), request.into_inner()).await
    }

    async fn set_cursor(
        &self,
        request: Request<v1::SetCursorRequest>,
    ) -> Result<Response<v1::SetCursorReply>, Status> {
        cursors::set(self.logs(), request.into_inner()).await
    }

    async fn delete_cursor(
        &self,
        request: Request<v1::DeleteCursorRequest>,
    ) -> Result<Response<v1::DeleteCursorReply>, Status> {
        cursors::delete(self.logs(), request.into_inner()).await
    }

    type FollowStream = BoxStream<FollowReply>;

    async fn follow(
        &self,
        request: Request<v1::FollowRequest>,
    ) -> Result<Response<Self::FollowStream>, Status> {
        let v1::FollowRequest {
            name,
            pool,
            from,
            from_tail,
            tag,
        } = request.into_inner();
        let from = match (from, from_tail) {
            (Some(_), true) => {
                let text = "from and from_tail: give one of them";
                return Err(settled(Code::InvalidArgument, text));
            }
            (Some(from), false) => FollowFrom::Position(from),
            (None, true) => FollowFrom::Tail,
            (None, false) => FollowFrom::Begin,
        };
        let target = target(name, pool);
        let follower = Follower::begin(self.logs(), target, (from, tag), until(0));
        let follower = follower.await.map_err(failed)?;
        let (items, stream) = mpsc::channel(1);
        let (sent, progress) = mpsc::unbounded_channel();
        let connection = self.0.clone();
        tokio::spawn(async move {
            if !follower.run::<GrpcForm>(items, progress).await {
                connection.close();
            }
        });
        let stream: Self::FollowStream = Box::pin(ReceiverStream::new(stream));
        let mut response = Response::new(stream);
        response.extensions_mut().insert(StreamProgress(sent));
        Ok(response)
    }
}
