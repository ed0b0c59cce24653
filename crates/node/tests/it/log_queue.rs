//! Work queues in logs, on real nodes: leases, redelivery, dead items, cursors, and the death of the sequencer's node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use staves_client::{
    AppendMode, Client, ErrorCode, LogQueue, LogRetention, QueueItem, QueueOptions,
};
use staves_model::Medium;
use staves_testkit::cluster::TestCluster;
use staves_testkit::wait_until;
use tokio::runtime::Runtime;

use crate::logs::{client_of, cluster};

const TAG: u64 = 1;
/// Longer than any wait of a test.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(1);

fn options(lease: u64, deliveries_max: u32) -> QueueOptions {
    QueueOptions {
        lease: Duration::from_secs(lease),
        deliveries_max,
    }
}

async fn queue(client: &Client, lease: u64, deliveries_max: u32) -> LogQueue {
    let options = options(lease, deliveries_max);
    let queue = LogQueue::open(client, None, "q", TAG, options).await;
    queue.expect("the queue opens")
}

async fn made(client: &Client) {
    let made = client.create_log(None, "q", AppendMode::Bind).await;
    made.expect("the log is made");
}

#[test]
fn items_of_a_take_that_was_given_up_under_way_are_handed_out_by_the_next_one() {
    let cluster = cluster(3, Medium::Ram);
    let (client, runtime) = client_of(&cluster);
    runtime.block_on(async {
        made(&client).await;
        let mut queue = queue(&client, 3600, 9).await;
        for n in 0..30 {
            let item = Bytes::from(n.to_string());
            queue
                .push(std::slice::from_ref(&item))
                .await
                .expect("pushed");
            let patience = Duration::from_millis(n);
            let taken = tokio::time::timeout(patience, queue.take(1, LONG)).await;
            let taken = match taken {
                Ok(taken) => taken,
                Err(_) => queue.take(1, LONG).await,
            };
            let taken = taken.expect("taken");
            assert_eq!(texts(&taken), [&item[..]], "it is held, and nobody has it");
            let done = queue.acknowledge(&taken).await.expect("acknowledged");
            assert_eq!(done.len(), 1);
        }
    });
}

