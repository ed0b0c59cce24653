//! An operation at this node's own bucket, if it is this node's to answer.

use std::collections::BTreeSet;
use std::sync::Arc;

use staves_model::Time;
use staves_resp::{Join, Output, Protocol};
use staves_service::AnswerRef;
use staves_wire::cache::Op;

use super::super::completions::CompletionQueue;
use super::super::remote::RemoteOps;
use crate::host::{Cell, Routes, Waiter};

/// Buckets to which operations of a command go by another way. A bucket may come to this node meanwhile: those
/// behind go the same way all the same, or they would be done before them.
#[derive(Default)]
pub(super) struct Left(BTreeSet<u32>);

impl Left {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn try_unless_gone<R>(
        &mut self,
        bucket: Option<u32>,
        try_here: impl FnOnce() -> Tried<R>,
    ) -> Tried<R> {
        if let Some(bucket) = bucket.filter(|bucket| self.0.contains(bucket)) {
            return Tried::Elsewhere(bucket);
        }
        let tried = try_here();
        if let Tried::Elsewhere(bucket) = &tried {
            self.0.insert(*bucket);
        }
        tried
    }
}

/// The result of an operation at this node's own bucket.
#[derive(Debug, PartialEq)]
pub(super) enum Tried<R> {
    Given(R),
    Waits,
    /// Not here: this is its bucket.
    Elsewhere(u32),
    NoPool,
}

#[inline]
#[allow(clippy::too_many_arguments)] // the fields of `Executor` that do not conflict with `give`
pub(super) fn try_here<R>(
    routes: &Routes,
    remote: &RemoteOps,
    completions: &Arc<CompletionQueue>,
    touched: &mut Vec<Arc<Cell>>,
    (now, deadline): (Time, Time),
    (place, part): (u64, u32),
    op: &Op<'_>,
    give: impl FnOnce(AnswerRef<'_>) -> R,
) -> Tried<R> {
    let Some(pool) = routes.door.and_then(|id| routes.pools.get(&id)) else {
        return Tried::NoPool;
    };
    let bucket = pool.bucket_of(op.slot());
    if remote.holds(bucket) {
        return Tried::Elsewhere(bucket);
    }
    let cell = &pool.cells[bucket as usize];
    let mut wants_flush = false;
    let submitted = {
        let mut state = cell.lock();
        if !state.answers() || completions.disturbed() {
            return Tried::Elsewhere(bucket);
        }
        state.submit(
            now,
            deadline,
            op,
            give,
            |request| Waiter::Door {
                completions: completions.clone(),
                place,
                part,
                request,
            },
            &mut wants_flush,
        )
    };
    if wants_flush {
        touched.push(cell.clone());
    }
    match submitted {
        Ok(Some(given)) => Tried::Given(given),
        Ok(None) => Tried::Waits,
        Err(_) => Tried::Elsewhere(bucket),
    }
}

/// Writes a command's answer out of its one operation's.
#[inline]
pub(super) fn put(out: &mut Output, protocol: Protocol, join: Join, answer: AnswerRef<'_>) {
    match (join, answer) {
        (Join::Plain, AnswerRef::Value(bytes)) => out.bulk(bytes),
        (Join::Plain, AnswerRef::Ok) => out.ok(),
        (Join::Plain, AnswerRef::Nil) => out.nil(protocol),
        (Join::Plain, AnswerRef::Int(number)) => out.integer(number),
        (join, answer) => out.join(protocol, join, &[answer.to_owned()]),
    }
}
