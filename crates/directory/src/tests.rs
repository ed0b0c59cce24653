//! Tests of what a leader decides by its own books: it waits a lease before it opens anything, and what it decided takes effect in its
//! term alone.

use std::sync::Arc;
use std::time::Duration;

use openraft::storage::RaftStateMachine;
use openraft::{CommittedLeaderId, EntryPayload};
use staves_hunts::{Hunt, hunt};
use staves_model::mutant::Mutant;
use staves_model::testing::{create_pool, new_node};
use staves_model::{
    Change, ClusterId, ClusterMap, DirectoryCall, Epoch, GroupId, GroupStep, Incarnation, MemberId,
    MemberSlot, NewEpoch, NodeId, Time,
};
use tokio::sync::watch;

use crate::leader_state::LeaderState;
use crate::machine::Machine;
use crate::message::CallAnswer;
use crate::options::Times;
use crate::store::Store;
use crate::types::{Applied, LogEntry, LogId, Proposal};

const GROUP: GroupId = GroupId(1);
const OPENS: DirectoryCall = DirectoryCall::Step(GroupStep::Open {
    group: GROUP,
    epoch: Epoch(1),
});

/// A directory's state machine, and its log's length.
struct Log {
    machine: Machine,
    map: watch::Receiver<Arc<ClusterMap>>,
    last: u64,
}

impl Log {
    /// With a group whose first epoch is committed, and not open.
    async fn new() -> Log {
        let store = Store::open(None).expect("memory");
        let (tx, map) = watch::channel(Arc::default());
        let machine = Machine::load(store, tx).expect("empty");
        let mut log = Log {
            machine,
            map,
            last: 0,
        };
        let cluster = ClusterId(7);
        let member = MemberId::new(NodeId(1), Incarnation(1));
        for change in [
            Change::Bootstrap { cluster },
            new_node("n1", 1 << 30),
            create_pool("cache", "1+0", 1, true),
            Change::CommitEpochs(vec![NewEpoch {
                group: GROUP,
                epoch: Epoch(1),
                members: vec![Some(member)],
                kept: vec![None],
                coordinator: MemberSlot(0),
                fresh: true,
            }]),
        ] {
            let applied = log.order(1, Proposal::unconditional(change)).await;
            assert!(matches!(applied, Applied::Done { .. }), "{applied:?}");
        }
        log
    }

    async fn order(&mut self, term: u64, proposal: Proposal) -> Applied {
        self.last += 1;
        let log_id = LogId::new(CommittedLeaderId::new(term, NodeId(1)), self.last);
        let payload = EntryPayload::Normal(proposal);
        let applied = self.machine.apply([LogEntry { log_id, payload }]).await;
        applied.expect("applied").remove(0)
    }

    fn map(&self) -> Arc<ClusterMap> {
        self.map.borrow().clone()
    }

    fn is_open(&self) -> bool {
        self.map().groups[&GROUP].open
    }
}

/// A new leader does not know the leases that its predecessor granted.
#[tokio::test]
async fn a_new_leader_opens_nothing_before_a_lease_has_passed() {
    let log = Log::new().await;
    let (begun, times) = (Time::from_millis(60_000), Times::default());
    let mut leader = LeaderState::new(3, begun, &log.map(), &times);
    let mut decide = |after| leader.judge_call(begun + after, &log.map(), NodeId(1), OPENS);
    for early in [Duration::ZERO, times.lease - Duration::from_millis(1)] {
        let answer = decide(early);
        let waits = matches!(answer, Err(CallAnswer::Later { .. }));
        assert!(waits, "opens {early:?} after its election: {answer:?}");
    }
    let decided = decide(times.lease);
    assert!(decided.is_ok(), "{decided:?}");
}

/// The book of a leader's term says nothing of another term: a proposal that rests on it, and is ordered later, is void.
#[tokio::test]
async fn an_epoch_is_opened_in_the_term_of_the_book_that_allowed_it() {
    let mut log = Log::new().await;
    let (begun, times) = (Time::from_millis(60_000), Times::default());
    let mut leader = LeaderState::new(3, begun, &log.map(), &times);
    let decided = leader.judge_call(begun + times.lease, &log.map(), NodeId(1), OPENS);
    let open = leader.proposal_of(vec![decided.expect("the lease has passed")]);
    assert_eq!(log.order(4, open.clone()).await, Applied::Deposed);
    assert!(!log.is_open(), "opened in a later term");
    let applied = log.order(3, open).await;
    assert!(matches!(applied, Applied::Done { .. }), "{applied:?}");
    assert!(log.is_open());
}

#[test]
fn planted_bugs_of_the_adapter_are_seen() {
    let of = |mutant, test, shows| Hunt {
        mutant,
        test,
        shows,
    };
    let suite = "store::tests::suite::openrafts_own_suite_of_tests_passes";
    let again = "store::tests::suite::a_store_that_is_opened_again_is_what_it_was";
    hunt(&[
        of(
            Mutant::LeaderBookOpensAtOnce,
            "tests::a_new_leader_opens_nothing_before_a_lease_has_passed",
            "after its election",
        ),
        of(
            Mutant::NewDirectoryLeaderSkipsWait,
            "tests::a_new_leader_opens_nothing_before_a_lease_has_passed",
            "after its election",
        ),
        of(
            Mutant::OpenWithoutTerm,
            "tests::an_epoch_is_opened_in_the_term_of_the_book_that_allowed_it",
            "right: Deposed",
        ),
        of(
            Mutant::OtherTermApplied,
            "tests::an_epoch_is_opened_in_the_term_of_the_book_that_allowed_it",
            "right: Deposed",
        ),
        of(Mutant::TruncateLeavesOne, suite, "testing/suite.rs"),
        of(Mutant::SnapshotWithoutMembership, suite, "testing/suite.rs"),
        of(
            Mutant::InstalledWithoutIndex,
            "machine::tests::a_snapshot_makes_the_same_map_elsewhere",
            "assertion `left == right` failed",
        ),
        of(
            Mutant::TruncateNotStored,
            again,
            "after it was opened again",
        ),
        of(Mutant::PurgeNotStored, again, "after it was opened again"),
    ]);
}
