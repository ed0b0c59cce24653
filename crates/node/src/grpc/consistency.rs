//! The members of a volume's groups, compared page by page while they are in use, as `staves scrub` compares them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use staves_group::{Finding, PageScan};
use staves_grpc::v1::CheckConsistencyReply;
use staves_model::{GroupId, Member, RegionId};
use staves_wire::Message;
use staves_wire::admin::{GroupSums, GroupSumsAnswer};
use staves_wire::hello::Role;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tonic::codegen::BoxStream;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use super::failure::{settled, status};
use crate::native::group;
use crate::running::Running;
use crate::volumes::error::{BlockError, VolumeFault};

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
        if !check_group(running, group, replies).await? {
            return Ok(());
        }
    }
    Ok(())
}

/// Compares all pages of a group. False if the client has gone.
async fn check_group(running: &Running, id: GroupId, replies: &Replies) -> Result<bool, Status> {
    let mut so_far = CheckConsistencyReply {
        group: id.0,
        ..CheckConsistencyReply::default()
    };
    let mut scan = PageScan::new(false);
    while !so_far.done {
        if scan.is_again() {
            tokio::time::sleep(PageScan::REST).await;
        }
        // By the newest map: the group may have moved since the last look.
        let map = running.host.routes().map.clone();
        let group = map.groups.get(&id).filter(|group| group.open);
        let group = group.ok_or_else(|| unanswered(id))?;
        let mut answers = Vec::new();
        for (member, ask) in scan.asks(group) {
            let answer = match map.runs(member.id) {
                true => ask_member(running, &member, ask).await?,
                false => None,
            };
            answers.push(answer.ok_or_else(|| unanswered(id))?);
        }
        let step = scan.take(group, answers).ok_or_else(|| unanswered(id))?;
        for page in &step.settled {
            *match page.finding {
                Some(Finding::Fits) => &mut so_far.pages_agree,
                None | Some(Finding::Busy) => &mut so_far.pages_busy,
                Some(_) => &mut so_far.pages_differ,
            } += 1;
        }
        so_far.done = scan.is_done();
        if !scan.is_again() && replies.send(Ok(so_far)).await.is_err() {
            return Ok(false);
        }
    }
    Ok(true)
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
