//! A node's member of one group: its state for `staves group show`, its sums for scrubbing, and repairs.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use staves_model::{DiskId, GroupId, MemberSlot};
use staves_net::Reply;
use staves_wire::admin::{GroupMend, GroupStateAnswer, GroupSums, GroupSumsAnswer, GroupTarget};
use staves_wire::{ErrorCode, ErrorPacket, Message};

use crate::gate::CostlyTurn;
use crate::group_state::GroupState;
use crate::host::{Cell, CellState, Host, Routes};

/// Most pages of one answer: their sums have 64 KiB.
const PAGES_MAX: u32 = 1024;
/// Pages that are summed under one lock.
const AT_ONCE: u32 = 32;

pub(super) fn state(host: &Host, target: GroupTarget) -> Result<Message, ErrorPacket> {
    let routes = host.routes();
    let states = routes.cells_of(target.group).map(|cell| {
        let state = cell.lock();
        let member = state.bucket.as_ref().map(|bucket| bucket.member());
        let (life, now) = (&host.life, host.clock.now());
        GroupState::of(target.group, life, now, member, state.waiting())
    });
    let Some(state) = GroupState::joined(states) else {
        return Err(ErrorPacket::new(ErrorCode::NotFound, no_group(target)));
    };
    match serde_json::to_vec(&state) {
        Ok(json) => Ok(Message::GroupStateAnswer(GroupStateAnswer {
            json: Bytes::from(json),
        })),
        Err(error) => Err(ErrorPacket::new(ErrorCode::Internal, error.to_string())),
    }
}

/// The cell of the member in this slot; that of the node itself if there is none.
fn cell_at(routes: &Routes, group: GroupId, slot: MemberSlot) -> Option<Arc<Cell>> {
    let holds = |cell: &&Arc<Cell>| {
        let state = cell.lock();
        let member = state.bucket.as_ref().map(|bucket| bucket.member());
        member.and_then(|member| member.slot()) == Some(slot)
    };
    let found = routes.cells_of(group).find(holds);
    found
        .or_else(|| routes.cell(group, DiskId::MEMORY))
        .cloned()
}

/// The sums of the pages of one of its members, of those that are here, as far as they are there when the asker leaves.
pub(crate) async fn sums(
    host: &Host,
    ask: GroupSums,
    turn: &mut CostlyTurn,
    is_gone: impl Fn() -> bool,
) -> Result<GroupSumsAnswer, ErrorPacket> {
    let target = GroupTarget { group: ask.group };
    let Some(cell) = cell_at(&host.routes(), ask.group, ask.slot) else {
        return Err(ErrorPacket::new(ErrorCode::NotFound, no_group(target)));
    };
    let end = ask.page.saturating_add(ask.count.min(PAGES_MAX));
    let mut sums: Option<GroupSumsAnswer> = None;
    let mut page = ask.page;
    loop {
        let some = some_sums(&cell, page..end, &mut sums);
        let (Some(until), Some(sums)) = (some, &sums) else {
            let text = no_member(host, ask.group);
            return Err(ErrorPacket::new(ErrorCode::NotServing, text));
        };
        page = until;
        if page >= end.min(sums.end) || is_gone() {
            break;
        }
        turn.rest().await;
    }
    sums.ok_or_else(|| {
        let text = no_member(host, ask.group);
        ErrorPacket::new(ErrorCode::NotServing, text)
    })
}

/// The sums of a few pages, not of all under one lock: others want the bucket. Where to go on; `None` if it is no member,
/// or another than at the beginning.
fn some_sums(cell: &Cell, pages: Range<u32>, answer: &mut Option<GroupSumsAnswer>) -> Option<u32> {
    cell.lock()
        .unless_lost(None, |state| sums_of(state, pages, answer))
}

fn sums_of(
    state: &CellState,
    pages: Range<u32>,
    answer: &mut Option<GroupSumsAnswer>,
) -> Option<u32> {
    let member = state.bucket.as_ref()?.member();
    let slot = member.slot().filter(|_| member.is_open())?;
    let sums = answer.get_or_insert_with(|| GroupSumsAnswer {
        slot,
        epoch: member.epoch(),
        end: member.progress().1,
        sums: Vec::new(),
    });
    if (sums.slot, sums.epoch) != (slot, member.epoch()) {
        return None;
    }
    // Where nothing was ever written there is nothing to sum.
    let until = pages.start.saturating_add(AT_ONCE);
    let until = pages.end.min(until).min(sums.end);
    let some = (pages.start..until).filter_map(|page| member.sum(page));
    sums.sums.extend(some);
    Some(until.max(pages.start))
}

/// Makes a page of parity anew that was seen to be wrong.
pub(super) fn mend(host: &Host, ask: &GroupMend, reply: Reply) {
    let target = GroupTarget { group: ask.group };
    let routes = host.routes();
    let (Some(cell), Some(group)) = (
        cell_at(&routes, ask.group, ask.slot),
        routes.map.groups.get(&ask.group),
    ) else {
        return reply.error(ErrorCode::NotFound, no_group(target));
    };
    let map = &routes.map;
    let whole = group.open
        && group
            .members
            .iter()
            .flatten()
            .all(|x| x.complete && map.runs(x.id));
    if !whole {
        let text = format!(
            "group {} is not whole: a page is made anew once all its members are",
            ask.group
        );
        return reply.error(ErrorCode::Refused, text);
    }
    let now = host.clock.now();
    let mut state = cell.lock();
    let done = state.unless_lost(Some(false), |state| {
        let member = state.bucket.as_mut()?.member_to_mend()?;
        Some(member.slot() == Some(ask.slot) && member.mend(now, ask.page, &ask.labels))
    });
    drop(state);
    let Some(done) = done else {
        let text = "only pages of memory pools are made anew, by a member of their group";
        return reply.error(ErrorCode::Refused, text);
    };
    match done {
        true => {
            cell.stir(host);
            reply.send(&Message::Done);
        }
        false => reply.error(
            ErrorCode::Busy,
            "the page was written meanwhile: look at it again",
        ),
    }
}

fn no_member(host: &Host, group: GroupId) -> String {
    let me = host.life.node;
    format!("node {me} is no member of an open epoch of group {group}, or became another")
}

fn no_group(target: GroupTarget) -> String {
    format!(
        "there is no group {}; 'staves group list' shows those there are",
        target.group
    )
}
