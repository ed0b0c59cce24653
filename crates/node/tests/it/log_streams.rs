//! Streams of logs on real nodes: tags, conditions, waits, cursors, and a map that clients share through one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use staves_client::{
    AppendCondition, AppendMode, Client, ConditionalAppend, CursorChange, ErrorCode, LogHandle,
    LogMap, LogRetention, LogSlot, WhenFull,
};
use staves_history::{Call, Operation, Verdict, check};
use staves_model::Medium;
use staves_testkit::wait_until;

use crate::logs::{client_of, cluster};

async fn made(client: &Client, name: &str, mode: AppendMode) -> LogHandle {
    client.create_log(None, name, mode).await.expect("made");
    client.open_log(None, name).await.expect("opened")
}

fn text(n: u64) -> Bytes {
    Bytes::from(n.to_string())
}

/// The records of a stream from a position on.
async fn stream(log: &LogHandle, tag: u64, from: u64) -> Vec<(u64, Bytes)> {
    let mut replay = log.replay(tag, from).await.expect("a replay");
    let mut all = Vec::new();
    while let Some(record) = replay.next().await.expect("a record") {
        all.push(record);
    }
    all
}

#[test]
fn a_stream_is_read_by_its_tag_and_without_what_was_punched() {
    let cluster = cluster(3, Medium::Ram);
    let (client, runtime) = client_of(&cluster);
    runtime.block_on(async {
        let log = made(&client, "l", AppendMode::Bind).await;
        let mut expected = BTreeMap::<u64, Vec<(u64, Bytes)>>::new();
        for n in 0..120 {
            let tags = [n % 3, 10 + n % 7];
            let tags = &tags[..(n % 4).min(2) as usize];
            let at = log.append_tagged(&[text(n)], tags).await.expect("appended");
            for tag in tags {
                expected.entry(*tag).or_default().push((at, text(n)));
            }
        }
        let batch = [text(120), text(121), text(122)];
        let at = log.append_tagged(&batch, &[2]).await.expect("appended");
        let of_two = expected.entry(2).or_default();
        of_two.extend((at..).zip(batch));
        let punched = of_two.remove(4).0;
        log.punch(punched).await.expect("punched");
        assert_eq!(log.read(punched).await.expect("read"), LogSlot::Junk);
        for (tag, records) in &expected {
            assert_eq!(&stream(&log, *tag, 0).await, records, "tag {tag}");
        }
        let later = &expected[&1][10..];
        assert_eq!(stream(&log, 1, later[0].0).await, later);
        assert!(stream(&log, 99, 0).await.is_empty());
        let past = log.punch(1 << 40).await.expect_err("not given out");
        assert_eq!(past.code(), ErrorCode::NotFound, "{past}");
        let twice = log
            .append_tagged(&[text(0)], &[5, 5])
            .await
            .expect_err("twice");
        assert_eq!(twice.code(), ErrorCode::Refused, "{twice}");
    });
}

#[test]
fn an_append_with_a_condition_fails_where_its_stream_has_grown() {
    let cluster = cluster(3, Medium::Ram);
    let (client, runtime) = client_of(&cluster);
    runtime.block_on(async {
        for mode in [AppendMode::Bind, AppendMode::Predict, AppendMode::Corfu] {
            let log = made(&client, &format!("{mode:?}"), mode).await;
            let first = log.append_tagged(&[text(0)], &[7]).await.expect("appended");
            // Another stream does not matter to this one, and does to the log.
            let other = log.append_tagged(&[text(1)], &[8]).await.expect("appended");
            let condition = |tag, tail| AppendCondition { tag, tail };
            let failed = log
                .append_if(condition(Some(7), first), &[text(2)], &[7])
                .await;
            assert_eq!(
                failed.expect("an answer"),
                ConditionalAppend::Failed(first + 1)
            );
            let whole = log
                .append_if(condition(None, other), &[text(3)], &[7])
                .await;
            let ConditionalAppend::Failed(tail) = whole.expect("an answer") else {
                panic!("the log has grown past {other}");
            };
            assert!(tail > other, "{tail}");
            let done = log
                .append_if(condition(Some(7), first + 1), &[text(4)], &[7])
                .await;
            let ConditionalAppend::At(at) = done.expect("an answer") else {
                panic!("nothing of the stream lies above {first}");
            };
            assert!(at > other);
            let all = stream(&log, 7, 0).await;
            assert_eq!(
                all,
                [(first, text(0)), (at, text(4))],
                "nothing of what failed"
            );
            // A trimmed position may have been of the stream. The tail says that all below is decided.
            assert!(log.tail().await.expect("the tail") > at);
            log.trim(at).await.expect("trimmed");
            let failed = log.append_if(condition(Some(9), 0), &[text(5)], &[9]).await;
            assert_eq!(failed.expect("an answer"), ConditionalAppend::Failed(at));
        }
    });
}

