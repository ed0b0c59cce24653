//! Leases for the data buckets that this node serves: asked for together, often enough that one lost
//! answer does not end them (GROUP, promises and leases; rule 13 for nodes without any).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use staves_directory::{Directory, DirectoryError, Granted};
use staves_group::Event;
use staves_model::mutant::{Mutant, planted};
use staves_model::{Epoch, GroupId, Time};
use tokio::sync::Semaphore;

use super::Host;

/// Most questions under way: a slow answer must not hold up the next question, whose lease is longer.
const UNDER_WAY_MAX: usize = 3;

/// Asks again and again.
pub(crate) async fn run(host: Arc<Host>, directory: Directory) {
    let lease = host.options.group.lease;
    // Three questions in the time of a lease.
    let every = lease * 3 / 10;
    let under_way = Arc::new(Semaphore::new(UNDER_WAY_MAX));
    loop {
        // Who is woken early still leaves the leader some rest: maps come in bursts.
        let early = async {
            tokio::time::sleep(every / 8).await;
            host.lease_wake.notified().await;
        };
        let _ = tokio::time::timeout(every, early).await;
        let Ok(permit) = under_way.clone().acquire_owned().await else {
            return;
        };
        let (host, directory) = (host.clone(), directory.clone());
        tokio::spawn(async move {
            ask(&host, &directory, lease).await;
            drop(permit);
        });
    }
}

async fn ask(host: &Host, directory: &Directory, patience: Duration) {
    ask_by(host, |clock, wanted| {
        directory.lease(clock, wanted, patience)
    })
    .await;
}

/// The same by any way to the leader, which is handed the clock of the asking and the groups with their epochs.
async fn ask_by<F>(host: &Host, lease: impl FnOnce(Time, Vec<(GroupId, Epoch)>) -> F)
where
    F: Future<Output = Result<Granted, DirectoryError>>,
{
    let routes = host.routes();
    let wanted = routes.cells().filter_map(|cell| {
        let state = cell.lock();
        let member = state.bucket.as_ref()?.member();
        member.serving().then(|| (cell.group, member.epoch()))
    });
    // One that holds two data buckets of a group asks for both at once.
    let wanted: BTreeSet<_> = wanted.collect();
    let wanted = wanted.into_iter().collect();
    let clock = host.clock.now();
    let granted = match lease(clock, wanted).await {
        Ok(granted) => granted,
        Err(error) => {
            if planted(Mutant::ContactWithoutAnswer) {
                host.heard(clock, &epochs(host));
            }
            tracing::debug!(%error, "no leases");
            return;
        }
    };
    // Lease and contact count from the asking: the leader was confirmed at some time since then.
    let now = host.clock.now();
    let (clock, contact) = match (
        planted(Mutant::LeaseFromAnswer),
        planted(Mutant::ContactFromAnswer),
    ) {
        (true, _) => (now, clock),
        (_, true) => (clock, now),
        _ => (clock, clock),
    };
    host.heard(contact, &granted.heard);
    let routes = host.routes();
    let incarnation = host.life.incarnation;
    for (group, epoch) in granted.granted {
        for cell in routes.cells_of(group) {
            let event = Event::Lease {
                epoch,
                incarnation,
                clock,
            };
            cell.step(host, host.clock.now(), event);
        }
    }
    host.peers.flush();
}

