//! Operations of one connection that this node's buckets do not answer: for other nodes, or refused
//! here, or interrupted by a takeover.
//!
//! They keep the order in which the connection sent them: one batch is under way at a time, and later
//! operations for a bucket that has any on a detour take the detour too. Nor does any set out while an
//! earlier one waits at this node's bucket: a takeover could refuse that one, and find the later done.
//! Answers leave in order anyway, so nobody waits longer for that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use staves_client::turn::ServiceOp;
use staves_model::mutant::{Mutant, planted};
use staves_model::{ClientId, PoolId, ServiceId, Time};
use staves_wire::ErrorCode;
use staves_wire::cache::Op;
use staves_wire::group::RequestId;
use staves_wire::service::{Address, Answer, NumberedOp, PoolRef, ServiceRequest};

use super::completions::{Completion, CompletionQueue};
use crate::forward::resume;
use crate::host::Host;

/// Most operations of one batch.
const BATCH_OPS_MAX: usize = 1024;

/// An operation on a detour.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) bucket: u32,
    pub(super) op: ServiceOp,
    /// The number under which it may have taken effect already.
    pub(super) request: Option<RequestId>,
    pub(super) deadline: Time,
}

impl Wanted {
    /// An operation that sets out, under the number that it may have had already.
    pub(super) fn new(
        bucket: u32,
        op: &Op<'_>,
        request: Option<RequestId>,
        deadline: Time,
    ) -> Wanted {
        let op = ServiceOp {
            to: Address::Slot(op.slot()),
            body: op.to_body(),
            is_write: op.is_write(),
            answer_bytes: 0,
        };
        Wanted {
            bucket,
            op,
            request,
            deadline,
        }
    }
}

/// An operation that came back.
#[derive(Debug)]
pub(crate) struct Detoured {
    place: u64,
    part: u32,
    bucket: u32,
    answer: Answer,
}

/// One connection's detour.
#[derive(Debug, Default)]
pub(super) struct Detour {
    /// By place and part: the order in which they came.
    queued: BTreeMap<(u64, u32), Wanted>,
    /// Operations on the detour, queued or under way, by bucket.
    held: BTreeMap<u32, u32>,
    under_way: bool,
}

impl Detour {
    /// True if operations of this bucket are on the detour, so that later ones must follow.
    #[inline]
    pub(super) fn holds(&self, bucket: u32) -> bool {
        !self.held.is_empty() && self.held.contains_key(&bucket)
    }

    pub(super) fn push(&mut self, place: u64, part: u32, wanted: Wanted) {
        *self.held.entry(wanted.bucket).or_default() += 1;
        self.queued.insert((place, part), wanted);
    }

    /// True if there is anything to set out with.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        !self.under_way && !self.queued.is_empty()
    }

    /// Sets out with what is queued, unless a batch is under way. `waiting`: buckets at which operations
    /// of this connection wait.
    pub(super) fn set_out(
        &mut self,
        host: &Arc<Host>,
        completions: &Arc<CompletionQueue>,
        pool: PoolId,
        waiting: &BTreeSet<u32>,
    ) {
        if self.under_way {
            return;
        }
        let batch = self.next_batch(waiting);
        if batch.is_empty() {
            return;
        }
        self.under_way = true;
        let (host, completions) = (host.clone(), completions.clone());
        tokio::spawn(async move {
            let came_back = travel(&host, pool, batch).await;
            completions.put(Completion::Detoured(came_back));
        });
    }

    /// Nobody waits any more: what has not set out does not. The numbers under which it would have asked.
    pub(super) fn give_up(&mut self) -> impl Iterator<Item = (u32, RequestId)> {
        let queued = std::mem::take(&mut self.queued).into_values();
        queued.filter_map(|wanted| Some((wanted.bucket, wanted.request?)))
    }

    fn next_batch(&mut self, waiting: &BTreeSet<u32>) -> Vec<((u64, u32), Wanted)> {
        let free = |(_, wanted): &(&(u64, u32), &Wanted)| !waiting.contains(&wanted.bucket);
        let homes = self.queued.iter().filter(free).map(|(home, _)| *home);
        let homes: Vec<(u64, u32)> = homes.take(BATCH_OPS_MAX).collect();
        let taken = homes.into_iter();
        taken
            .filter_map(|home| self.queued.remove_entry(&home))
            .collect()
    }

    /// A batch came back: hands its answers out.
    pub(super) fn back(&mut self, batch: Vec<Detoured>, mut settle: impl FnMut(u64, u32, Answer)) {
        self.under_way = false;
        for one in batch {
            self.let_go(one.bucket);
            settle(one.place, one.part, one.answer);
        }
    }

    /// The pool was deleted, and with it whoever could answer: what is queued does not set out.
    pub(super) fn stay(&mut self, mut settle: impl FnMut(u64, u32, Answer)) {
        for ((place, part), wanted) in std::mem::take(&mut self.queued) {
            self.let_go(wanted.bucket);
            let gone = "the pool that this door serves was deleted";
            let answer = match wanted.request {
                None => Answer::error(ErrorCode::NotFound, gone),
                Some(_) => {
                    let text = format!("the write may or may not have been done before: {gone}");
                    Answer::error(ErrorCode::Unreachable, text)
                }
            };
            settle(place, part, answer);
        }
    }

    fn let_go(&mut self, bucket: u32) {
        if let Some(count) = self.held.get_mut(&bucket) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&bucket);
            }
        }
    }
}

