//! Requests to units and homes of logs, through any router: those of a client, and those of a node's sequencers.

use std::collections::BTreeMap;
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
    unit_reply(ask(router, pool, unit, call, deadline).await?)
}

/// The longest wait of a user.
const WAIT_MAX: Duration = Duration::from_secs(1 << 30);

/// The bounds of a batch of requests to a unit: the router sends it as one.
const BATCH_REQUESTS_MAX: usize = 256;
/// See [`BATCH_REQUESTS_MAX`]: the bytes of the records.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// Requests to units that go out together, in batches by their unit.
#[derive(Debug)]
pub struct UnitBatches<K> {
    of: BTreeMap<UnitId, Vec<UnitBatch<K>>>,
}

/// A batch: the requests, each with what its answer is for.
#[derive(Debug)]
pub struct UnitBatch<K> {
    requests: Vec<(K, UnitRequest)>,
    bytes: usize,
}

impl<K> UnitBatch<K> {
    /// Its requests.
    #[expect(clippy::len_without_is_empty, reason = "a batch is never empty")]
    pub fn len(&self) -> u32 {
        self.requests.len() as u32
    }
}

impl<K> Default for UnitBatches<K> {
    fn default() -> UnitBatches<K> {
        let of = BTreeMap::new();
        UnitBatches { of }
    }
}

impl<K> UnitBatches<K> {
    /// One more request. What is asked in one batch is answered together.
    pub fn push(&mut self, unit: UnitId, of: K, request: UnitRequest) {
        let added = request.op.data_bytes();
        let batches = self.of.entry(unit).or_default();
        let has_room = |batch: &UnitBatch<K>| {
            batch.requests.len() < BATCH_REQUESTS_MAX && batch.bytes + added <= BATCH_BYTES_MAX
        };
        match batches.last_mut().filter(|batch| has_room(batch)) {
            Some(batch) => {
                batch.bytes += added;
                batch.requests.push((of, request));
            }
            None => batches.push(UnitBatch {
                requests: vec![(of, request)],
                bytes: added,
            }),
        }
    }

    /// All batches so far.
    pub fn take(&mut self) -> impl Iterator<Item = (UnitId, UnitBatch<K>)> {
        let all = std::mem::take(&mut self.of).into_iter();
        all.flat_map(|(unit, batches)| batches.into_iter().map(move |batch| (unit, batch)))
    }
}

/// Asks a unit what a batch has, and brings each answer with what it is for, in order.
pub async fn ask_batch<T: Transport, K>(
    router: &Router<T>,
    pool: PoolId,
    unit: UnitId,
    batch: UnitBatch<K>,
    deadline: Instant,
) -> Vec<(K, Result<UnitReply, ClientError>)> {
    let (of, calls): (Vec<K>, Vec<_>) = batch.requests.into_iter().unzip();
    let calls = calls.into_iter().map(BucketRequest::Unit);
    let ops = calls.map(|call| service_op(unit, UnitCall::Request(call)));
    let pool = PoolRef::Id(pool);
    let asked = router.execute(ServiceId::LOG, &pool, ops.collect(), deadline);
    match asked.await {
        Ok(answers) => {
            let answers = answers.into_iter().map(|answer| match answer {
                Answer::Error(code, text) => Err(ClientError::of(code, text)),
                answer => unit_reply(answer),
            });
            of.into_iter().zip(answers).collect()
        }
        Err(error) => {
            let each = of.into_iter().map(|of| (of, Err(error.clone())));
            each.collect()
        }
    }
}

fn unit_reply(answer: Answer) -> Result<UnitReply, ClientError> {
    match answer {
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

fn service_op(unit: UnitId, call: UnitCall) -> ServiceOp {
    ServiceOp {
        to: Address::Bucket(unit, MemberSlot(0)),
        is_write: call.is_write(),
        body: call.into_body(),
        answer_bytes: 0,
    }
}

async fn ask<T: Transport>(
    router: &Router<T>,
    pool: PoolId,
    unit: UnitId,
    call: UnitCall,
    deadline: Instant,
) -> Result<Answer, ClientError> {
    let op = service_op(unit, call);
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

/// The end of a wait, however long.
pub(super) fn after(up_to: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(up_to).unwrap_or(now + WAIT_MAX)
}

/// The end of a request that a machine makes: it is made again, so that it need not be long.
pub(super) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(2)
}

#[cfg(test)]
mod tests {
    use staves_log::{Binding, LogId, Records, SequencerId, Term, TermStart, UnitOp};
    use staves_model::{Incarnation, NodeId};

    use super::*;

    fn request(bytes: usize) -> UnitRequest {
        let write = UnitOp::Write {
            term: TermStart {
                term: Term(1),
                start: 0,
                sequencer: SequencerId {
                    node: NodeId(1),
                    incarnation: Incarnation(1),
                },
            },
            binding: Binding {
                position: 0,
                count: 1,
                id: None,
                links: Vec::new(),
            },
            low: 0,
            data: Records {
                lens: vec![bytes as u32],
                bytes: vec![0; bytes].into(),
            },
        };
        let log = LogId(1);
        UnitRequest { log, op: write }
    }

    #[test]
    fn a_batch_is_of_one_unit_and_within_its_bounds() {
        let mut batches = UnitBatches::default();
        for at in 0..2 * BATCH_REQUESTS_MAX {
            batches.push(GroupId(at as u32 % 2), at, request(1));
        }
        batches.push(GroupId(1), 0, request(1));
        let sizes = |batches: &mut UnitBatches<usize>| {
            let of = |(unit, batch): (UnitId, UnitBatch<usize>)| (unit.0, batch.requests.len());
            batches.take().map(of).collect::<Vec<_>>()
        };
        let most = BATCH_REQUESTS_MAX;
        assert_eq!(sizes(&mut batches), [(0, most), (1, most), (1, 1)]);
        // Large records go by their bytes, and one that is larger than that alone.
        for bytes in [
            BATCH_BYTES_MAX / 2,
            BATCH_BYTES_MAX / 2,
            1,
            BATCH_BYTES_MAX + 1,
        ] {
            batches.push(GroupId(3), 0, request(bytes));
        }
        assert_eq!(sizes(&mut batches), [(3, 2), (3, 1), (3, 1)]);
        assert_eq!(sizes(&mut batches), []);
    }
}
