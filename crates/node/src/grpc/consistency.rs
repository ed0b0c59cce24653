//! The members of a volume's groups, compared page by page while they are in use, as `staves scrub` compares them.
//!
//! Members send sums of their pages, with the labels of the last deltas in them. Pages of the same labels must fit each other; a page
//! whose labels differ is on its way, and is looked at again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use staves_group::{Finding, Sums};
use staves_grpc::v1::CheckConsistencyReply;
use staves_model::{ClusterMap, Group, GroupId, Member, MemberSlot, RegionId};
use staves_wire::Message;
use staves_wire::admin::{GroupSums, GroupSumsAnswer, PageSum};
use staves_wire::hello::Role;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tonic::codegen::BoxStream;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use super::failure::{settled, status};
use crate::native::group;
use crate::running::Running;
use crate::volumes::error::{BlockError, VolumeFault};

/// Pages whose sums are asked of a member at a time.
const PAGES: u32 = 1024;
/// Most looks at a page with updates under way, and the rest between them.
const LOOKS: usize = 40;
const REST: Duration = Duration::from_millis(50);
/// The time that a member may take to answer, and the wait for a turn among costly requests.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Replies that wait for the client.
const REPLIES_MAX: usize = 2;

/// Compares all groups of a volume, one after another.
pub(super) fn check(
    running: Arc<Running>,
    id: RegionId,
    place: OwnedSemaphorePermit,
) -> BoxStream<CheckConsistencyReply> {
    let (replies, stream) = mpsc::channel(REPLIES_MAX);
    tokio::spawn(async move {
        let _place = place;
        // An end without a receiver: the client has gone.
        if let Err(failed) = check_all(&running, id, &replies).await {
            let _ = replies.send(Err(failed)).await;
        }
    });
    Box::pin(ReceiverStream::new(stream))
}

type Replies = mpsc::Sender<Result<CheckConsistencyReply, Status>>;

async fn check_all(running: &Running, id: RegionId, replies: &Replies) -> Result<(), Status> {
    let map = running.host.routes().map.clone();
    let deleted = || BlockError::new(VolumeFault::Deleted, "the volume was deleted");
    let (_, region) = map.region(id).ok_or_else(|| status(&deleted()))?;
    for group in region.groups() {
        let mut so_far = CheckConsistencyReply {
            group: group.0,
            ..CheckConsistencyReply::default()
        };
        let mut first = 0;
        while !so_far.done {
            let end = check_pages(running, group, first, &mut so_far).await?;
            first += PAGES;
            so_far.done = first >= end;
            if replies.send(Ok(so_far)).await.is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Compares `PAGES` pages from `first` on, and gives the end of the members' page tables.
async fn check_pages(
    running: &Running,
    group: GroupId,
    first: u32,
    so_far: &mut CheckConsistencyReply,
) -> Result<u32, Status> {
    let (mut end, mut left) = (first, Vec::new());
    for look in 0..LOOKS {
        if look > 0 {
            tokio::time::sleep(REST).await;
        }
        // By the newest map: the group may have moved since the last look.
        let map = running.host.routes().map.clone();
        let group = map.groups.get(&group).ok_or_else(|| unanswered(group))?;
        let members = fetch(running, &map, group, first).await?;
        if look == 0 {
            end = members.iter().map(|member| member.end).max().unwrap_or(0);
            left = (first..end.min(first + PAGES)).collect();
        }
        left.retain(|page| match finding(group, *page, &members) {
            Some(Finding::Fits) => {
                so_far.pages_agree += 1;
                false
            }
            None | Some(Finding::Busy) => true,
            Some(Finding::Parity(_) | Finding::Data(_) | Finding::Several) => {
                so_far.pages_differ += 1;
                false
            }
        });
        if left.is_empty() {
            break;
        }
    }
    so_far.pages_busy += left.len() as u64;
    Ok(end)
}

/// A page's state; `None` if a member lacks it for now.
fn finding(group: &Group, page: u32, members: &[MemberPages]) -> Option<Finding> {
    let parts = members.iter().map(|member| member.part(page));
    let parts: Option<Vec<(MemberSlot, &PageSum)>> = parts.collect();
    Some(Sums::new(group.m.into(), &parts?)?.finding())
}

/// A member's sums of some pages.
struct MemberPages {
    slot: MemberSlot,
    end: u32,
    sums: BTreeMap<u32, PageSum>,
    /// A page that was never written.
    unwritten: PageSum,
}

impl MemberPages {
    fn new(answer: GroupSumsAnswer) -> MemberPages {
        let sums = answer.sums.into_iter().map(|sum| (sum.page, sum));
        MemberPages {
            slot: answer.slot,
            end: answer.end,
            sums: sums.collect(),
            unwritten: PageSum {
                page: 0,
                labels: Vec::new(),
                sum: Bytes::new(),
            },
        }
    }

    fn part(&self, page: u32) -> Option<(MemberSlot, &PageSum)> {
        let sum = match page < self.end {
            true => self.sums.get(&page)?,
            false => &self.unwritten,
        };
        Some((self.slot, sum))
    }
}

/// The sums of all members, but for those that only stand beside another that holds the same.
async fn fetch(
    running: &Running,
    map: &ClusterMap,
    group: &Group,
    first: u32,
) -> Result<Vec<MemberPages>, Status> {
    if !group.open {
        return Err(unanswered(group.id));
    }
    let originals = group.listed();
    let originals = originals.filter(|(slot, _)| group.bucket_slot(*slot) == *slot);
    let mut all = Vec::new();
    for (slot, member) in originals {
        let ask = GroupSums {
            group: group.id,
            slot,
            page: first,
            count: PAGES,
        };
        let answer = match map.runs(member.id) {
            true => ask_member(running, member, ask).await?,
            false => None,
        };
        let fits = |answer: &GroupSumsAnswer| answer.slot == slot && answer.epoch == group.epoch;
        let answer = answer.filter(fits).ok_or_else(|| unanswered(group.id))?;
        all.push(MemberPages::new(answer));
    }
    Ok(all)
}

/// A member's answer; `None` if there is none.
async fn ask_member(
    running: &Running,
    member: &Member,
    ask: GroupSums,
) -> Result<Option<GroupSumsAnswer>, Status> {
    if member.id.node != running.host.life.node {
        let (message, until) = (Message::GroupSums(ask), Instant::now() + ANSWER_MAX);
        let answer = running.host.peers.call(member.id.node, &message, until);
        return Ok(match answer.await {
            Ok(Message::GroupSumsAnswer(answer)) => Some(answer),
            _ => None,
        });
    }
    let gate = running.gates.of(Role::Client);
    let entered = gate.enter(ANSWER_MAX).await;
    let mut turn = entered.map_err(|refusal| settled(Code::Unavailable, refusal.to_string()))?;
    let sums = group::sums(&running.host, ask, &mut turn, || false).await;
    Ok(sums.ok())
}

fn unanswered(group: GroupId) -> Status {
    let text = format!(
        "not every member of group {group} answers, or they change at present: look at GetState, and check again"
    );
    settled(Code::Unavailable, text)
}