/// The place of an operation's answer.
type Home = (u64, u32, u32);
/// A bucket, and the client under whose numbers it was asked: each bucket has one of its own, and a pool may be made anew
/// with other buckets.
type Lane = (u32, ClientId);
/// An operation that may have been done under this number.
type Begun = (Home, ServiceOp, RequestId);

async fn travel(host: &Arc<Host>, pool: PoolId, batch: Vec<((u64, u32), Wanted)>) -> Vec<Detoured> {
    let now = host.clock.now();
    let latest = batch.iter().map(|(_, wanted)| wanted.deadline).max();
    let deadline = Instant::now() + latest.unwrap_or(now).since(now);
    let mut came_back = Vec::with_capacity(batch.len());
    let mut numbered: BTreeMap<Lane, Vec<Begun>> = BTreeMap::new();
    let mut fresh: Vec<(Home, ServiceOp)> = Vec::new();
    for ((place, part), wanted) in batch {
        let home = (place, part, wanted.bucket);
        match wanted
            .request
            .filter(|_| !planted(Mutant::InterruptedUnderNewNumber))
        {
            Some(request) => {
                let waiting = numbered.entry((wanted.bucket, request.client)).or_default();
                waiting.push((home, wanted.op, request));
            }
            None if wanted.deadline <= now => {
                let text = "the deadline passed before its turn came; nothing was done";
                came_back.push(back(home, Answer::error(ErrorCode::Busy, text)));
            }
            None => fresh.push((home, wanted.op)),
        }
    }
    // First those that may have taken effect: what the connection sent later must find them done.
    for ((bucket, _), ops) in numbered {
        came_back.extend(take_up(host, pool, bucket, ops, deadline).await);
    }
    let (homes, ops): (Vec<Home>, Vec<ServiceOp>) = fresh.into_iter().unzip();
    if ops.is_empty() {
        return came_back;
    }
    let answers = host
        .router()
        .execute(ServiceId::CACHE, &PoolRef::Id(pool), ops, deadline)
        .await
        .unwrap_or_else(|error| vec![Answer::error(error.code(), error.to_string()); homes.len()]);
    came_back.extend(homes.into_iter().zip(answers).map(|(h, a)| back(h, a)));
    came_back
}

