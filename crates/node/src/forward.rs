//! Requests for other nodes' buckets: the client's router over this node's links, and its own buckets.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use staves_client::{Router, Transport};
use staves_directory::Directory;
use staves_model::mutant::{Mutant, planted};
use staves_model::{ClusterMap, Node, NodeId};
use staves_net::NetError;
use staves_wire::directory::Evidence;
use staves_wire::service::{Answer, NumberedOp, ServiceAnswers, ServiceRequest};
use staves_wire::{ErrorCode, Message};

use crate::host::Host;
use crate::native::batch::serve_and_wait;
use crate::witness::Witness;

/// The router of a node.
pub(crate) type NodeRouter = Router<NodeTransport>;

/// The time to wait for a newer map before the same one is tried again.
const MAP_WAIT: Duration = Duration::from_millis(20);
/// The rest between two tries of a request that was interrupted.
const REST: Duration = Duration::from_millis(10);

/// The transport of a node's router: its links to all nodes, and its own buckets.
pub(crate) struct NodeTransport {
    me: NodeId,
    /// The host owns the router, and the router this.
    host: Weak<Host>,
    directory: Directory,
    witness: Witness,
}

impl NodeTransport {
    pub(crate) fn new(host: &Arc<Host>, directory: Directory, witness: Witness) -> NodeTransport {
        NodeTransport {
            me: host.life.node,
            host: Arc::downgrade(host),
            directory,
            witness,
        }
    }
}

impl Transport for NodeTransport {
    fn me(&self) -> Option<NodeId> {
        Some(self.me)
    }

    fn unreachable(&self) -> BTreeSet<NodeId> {
        self.directory.unreachable()
    }

    async fn call(
        &self,
        node: &Node,
        request: Message,
        deadline: Instant,
    ) -> Result<Message, NetError> {
        let Some(host) = self.host.upgrade() else {
            return Err(NetError::NoAddress { node: node.id });
        };
        if node.id != self.me {
            let result = host.peers.call(node.id, &request, deadline).await;
            return match (&result, &request) {
                (Err(_), Message::Service(sent)) if planted(Mutant::SendErrorTakenAsDone) => {
                    Ok(Message::ServiceAnswers(ServiceAnswers {
                        revision: sent.revision,
                        answers: vec![Answer::Ok; sent.ops.len()],
                        moved: Vec::new(),
                        draw_above: 0,
                        needs_bytes: 0,
                    }))
                }
                _ => result,
            };
        }
        match request {
            Message::Service(request) => {
                let answers = serve_and_wait(&host, request, deadline).await;
                Ok(Message::ServiceAnswers(answers))
            }
            _ => Err(NetError::NoAddress { node: node.id }),
        }
    }

    async fn newer_map(
        &self,
        known: &Arc<ClusterMap>,
        deadline: Instant,
    ) -> Option<Arc<ClusterMap>> {
        let mut map = self.directory.map();
        let until = deadline.min(Instant::now() + MAP_WAIT);
        let newer = map.wait_for(|map| map.revision > known.revision);
        let newer = tokio::time::timeout_at(until.into(), newer)
            .await
            .ok()?
            .ok()?;
        Some(newer.clone())
    }

    fn seen(&self, _map: &ClusterMap, evidence: Evidence) {
        self.witness.heard(evidence);
    }
}

/// Asks again for writes that were interrupted, under the numbers that they had: whoever answers for
/// the bucket now knows whether they took effect (rule 18). All are of one bucket and one client.
pub(crate) async fn resume<T: Transport>(
    router: &Router<T>,
    mut request: ServiceRequest,
    deadline: Instant,
) -> Vec<Answer> {
    let ops = std::mem::take(&mut request.ops);
    let mut answers: Vec<Option<Answer>> = vec![None; ops.len()];
    let mut todo: Vec<(usize, NumberedOp)> = ops.into_iter().enumerate().collect();
    request.retry = true;
    loop {
        let map = router.map();
        let again = request.with_ops(todo.iter().map(|(_, op)| op.clone()).collect());
        let ServiceAnswers { answers: got, .. } = router.ask_again(again, deadline).await;
        let out_of_time = Instant::now() + REST >= deadline;
        let mut left = Vec::new();
        for ((index, op), answer) in todo.into_iter().zip(got) {
            match answer {
                Answer::Error(code, _) if code.worth_retrying() && !out_of_time => {
                    left.push((index, op));
                }
                Answer::Error(code, text)
                    if code.worth_retrying() && !planted(Mutant::LateWriteSaidNotDone) =>
                {
                    let text = format!(
                        "the deadline passed, and the write may or may not have been done: {text}"
                    );
                    answers[index] = Some(Answer::error(ErrorCode::Deadline, text));
                }
                answer => answers[index] = Some(answer),
            }
        }
        todo = left;
        if todo.is_empty() {
            break;
        }
        if router.transport().newer_map(&map, deadline).await.is_none() {
            tokio::time::sleep(REST).await;
        }
    }
    let unanswered = || Answer::error(ErrorCode::Internal, "no answer came for the operation");
    let all = answers.into_iter().map(|a| a.unwrap_or_else(unanswered));
    all.collect()
}

#[cfg(test)]
mod tests {
    use staves_client::RouterOptions;
    use staves_model::{ClientId, PoolId, Revision, ServiceId, testing};
    use staves_wire::service::{Address, Body, PoolRef};

    use super::*;

    /// Other nodes, of which none serves the bucket.
    struct NobodyServes;

    impl Transport for NobodyServes {
        async fn call(&self, _: &Node, request: Message, _: Instant) -> Result<Message, NetError> {
            let Message::Service(request) = request else {
                panic!("{request:?}")
            };
            let answer = Answer::error(ErrorCode::NotServing, "not here");
            Ok(Message::ServiceAnswers(ServiceAnswers {
                revision: request.revision,
                answers: vec![answer; request.ops.len()],
                moved: Vec::new(),
                draw_above: 0,
                needs_bytes: 0,
            }))
        }

        async fn newer_map(&self, _: &Arc<ClusterMap>, _: Instant) -> Option<Arc<ClusterMap>> {
            None
        }
    }

    /// The bucket that it was interrupted at may have done it: a refusal of all others says nothing of that.
    #[tokio::test]
    async fn an_interrupted_write_that_nobody_answers_for_is_not_said_to_be_undone() {
        let mut map = testing::cluster_with_pool(2, "1+1", 1);
        testing::start(&mut map, &[1, 2]);
        let options = RouterOptions::default();
        let router = Router::new(NobodyServes, ClientId(7), Arc::new(map), options);
        let request = ServiceRequest {
            revision: Revision(1),
            service: ServiceId::CACHE,
            pool: PoolRef::Id(PoolId(1)),
            client: ClientId(8),
            floor: 0,
            retry: false,
            forwarded: true,
            answer_bytes_max: 0,
            strict: false,
            ops: vec![NumberedOp {
                number: 5,
                to: Address::Slot(staves_model::HashSlot(0)),
                body: Body::default(),
            }],
        };
        let deadline = Instant::now() + Duration::from_millis(100);
        let answers = resume(&router, request, deadline).await;
        let [Answer::Error(code, text)] = &answers[..] else {
            panic!("{answers:?}")
        };
        assert!(!code.nothing_done(), "said to be undone: {code:?}, {text}");
    }
}
