//! Members that come back from the disks of the node.

use std::sync::Arc;
use std::time::Instant;

use staves_group::Member;
use staves_model::{GroupId, MemberId, Time};
use staves_store::Budget;

use crate::disk::NodeDisk;

/// A member that is to be made.
pub(super) struct NewMember<'a> {
    pub(super) group: GroupId,
    pub(super) me: MemberId,
    pub(super) budget: &'a Arc<Budget>,
    pub(super) now: Time,
}

/// A member as the disk has it, or a new one.
pub(super) fn member_on_disk(
    disk: &Arc<NodeDisk>,
    options: staves_group::Options,
    new: NewMember<'_>,
) -> Option<Member> {
    let NewMember {
        group,
        me,
        budget,
        now,
    } = new;
    let arena = disk.arena.clone();
    if disk.failure().is_some() {
        return None;
    }
    let Some(recovered) = disk.take_recovered(group) else {
        return Some(Member::new(options, group, me, arena, budget.clone()));
    };
    let began = Instant::now();
    let kept = &mut disk.kept_pages(group).into_iter();
    let budget = budget.clone();
    let recovered = Member::recover(options, group, me, arena, budget, now, recovered, kept);
    match recovered {
        Ok(member) => {
            let (_, pages) = member.progress();
            let ms = began.elapsed().as_millis() as u64;
            tracing::info!(%group, epoch = %member.epoch(), pages, ms, "a bucket is back from the disk");
            Some(member)
        }
        Err(error) => {
            disk.give_back(group, &error.to_string());
            None
        }
    }
}