#[test]
fn one_who_waits_is_answered_when_the_log_grows() {
    let cluster = cluster(3, Medium::Ram);
    let (client, runtime) = client_of(&cluster);
    runtime.block_on(async {
        let log = made(&client, "l", AppendMode::Bind).await;
        let short = Duration::from_millis(1);
        assert!(!log.wait(0, None, short).await.expect("an answer"));
        let (any, tagged) = (log.clone(), log.clone());
        let long = Duration::from_secs(60);
        let any = tokio::spawn(async move { any.wait(0, None, long).await });
        let tagged = tokio::spawn(async move { tagged.wait(0, Some(3), long).await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        let began = Instant::now();
        log.append(&[text(0)]).await.expect("appended");
        assert!(any.await.expect("a task").expect("an answer"));
        assert!(!tagged.is_finished(), "nothing of its stream has come");
        log.append_tagged(&[text(1)], &[3]).await.expect("appended");
        assert!(tagged.await.expect("a task").expect("an answer"));
        assert!(began.elapsed() < Duration::from_secs(30));
    });
}

/// The number of records from a position on.
async fn records(log: &LogHandle, from: u64) -> usize {
    let tail = log.tail().await.expect("the tail");
    let mut count = 0;
    for position in from..tail {
        let slot = log.read(position).await.expect("read");
        count += usize::from(matches!(slot, LogSlot::Record(_)));
    }
    count
}

#[test]
fn cursors_are_moved_by_compare_and_set_and_keep_what_they_have_not_passed() {
    let cluster = cluster(3, Medium::Ram);
    let (client, runtime) = client_of(&cluster);
    let rules = |when_full| LogRetention {
        records: Some(10),
        when_full,
        ..LogRetention::default()
    };
    let trim = || {
        let stat = runtime.block_on(client.log_stat(None, "l"));
        stat.expect("the log").trim
    };
    let log = runtime.block_on(async {
        let log = made(&client, "l", AppendMode::Bind).await;
        let set = |from, to| client.move_log_cursor(None, "l", "reader", from, to);
        assert_eq!(
            set(Some(None), Some(5)).await.expect("set"),
            CursorChange::Done
        );
        let late = set(Some(Some(4)), Some(9)).await.expect("an answer");
        assert_eq!(late, CursorChange::Moved(Some(5)));
        let none = client.log_cursor(None, "l", "other").await.expect("read");
        assert_eq!(none, None);
        let long = "x".repeat(65);
        let long = client
            .move_log_cursor(None, "l", &long, None, Some(1))
            .await;
        let long = long.expect_err("too long");
        assert!(long.to_string().contains("at most 64 cursors"), "{long}");
        let set = client.set_log_retention(None, "l", rules(WhenFull::Refuse));
        set.await.expect("set");
        log
    });
    let append = |n| runtime.block_on(log.append(&[text(n)]));
    // The cursor holds 5 and what follows; beyond 15 records appends wait, and come in when it has moved on.
    let waiting = log.clone();
    let writer = runtime.spawn(async move {
        for n in 0..40 {
            waiting.append(&[text(n)]).await.expect("appended");
        }
    });
    wait_until("what nobody needs is trimmed", || trim() == 5);
    std::thread::sleep(Duration::from_millis(500));
    assert!(!writer.is_finished(), "the log is full");
    let moved = client.move_log_cursor(None, "l", "reader", Some(Some(5)), Some(35));
    assert_eq!(runtime.block_on(moved).expect("moved"), CursorChange::Done);
    runtime.block_on(writer).expect("the writer ends");
    // The empty positions between records are none of the ten.
    let kept = || runtime.block_on(records(&log, trim()));
    // Or a few more, where a position of theirs was decided late.
    wait_until("ten are kept", || (10..=14).contains(&kept()));
    // Cursors or not.
    let discard = client.set_log_retention(None, "l", rules(WhenFull::Discard));
    runtime.block_on(discard).expect("set");
    for n in 40..70 {
        append(n).expect("appended");
    }
    wait_until("old records are discarded", || trim() > 50);
}

/// A transaction on three accounts: one gives a sum to another, or all are looked at.
#[derive(Clone, PartialEq, Debug)]
enum Transfer {
    Move { from: usize, to: usize, sum: i64 },
    Look,
}

impl Operation for Transfer {
    type State = [i64; 3];
    type Seen = [i64; 3];

    fn apply(&self, before: &[i64; 3]) -> ([i64; 3], [i64; 3]) {
        let mut after = *before;
        if let Transfer::Move { from, to, sum } = self {
            after[*from] -= sum;
            after[*to] += sum;
        }
        (after, after)
    }

    fn is_read(&self) -> bool {
        *self == Transfer::Look
    }

    fn is_blind(&self) -> bool {
        false
    }
}

const ACCOUNTS: [&str; 3] = ["a", "b", "c"];

async fn execute(
    map: &mut LogMap,
    transfer: &Transfer,
) -> Result<[i64; 3], staves_client::ClientError> {
    map.transact(|transaction| {
        let read = |key: &str| {
            let value = transaction.get(key.as_bytes());
            let value = value.and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
            value.unwrap_or(0)
        };
        let (after, seen) = transfer.apply(&ACCOUNTS.map(read));
        if !transfer.is_read() {
            for (key, sum) in ACCOUNTS.iter().zip(after) {
                transaction.put(*key, sum.to_string());
            }
        }
        seen
    })
    .await
}

/// One client's transactions, until it is told to stop.
async fn transfers(
    client: Client,
    me: usize,
    (began, stop): (Instant, Arc<AtomicBool>),
    done: Arc<AtomicU64>,
) -> Vec<Call<Transfer>> {
    let micros = || began.elapsed().as_micros() as u64;
    let log = client.open_log(None, "m").await.expect("opened");
    let mut map = LogMap::new(log, 1);
    let mut calls = Vec::new();
    for n in 0..400 {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let transfer = match n % 4 {
            0 => Transfer::Look,
            _ => Transfer::Move {
                from: (n + me) % 3,
                to: (n + me + 1) % 3,
                sum: (7 * n + me) as i64,
            },
        };
        let called = micros();
        let call = match execute(&mut map, &transfer).await {
            Ok(seen) => Call::new(transfer, called, Some(micros()), Some(seen)),
            Err(error) if error.is_uncertain() => Call::new(transfer, called, None, None),
            Err(_) => continue,
        };
        calls.push(call);
        done.fetch_add(1, Ordering::AcqRel);
    }
    calls
}

/// Transactions of several clients, while the node of the sequencer dies, have one order that explains what each of them saw.
#[test]
fn transactions_of_a_shared_map_are_linearizable_when_the_sequencer_dies() {
    let mut cluster = cluster(4, Medium::Ram);
    let (client, runtime) = client_of(&cluster);
    let began = Instant::now();
    runtime
        .block_on(client.create_log(None, "m", AppendMode::Bind))
        .expect("made");
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU64::new(0));
    let start = |me: usize| {
        let (client, stop, done) = (client.clone(), stop.clone(), done.clone());
        runtime.spawn(transfers(client, me, (began, stop), done))
    };
    let clients: Vec<_> = (0..3).map(start).collect();
    let executed = || done.load(Ordering::Acquire);
    wait_until("the clients are under way", || executed() > 40);
    let stat = runtime
        .block_on(client.log_stat(None, "m"))
        .expect("the log");
    let sequencer = stat.sequencer.expect("a sequencer");
    let map = client.map();
    let mut nodes = map.nodes.iter();
    let id = nodes
        .find(|(_, node)| node.name == sequencer)
        .map(|(id, _)| *id);
    let victim = cluster.nodes.iter_mut().find(|node| Some(node.id) == id);
    victim.expect("its node").kill();
    let so_far = executed();
    wait_until("the clients go on", || executed() > so_far + 40);
    stop.store(true, Ordering::Release);
    let mut calls = Vec::new();
    for client in clients {
        calls.extend(runtime.block_on(client).expect("a client ends"));
    }
    match check(&calls, 10_000_000) {
        Verdict::Fine => {}
        Verdict::Bad(stuck) => panic!("{stuck}"),
        Verdict::Undecided => panic!("no order was found in time"),
    }
}