async fn trimmed_to(client: &Client, position: u64) {
    let began = Instant::now();
    loop {
        let stat = client.log_stat(None, "q").await;
        let trim = stat.expect("the log").trim;
        if trim == position {
            return;
        }
        assert!(
            began.elapsed() < LONG,
            "trimmed up to {trim}, not {position}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn texts(items: &[QueueItem]) -> Vec<&[u8]> {
    items.iter().map(|item| &item.item[..]).collect()
}

/// Ends the node with a log's sequencer, as a process ends.
pub(crate) fn kill_sequencer(
    cluster: &mut TestCluster,
    (client, runtime): (&Client, &Runtime),
    log: &str,
) {
    let stat = runtime.block_on(client.log_stat(None, log));
    let sequencer = stat.expect("the log").sequencer.expect("a sequencer");
    let map = client.map();
    let mut nodes = map.nodes.iter();
    let id = nodes
        .find(|(_, node)| node.name == sequencer)
        .map(|(id, _)| *id);
    let victim = cluster.nodes.iter_mut().find(|node| Some(node.id) == id);
    victim.expect("its node").kill();
}

#[test]
fn items_are_taken_acknowledged_given_back_and_delivered_again() {
    let cluster = cluster(3, Medium::Ram);
    let (client, runtime) = client_of(&cluster);
    runtime.block_on(async {
        made(&client).await;
        let (mut a, mut b) = (queue(&client, 3600, 9).await, queue(&client, 1, 9).await);
        assert_eq!(a.take(4, Duration::ZERO).await.expect("none"), []);
        let all = ["0", "1", "2", "3"].map(Bytes::from);
        let first = a.push(&all).await.expect("pushed");
        let mut of_a = a.take(2, LONG).await.expect("taken");
        assert_eq!(texts(&of_a), [b"0", b"1"]);
        assert_eq!((of_a[1].position, of_a[1].deliveries), (first + 1, 1));
        let of_b = b.take(9, LONG).await.expect("taken");
        assert_eq!(texts(&of_b), [b"2", b"3"], "two are held");
        let back = a.give_back(&of_a[..1], Duration::ZERO).await;
        assert_eq!(back.expect("given back"), [first]);
        // The lease of `b` runs out; then all but the one that `a` holds are there again.
        let stat = a.stat().await.expect("counted");
        assert_eq!((stat.ready + stat.held, stat.oldest), (4, Some(first)));
        let mut again = Vec::new();
        while again.len() < 3 {
            again.extend(a.take(9, LONG).await.expect("taken"));
        }
        assert_eq!(texts(&again), [b"0", b"2", b"3"]);
        assert!(again.iter().all(|item| item.deliveries == 2), "{again:?}");
        let late = b.acknowledge(&of_b).await.expect("an answer");
        assert!(late.is_empty(), "another consumer has them: {late:?}");
        a.renew(&mut of_a).await.expect("renewed");
        assert_eq!(texts(&of_a), [b"1"], "one was given back");
        let done = a.acknowledge(&again).await.expect("acknowledged");
        assert_eq!(done, [first, first + 2, first + 3]);
        let done = a.acknowledge(&of_a).await.expect("acknowledged");
        assert_eq!(done, [first + 1]);
        let stat = b.stat().await.expect("counted");
        assert_eq!((stat.ready, stat.held, stat.oldest), (0, 0, None));
    });
}

#[test]
fn an_item_that_nobody_gets_done_is_dead_and_a_consumer_waits_for_the_next_one() {
    let cluster = cluster(3, Medium::Ram);
    let (client, runtime) = client_of(&cluster);
    runtime.block_on(async {
        made(&client).await;
        let (mut a, mut b) = (queue(&client, 3600, 2).await, queue(&client, 3600, 2).await);
        let poison = a.push(&[Bytes::from_static(b"poison")]).await;
        let poison = poison.expect("pushed");
        for n in 1..3 {
            let taken = a.take(1, LONG).await.expect("taken");
            assert_eq!(taken[0].deliveries, n);
            let back = a.give_back(&taken, Duration::ZERO).await;
            assert_eq!(back.expect("given back"), [poison]);
        }
        let waits = tokio::spawn(async move { b.take(1, LONG).await });
        let dead = a.dead(9).await.expect("a list");
        assert_eq!(dead, [(poison, 2, Bytes::from_static(b"poison"))]);
        a.push(&[Bytes::from_static(b"good")])
            .await
            .expect("pushed");
        let taken = waits.await.expect("a task").expect("taken");
        assert_eq!(texts(&taken), [b"good"]);
        assert_eq!(a.revive(&[poison]).await.expect("revived"), [poison]);
        let taken = a.take(1, LONG).await.expect("taken");
        assert_eq!(
            (texts(&taken), taken[0].deliveries),
            (vec![&b"poison"[..]], 1)
        );
        let held = a.discard(&[poison]).await.expect("an answer");
        assert!(held.is_empty(), "it is not dead");
    });
}

#[test]
fn what_is_acknowledged_is_trimmed_and_what_is_not_stays() {
    let cluster = cluster(3, Medium::Ram);
    let (client, runtime) = client_of(&cluster);
    runtime.block_on(async {
        made(&client).await;
        let (mut a, mut old) = (queue(&client, 3600, 9).await, queue(&client, 3600, 9).await);
        let keep = LogRetention {
            records: Some(1),
            ..LogRetention::default()
        };
        let set = client.set_log_retention(None, "q", keep).await;
        set.expect("set");
        let push = |n: u64| Bytes::from(n.to_string());
        let first = a.push(&[0, 1, 2, 3].map(push)).await.expect("pushed");
        let mut late = queue(&client, 3600, 9).await;
        let stat = late.stat().await.expect("counted");
        assert_eq!((stat.ready, stat.oldest), (4, Some(first)));
        let taken = a.take(3, LONG).await.expect("taken");
        old.stat().await.expect("counted");
        let done = a.acknowledge(&[taken[0].clone(), taken[2].clone()]).await;
        assert_eq!(done.expect("acknowledged"), [first, first + 2]);
        a.move_cursor().await.expect("moved");
        trimmed_to(&client, first + 1).await;
        // One that begins here, and one that was there before, see the same.
        let mut new = queue(&client, 3600, 9).await;
        for queue in [&mut new, &mut old] {
            let stat = queue.stat().await.expect("counted");
            assert_eq!((stat.ready, stat.held), (1, 1));
            assert_eq!(stat.oldest, Some(first + 1));
        }
        let last = new.take(9, LONG).await.expect("taken");
        assert_eq!(texts(&last), [b"3"]);
        let foreign = client.open_log(None, "q").await.expect("opened");
        let position = foreign.append_tagged(&[push(9)], &[TAG]).await;
        let position = position.expect("appended");
        let error = new.take(1, SHORT).await.expect_err("no record of a queue");
        assert_eq!(error.code(), ErrorCode::Refused);
        let remedy = format!("log punch q --at {position}");
        assert!(error.to_string().contains(&remedy), "{error}");
        foreign.punch(position).await.expect("given up");
        assert_eq!(new.acknowledge(&last).await.expect("done"), [first + 3]);
        let done = a.acknowledge(&taken[1..2]).await.expect("acknowledged");
        assert_eq!(done, [first + 1]);
        // One that has seen no acknowledgement, and never will.
        let next = a.push(&[push(4)]).await.expect("pushed");
        for n in 5..12 {
            a.push(&[push(n)]).await.expect("pushed");
        }
        a.stat().await.expect("counted");
        a.move_cursor().await.expect("moved");
        trimmed_to(&client, next).await;
        let stat = late.stat().await.expect("counted");
        assert_eq!((stat.ready, stat.held, stat.oldest), (8, 0, Some(next)));
    });
}

/// The outcomes of the items of a run.
#[derive(Default)]
struct QueueLedger {
    /// Items whose push was acknowledged.
    pushed: BTreeMap<u64, Bytes>,
    /// Each time that an item was held, from when it was handed out to the end of its lease or of the work on it.
    holds: BTreeMap<u64, Vec<(Instant, Instant)>>,
    /// Items whose acknowledgement was acknowledged.
    done: Vec<u64>,
    /// Items that may be acknowledged.
    unsure: BTreeSet<u64>,
}

impl QueueLedger {
    fn held(&mut self, item: &QueueItem, from: Instant) {
        let until = Instant::now().min(item.lease_end).max(from);
        let holds = self.holds.entry(item.position).or_default();
        holds.push((from, until));
    }

    fn add(&mut self, other: QueueLedger) {
        self.pushed.extend(other.pushed);
        self.done.extend(other.done);
        self.unsure.extend(other.unsure);
        for (item, holds) in other.holds {
            self.holds.entry(item).or_default().extend(holds);
        }
    }

    fn judge(mut self) {
        for (item, holds) in &mut self.holds {
            holds.sort();
            let apart = holds.windows(2).all(|pair| pair[0].1 <= pair[1].0);
            assert!(apart, "two held item {item} at once: {holds:?}");
        }
        let done: BTreeSet<u64> = self.done.iter().copied().collect();
        assert_eq!(done.len(), self.done.len(), "an item was done twice");
        let over = |item: &&u64| done.contains(item) || self.unsure.contains(item);
        let lost: Vec<&u64> = self.pushed.keys().filter(|item| !over(item)).collect();
        assert!(lost.is_empty(), "pushed, and never taken: {lost:?}");
    }
}

async fn produce(client: Client, me: usize, stop: Arc<AtomicBool>) -> QueueLedger {
    let queue = queue(&client, 3, u32::MAX).await;
    let mut ledger = QueueLedger::default();
    for n in 0.. {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let items = [0, 1].map(|half| Bytes::from(format!("{me}:{n}:{half}")));
        if let Ok(first) = queue.push(&items).await {
            ledger.pushed.extend((first..).zip(items));
        }
    }
    ledger
}

/// Takes items until the queue is empty after the end. Of some it does not end the work in time, while others push.
async fn consume(client: Client, stop: Arc<AtomicBool>, done: Arc<AtomicUsize>) -> QueueLedger {
    let mut queue = queue(&client, 3, u32::MAX).await;
    let mut ledger = QueueLedger::default();
    for n in 0_usize.. {
        let ends = stop.load(Ordering::Acquire);
        let Ok(taken) = queue.take(1 + n % 4, SHORT).await else {
            continue;
        };
        let from = Instant::now();
        if taken.is_empty() && ends {
            let stat = queue.stat().await;
            if stat.is_ok_and(|stat| stat.oldest.is_none()) {
                break;
            }
        }
        if n % 16 == 15 && !ends {
            // As if this consumer had died: it would work up to the end of the lease.
            for item in &taken {
                let holds = ledger.holds.entry(item.position).or_default();
                holds.push((from, item.lease_end.max(from)));
            }
            continue;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
        taken.iter().for_each(|item| ledger.held(item, from));
        if n % 16 == 7 && !ends {
            let _again = queue.give_back(&taken, Duration::ZERO).await;
            continue;
        }
        match queue.acknowledge(&taken).await {
            Ok(items) => {
                done.fetch_add(items.len(), Ordering::AcqRel);
                ledger.done.extend(items);
            }
            Err(_) => ledger.unsure.extend(taken.iter().map(|item| item.position)),
        }
    }
    ledger
}

/// Nothing that was pushed is lost, nothing is done twice, and no two consumers hold an item at once.
#[test]
fn a_queue_keeps_its_promises_when_the_node_of_the_sequencer_dies() {
    let mut cluster = cluster(4, Medium::Ram);
    let (client, runtime) = client_of(&cluster);
    runtime.block_on(made(&client));
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicUsize::new(0));
    let producer = |me| runtime.spawn(produce(client.clone(), me, stop.clone()));
    let producers: Vec<_> = (0..2).map(producer).collect();
    let consumer = |_| runtime.spawn(consume(client.clone(), stop.clone(), done.clone()));
    let consumers: Vec<_> = (0..3).map(consumer).collect();
    let so_far = || done.load(Ordering::Acquire);
    wait_until("items are done", || so_far() > 40);
    kill_sequencer(&mut cluster, (&client, &runtime), "q");
    let before = so_far();
    wait_until("items are done again", || so_far() > before + 40);
    stop.store(true, Ordering::Release);
    let mut all = QueueLedger::default();
    for task in producers.into_iter().chain(consumers) {
        all.add(runtime.block_on(task).expect("a client ends"));
    }
    all.judge();
}
