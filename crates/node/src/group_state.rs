//! A node's part in one group, in figures.

use serde::{Deserialize, Serialize};
use staves_directory::Life;
use staves_group::Member;
use staves_model::{GroupId, Time};

/// A node's part in a group.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupState {
    /// The group.
    pub group: u32,
    /// The node.
    pub node: u64,
    /// Its life.
    pub incarnation: u64,
    /// Its member slot; `None` if it is no member.
    pub slot: Option<u8>,
    /// Its epoch.
    pub epoch: u64,
    /// True if that is open, as far as it knows.
    pub open: bool,
    /// True if it is the data bucket of an open epoch.
    pub serving: bool,
    /// The end of its page table.
    pub pages: u32,
    /// Pages that it still has to fetch or rebuild.
    pub missing_pages: u32,
    /// Extents of 256 KiB in use.
    pub extents: u32,
    /// Extents reserved, those in use among them.
    pub extents_reserved: u32,
    /// Requests that wait at it.
    pub requests_waiting: u64,
    /// The last time that it fetched pages that it lacked.
    pub fill: Option<FillState>,
    /// The streams that it holds: a data bucket and its twin their own, a parity bucket all.
    pub streams: Vec<StreamState>,
    /// The same of the second member of the group that the node holds, if it does.
    pub second: Option<Box<GroupState>>,
}

/// The fetching of pages that a member lacked when its epoch opened. Times count back from the report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FillState {
    /// Pages that it lacked.
    pub pages: u32,
    /// Pages that were fetched out of turn, because a client waited for them.
    pub demanded_pages: u32,
    /// The opening of the epoch.
    pub began_us_ago: u64,
    /// The moment at which it had all; `None` while it has not.
    pub ended_us_ago: Option<u64>,
}

/// A member's progress in one data bucket's stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamState {
    /// The data bucket's member slot.
    pub stream: u8,
    /// It has every delta up to here.
    pub prefix: u64,
    /// The low watermark, as far as it knows.
    pub stable: u64,
    /// Deltas up to here are in its pages.
    pub applied: u64,
    /// Bytes in its log.
    pub log_bytes: u64,
}

impl GroupState {
    /// The state of the node's member in this slot.
    pub fn of_slot(self, slot: u8) -> Option<GroupState> {
        let second = self.second.clone().map(|second| *second);
        let both = [Some(self), second].into_iter().flatten();
        both.into_iter().find(|state| state.slot == Some(slot))
    }

    /// The state of a node's cells of a group, as one: the first that is a member, then the other.
    pub(crate) fn joined(states: impl Iterator<Item = GroupState>) -> Option<GroupState> {
        let mut states: Vec<GroupState> = states.collect();
        // Stable: the node itself before the one beside it.
        states.sort_by_key(|state| state.slot.is_none());
        let mut states = states.into_iter();
        let mut first = states.next()?;
        let second = states.find(|state| state.slot.is_some());
        first.second = second.map(Box::new);
        Some(first)
    }

    pub(crate) fn of(
        group: GroupId,
        life: &Life,
        now: Time,
        member: Option<&Member>,
        requests_waiting: usize,
    ) -> GroupState {
        let mut state = GroupState {
            group: group.0,
            node: life.node.0,
            incarnation: life.incarnation.0,
            requests_waiting: requests_waiting as u64,
            ..GroupState::default()
        };
        let Some(member) = member else {
            return state;
        };
        let Some(slot) = member.slot() else {
            return state;
        };
        state.slot = Some(slot.0);
        state.epoch = member.epoch().0;
        state.open = member.is_open();
        state.serving = member.serving();
        (state.missing_pages, state.pages) = member.progress();
        if let Some(pages) = member.pages() {
            (state.extents, state.extents_reserved) = (pages.used(), pages.reserved());
        }
        let ago = |at: Time| now.since(at).as_micros() as u64;
        state.fill = member.backfill_stats().map(|filled| FillState {
            pages: filled.pages,
            demanded_pages: filled.demanded,
            began_us_ago: ago(filled.began),
            ended_us_ago: filled.ended.map(ago),
        });
        state.streams = (0..=u8::MAX)
            .map_while(|stream| Some((stream, member.stream(stream.into())?)))
            .filter(|(stream, _)| member.keeps((*stream).into()))
            .map(|(number, stream)| StreamState {
                stream: number,
                prefix: stream.prefix,
                stable: stream.stable,
                applied: stream.applied,
                log_bytes: stream.log.bytes() as u64,
            })
            .collect();
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node that holds two members says so of both, and whoever asks for one of them finds it.
    #[test]
    fn both_members_of_a_node_are_found_by_slot() {
        let state = |slot: Option<u8>| GroupState {
            slot,
            ..GroupState::default()
        };
        let slots = |states: &[Option<u8>]| {
            let joined = GroupState::joined(states.iter().map(|slot| state(*slot)))?;
            let second = joined.second.as_ref().and_then(|second| second.slot);
            Some((joined.slot, second))
        };
        assert_eq!(slots(&[]), None, "an unknown group");
        assert_eq!(slots(&[None, None]), Some((None, None)));
        assert_eq!(slots(&[None, Some(2)]), Some((Some(2), None)));
        assert_eq!(slots(&[Some(5), Some(2)]), Some((Some(5), Some(2))));
        let joined = GroupState::joined([Some(5), Some(2)].map(state).into_iter());
        let of = |slot| joined.clone().and_then(|joined| joined.of_slot(slot));
        assert_eq!(of(2).and_then(|state| state.slot), Some(2));
        assert_eq!(of(5).and_then(|state| state.slot), Some(5));
        assert_eq!(of(3), None);
    }
}