/// All groups with a bucket here, and the epochs of their members: for a planted bug.
fn epochs(host: &Host) -> Vec<(GroupId, Epoch)> {
    let routes = host.routes();
    let epoch = |cell: &super::Cell| Some(cell.lock().bucket.as_ref()?.member().epoch());
    let all = routes
        .cells()
        .filter_map(|cell| Some((cell.group, epoch(cell)?)));
    all.collect::<BTreeSet<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use staves_hunts::{Hunt, hunt};
    use staves_model::Revision;

    use super::super::testing;
    use super::*;

    /// Longer than a busy machine stands still.
    const LEASE: Duration = Duration::from_secs(2);

    fn may_read(host: &Host) -> bool {
        let cell = host.routes().cells().next().cloned().expect("its group");
        let state = cell.lock();
        let member = state.bucket.as_ref().expect("a bucket").member();
        member.may_read(host.clock.now())
    }

    /// Asks for leases of a leader that grants all, and whose answer takes so long.
    async fn granted_after(host: &Host, time: Duration) {
        ask_by(host, |clock, wanted| async move {
            assert!(!wanted.is_empty(), "it serves, and wants a lease");
            tokio::time::sleep(time).await;
            Ok(Granted {
                clock,
                granted: wanted.clone(),
                heard: wanted,
                revision: Revision(9),
            })
        })
        .await;
    }

    /// GROUP, promises and leases: a lease counts from the asking. The leader may have granted it right then, and a successor
    /// serve as soon as it is over there.
    #[tokio::test]
    async fn a_lease_counts_from_when_it_was_asked_for() {
        let host = testing::host(LEASE);
        assert!(!may_read(&host), "nobody has given it a lease");
        granted_after(&host, Duration::ZERO).await;
        assert!(may_read(&host));
        granted_after(&host, LEASE).await;
        assert!(!may_read(&host), "the lease was over when its answer came");
    }

    /// GROUP rule 13: contact with the directory counts from the asking as well, and only an answer is contact.
    #[tokio::test]
    async fn contact_counts_from_the_question_that_was_answered() {
        let host = testing::host(LEASE);
        let (asked, took) = (Instant::now(), Duration::from_millis(300));
        granted_after(&host, took).await;
        let silent = host.silent_for();
        assert!(
            silent >= took,
            "silent for {silent:?} of {:?}",
            asked.elapsed()
        );
        ask_by(&host, |_, _| async {
            tokio::time::sleep(took).await;
            Err(DirectoryError::NotRunning {
                reason: "it is cut off".into(),
            })
        })
        .await;
        let silent = host.silent_for();
        assert!(silent >= 2 * took, "no answer is no contact: {silent:?}");
    }

    #[test]
    fn planted_bugs_of_the_glue_are_seen() {
        let of = |mutant, test, shows| Hunt {
            mutant,
            test,
            shows,
        };
        hunt(&[
            of(
                Mutant::LeaseFromAnswer,
                "host::leases::tests::a_lease_counts_from_when_it_was_asked_for",
                "the lease was over when its answer came",
            ),
            of(
                Mutant::ContactFromAnswer,
                "host::leases::tests::contact_counts_from_the_question_that_was_answered",
                "silent for",
            ),
            of(
                Mutant::ContactWithoutAnswer,
                "host::leases::tests::contact_counts_from_the_question_that_was_answered",
                "no answer is no contact",
            ),
            of(
                Mutant::BatchOvertakes,
                "native::batch::tests::nothing_overtakes_what_was_refused_after_it_had_waited",
                "it overtakes",
            ),
            of(
                Mutant::LateWriteSaidNotDone,
                "forward::tests::an_interrupted_write_that_nobody_answers_for_is_not_said_to_be_undone",
                "said to be undone",
            ),
            of(
                Mutant::QueuedBucketPassed,
                "door::remote::tests::a_bucket_is_held_until_its_last_operation_is_back",
                "assertion failed: remote.holds(",
            ),
            of(
                Mutant::WaitingBucketPassed,
                "door::remote::tests::nothing_sets_out_before_what_waits_here_for_its_bucket",
                "right: [(9, 0)]",
            ),
            of(
                Mutant::NumberKeptByTheGone,
                "host::cell::tests::a_write_whose_connection_has_ended_gives_its_number_back",
                "the other's may be asked again",
            ),
            of(
                Mutant::WaitsWithoutBound,
                "door::connection::tests::a_connection_has_no_place_beyond_the_bound_but_its_first",
                "a third of one has none",
            ),
        ]);
    }
}