/// Asks again for interrupted writes of one bucket, under their numbers.
async fn take_up(
    host: &Arc<Host>,
    pool: PoolId,
    bucket: u32,
    ops: Vec<Begun>,
    deadline: Instant,
) -> Vec<Detoured> {
    let Some((_, _, first)) = ops.first() else {
        return Vec::new();
    };
    let client = first.client;
    let routes = host.routes();
    let cell = routes
        .pools
        .get(&pool)
        .and_then(|p| p.cells.get(bucket as usize));
    let floor = match cell {
        Some(cell) => cell.lock().lane.floor(),
        None => first.floor,
    };
    let mut homes = Vec::new();
    let mut wanted = Vec::new();
    for (home, op, request) in ops {
        homes.push((home, request));
        wanted.push(NumberedOp {
            number: request.number,
            to: op.to,
            body: op.body,
        });
    }
    let request = ServiceRequest {
        revision: routes.map.revision,
        service: ServiceId::CACHE,
        pool: PoolRef::Id(pool),
        client,
        floor,
        retry: true,
        forwarded: true,
        ops: wanted,
    };
    let answers = resume(host, request, deadline).await;
    if let Some(cell) = cell {
        let mut state = cell.lock();
        homes
            .iter()
            .for_each(|(_, request)| state.lane.answered(request));
    }
    let homes = homes.into_iter().map(|(home, _)| home);
    homes.zip(answers).map(|(h, a)| back(h, a)).collect()
}

fn back((place, part, bucket): Home, answer: Answer) -> Detoured {
    Detoured {
        place,
        part,
        bucket,
        answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(bucket: u32) -> Wanted {
        Wanted::new(bucket, &Op::Get { key: b"k" }, None, Time(1))
    }

    /// SET a 1 waits here for the copies; SET a 2 was refused, for the bucket was busy. Should a takeover
    /// lose the first, it must be asked for again before the second is.
    #[test]
    fn nothing_sets_out_before_what_waits_here_for_its_bucket() {
        let mut detour = Detour::default();
        detour.push(8, 0, wanted(3));
        detour.push(9, 0, wanted(4));
        let homes = |batch: Vec<((u64, u32), Wanted)>| -> Vec<(u64, u32)> {
            batch.into_iter().map(|(home, _)| home).collect()
        };
        let waiting = BTreeSet::from([3]);
        assert_eq!(homes(detour.next_batch(&waiting)), [(9, 0)]);
        assert_eq!(homes(detour.next_batch(&waiting)), []);
        // A takeover came: the first is on the detour now, and nothing waits here.
        detour.push(7, 0, wanted(3));
        assert_eq!(homes(detour.next_batch(&BTreeSet::new())), [(7, 0), (8, 0)]);
    }

    #[test]
    fn a_bucket_is_held_until_its_last_operation_is_back() {
        let mut detour = Detour::default();
        assert!(!detour.holds(3));
        detour.push(8, 0, wanted(3));
        detour.push(7, 1, wanted(3));
        detour.push(7, 0, wanted(4));
        let order: Vec<(u64, u32)> = detour.queued.keys().copied().collect();
        assert_eq!(order, [(7, 0), (7, 1), (8, 0)], "as the commands came");
        let mut settled = Vec::new();
        let mut come = |detour: &mut Detour, homes: &[Home]| {
            let batch = homes.iter().map(|home| back(*home, Answer::Nil));
            detour.back(batch.collect(), |place, part, _| {
                settled.push((place, part));
            });
        };
        come(&mut detour, &[(7, 0, 4), (7, 1, 3)]);
        assert!(detour.holds(3) && !detour.holds(4));
        come(&mut detour, &[(8, 0, 3)]);
        assert!(!detour.holds(3));
        assert_eq!(settled, [(7, 0), (7, 1), (8, 0)]);
    }

    /// Regression: what was queued when its pool was deleted was never answered, nor anything after it.
    #[test]
    fn whoever_is_queued_when_the_pool_goes_is_told() {
        let mut detour = Detour::default();
        detour.push(7, 0, wanted(3));
        let request = RequestId {
            client: ClientId(5),
            number: 1,
            floor: 1,
        };
        let begun = Wanted {
            request: Some(request),
            ..wanted(3)
        };
        detour.push(8, 0, begun);
        let mut told = Vec::new();
        detour.stay(|place, _, answer| match answer {
            Answer::Error(code, _) => told.push((place, code)),
            other => panic!("{other:?}"),
        });
        assert_eq!(
            told,
            [(7, ErrorCode::NotFound), (8, ErrorCode::Unreachable)]
        );
        assert!(!detour.holds(3) && !detour.is_ready());
    }
}
