//! What a node says of its part in one group: for `staves group show`, and for scrubbing.

use bytes::Bytes;
use staves_net::Reply;
use staves_wire::admin::{GroupPages, GroupPagesAnswer, GroupStateAnswer, GroupTarget};
use staves_wire::{ErrorCode, Message};

use crate::group_state::GroupState;
use crate::host::Host;

/// Most pages of one answer: 1 MiB.
const PAGES_MAX: u32 = 256;

pub(super) fn state(host: &Host, target: GroupTarget, reply: Reply) {
    let Some(cell) = host.routes().cell(target.group).cloned() else {
        return reply.error(ErrorCode::NotFound, no_group(target));
    };
    let state = {
        let state = cell.lock();
        let member = state.bucket.as_ref().map(|bucket| bucket.member());
        GroupState::of(
            target.group,
            &host.life,
            host.clock.now(),
            member,
            state.waiting(),
        )
    };
    match serde_json::to_vec(&state) {
        Ok(json) => reply.send(&Message::GroupStateAnswer(GroupStateAnswer {
            json: Bytes::from(json),
        })),
        Err(error) => reply.error(ErrorCode::Internal, error.to_string()),
    }
}

/// Gives pages with their labels, as to a joiner: those that are here.
pub(super) fn pages(host: &Host, ask: GroupPages, reply: Reply) {
    let target = GroupTarget { group: ask.group };
    let Some(cell) = host.routes().cell(target.group).cloned() else {
        return reply.error(ErrorCode::NotFound, no_group(target));
    };
    let answer = {
        let state = cell.lock();
        let member = state.bucket.as_ref().map(|bucket| bucket.member());
        member.and_then(|member| {
            let end = ask.page.saturating_add(ask.count.min(PAGES_MAX));
            Some(GroupPagesAnswer {
                slot: member.slot().filter(|_| member.is_open())?,
                epoch: member.epoch(),
                end: member.progress().1,
                parts: (ask.page..end)
                    .filter_map(|page| member.part(page))
                    .collect(),
            })
        })
    };
    match answer {
        Some(answer) => reply.send(&Message::GroupPagesAnswer(answer)),
        None => {
            let (me, group) = (host.life.node, ask.group);
            let text = format!("node {me} is no member of an open epoch of group {group}");
            reply.error(ErrorCode::NotServing, text);
        }
    }
}

fn no_group(target: GroupTarget) -> String {
    format!(
        "there is no group {}; 'staves group list' shows those there are",
        target.group
    )
}
