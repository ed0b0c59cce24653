//! Requests to units and homes of logs, through any router: those of a client, and those of a node's sequencers.

use std::time::{Duration, Instant};

use bytes::BytesMut;
use staves_log::service::UnitCall;
use staves_log::{
    BucketRequest, LogRecord, RecordRefusal, RecordReply, RecordRequest, SequencerReply, UnitId,
    UnitReply, UnitRequest,
};
use staves_model::{ClusterMap, GroupId, MemberSlot, PoolId, ServiceId, hash_slot};
use staves_wire::ErrorCode;
use staves_wire::service::{Address, Answer, PoolRef};

use crate::error::ClientError;
use crate::router::{Router, Transport};
use crate::turn::ServiceOp;

/// The home of a log: the unit of its name's hash slot.
///
/// # Errors
/// The map has no such pool.
pub fn home_of(map: &ClusterMap, pool: PoolId, name: &str) -> Result<GroupId, ClientError> {
    let group = map.group_of(pool, hash_slot(name.as_bytes()));
    group.map(|group| group.id).ok_or_else(|| {
        let text = format!("the cluster has no pool {pool} any more");
        ClientError::of(ErrorCode::NotFound, text)
    })
}

/// Asks a unit.
///
/// # Errors
/// The unit did not answer in time, or refused the request.
pub async fn ask_unit<T: Transport>(
    router: &Router<T>,
    pool: PoolId,
    unit: UnitId,
    request: UnitRequest,
    deadline: Instant,
) -> Result<UnitReply, ClientError> {
    let call = UnitCall::Request(BucketRequest::Unit(request));
    match ask(router, pool, unit, call, deadline).await? {
        Answer::Value(value) => UnitReply::decode(value).map_err(|error| garbled(&error)),
        other => Err(crate::client::unexpected("a request to a unit", &other)),
    }
}

/// Asks the home of a log.
///
/// # Errors
/// It did not answer in time.
pub async fn ask_home<T: Transport>(
    router: &Router<T>,
    pool: PoolId,
    home: UnitId,
    request: RecordRequest,
    deadline: Instant,
) -> Result<RecordReply, ClientError> {
    let call = UnitCall::Request(BucketRequest::Record(request));
    match ask(router, pool, home, call, deadline).await? {
        Answer::Value(value) => RecordReply::decode(value).map_err(|error| garbled(&error)),
        other => Err(crate::client::unexpected("a request to a home", &other)),
    }
}

/// Brings a unit the answer to what it asked a sequencer itself.
///
/// # Errors
/// It did not take it in time.
pub async fn tell_unit<T: Transport>(
    router: &Router<T>,
    pool: PoolId,
    unit: UnitId,
    reply: SequencerReply,
    deadline: Instant,
) -> Result<(), ClientError> {
    let told = ask(router, pool, unit, UnitCall::Asked(reply), deadline).await;
    told.map(|_| ())
}

async fn ask<T: Transport>(
    router: &Router<T>,
    pool: PoolId,
    unit: UnitId,
    call: UnitCall,
    deadline: Instant,
) -> Result<Answer, ClientError> {
    let op = ServiceOp {
        to: Address::Bucket(unit, MemberSlot(0)),
        is_write: call.is_write(),
        body: call.into_body(),
        answer_bytes: 0,
    };
    let pool = PoolRef::Id(pool);
    let mut answers = router
        .execute(ServiceId::LOG, &pool, vec![op], deadline)
        .await?;
    match answers.pop() {
        Some(Answer::Error(code, text)) => Err(ClientError::of(code, text)),
        Some(answer) => Ok(answer),
        None => Err(crate::client::unexpected("an operation", &Answer::Nil)),
    }
}

/// The bytes of a message to a sequencer.
pub fn encoded(put: impl FnOnce(&mut BytesMut)) -> bytes::Bytes {
    let mut out = BytesMut::new();
    put(&mut out);
    out.freeze()
}

fn garbled(error: &staves_wire::DecodeError) -> ClientError {
    let text = format!("an answer of a log's unit does not decode: {error}");
    ClientError::of(ErrorCode::Internal, text)
}

/// The error of a record that its unit has lost.
pub(super) fn lost(name: &str, position: u64) -> ClientError {
    let text = format!(
        "position {position} of log '{name}' is lost: its unit has no copy of it that can be read ('staves status' says more)"
    );
    ClientError::of(ErrorCode::Lost, text)
}

/// The record of a home's reply, or the reason why there is none.
pub(super) fn record_of(name: &str, reply: RecordReply) -> Result<LogRecord, ClientError> {
    match reply {
        RecordReply::Record(record) | RecordReply::Deleted(record) => Ok(*record),
        RecordReply::Refused(RecordRefusal::NotFound) => Err(no_log(name)),
        RecordReply::Refused(RecordRefusal::Exists) => {
            let text = format!("there is a log '{name}' already: choose another name");
            Err(ClientError::of(ErrorCode::Refused, text))
        }
        RecordReply::Refused(refusal) => {
            let text = format!("log '{name}': {refusal}");
            Err(ClientError::of(ErrorCode::Refused, text))
        }
        RecordReply::Names(_) => Err(crate::client::senseless("a log's record", "names")),
    }
}

fn no_log(name: &str) -> ClientError {
    let text = format!("there is no log '{name}': 'staves log list' shows those that there are");
    ClientError::of(ErrorCode::NotFound, text)
}

/// The error of a log that is another than the one that was opened.
pub(super) fn made_anew(name: &str) -> ClientError {
    let text = format!("log '{name}' was deleted, and another has its name: open it anew");
    ClientError::of(ErrorCode::NotFound, text)
}

/// The end of a request that a machine makes: it is made again, so that it need not be long.
pub(super) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(2)
}
