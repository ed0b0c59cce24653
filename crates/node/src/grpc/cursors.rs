//! The calls on cursors of logs.

use staves_grpc::logs_v1 as v1;
use tonic::{Code, Response, Status};

use super::failure::settled;
use super::log_failure::{failed, target, until};
use crate::log_gateway::{LogGateway, LogTarget};

pub(super) async fn list(
    logs: &LogGateway,
    target: LogTarget,
) -> Result<Response<v1::ListCursorsReply>, Status> {
    let cursors = logs.cursors(&target, until(0)).await.map_err(failed)?;
    let cursor = |(name, position)| v1::Cursor { name, position };
    let cursors = cursors.into_iter().map(cursor).collect();
    Ok(Response::new(v1::ListCursorsReply { cursors }))
}

pub(super) async fn get(
    logs: &LogGateway,
    request: v1::GetCursorRequest,
) -> Result<Response<v1::GetCursorReply>, Status> {
    let v1::GetCursorRequest { name, pool, cursor } = request;
    let position = logs.cursor(&target(name, pool), &cursor, until(0)).await;
    let position = position.map_err(failed)?;
    Ok(Response::new(v1::GetCursorReply { position }))
}

pub(super) async fn set(
    logs: &LogGateway,
    request: v1::SetCursorRequest,
) -> Result<Response<v1::SetCursorReply>, Status> {
    let v1::SetCursorRequest {
        name,
        pool,
        cursor,
        position,
        if_at,
        if_new,
    } = request;
    let from = match (if_at, if_new) {
        (Some(_), true) => {
            let text = "if_at and if_new: give one of them";
            return Err(settled(Code::InvalidArgument, text));
        }
        (Some(at), false) => Some(Some(at)),
        (None, true) => Some(None),
        (None, false) => None,
    };
    let target = target(name, pool);
    let set = logs.set_cursor(&target, &cursor, (from, position), until(0));
    set.await.map_err(failed)?;
    Ok(Response::new(v1::SetCursorReply {}))
}

pub(super) async fn delete(
    logs: &LogGateway,
    request: v1::DeleteCursorRequest,
) -> Result<Response<v1::DeleteCursorReply>, Status> {
    let v1::DeleteCursorRequest {
        name,
        pool,
        cursor,
        if_at,
    } = request;
    let target = target(name, pool);
    let deleted = logs.delete_cursor(&target, &cursor, if_at, until(0));
    deleted.await.map_err(failed)?;
    Ok(Response::new(v1::DeleteCursorReply {}))
}
