//! Producers with ids of their own, on real nodes: windows, restarts, and the death of the sequencer's node.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use staves_client::{AppendMode, Client, ErrorCode, LogProducer, ProducedRecord};
use staves_model::Medium;
use staves_testkit::wait_until;

use crate::log_queue::kill_sequencer;
use crate::logs::{client_of, cluster};

const TAG: u64 = 1;

fn record(id: u64, value: &str) -> ProducedRecord {
    ProducedRecord {
        id: Bytes::from(format!("id-{id}")),
        value: Bytes::from(value.to_owned()),
    }
}

async fn producer(
    client: &Client,
    window: usize,
) -> Result<LogProducer, staves_client::ClientError> {
    let log = client.open_log(None, "p").await?;
    LogProducer::open(log, TAG, window).await
}

/// The records of the stream by position: their ids and values.
async fn produced(client: &Client) -> Vec<(u64, ProducedRecord)> {
    let log = client.open_log(None, "p").await.expect("opened");
    let mut replay = log.replay(TAG, 0).await.expect("a replay");
    let mut all = Vec::new();
    while let Some((position, bytes)) = replay.next().await.expect("a record") {
        let record = ProducedRecord::decode(&bytes).expect("a producer's");
        all.push((position, record));
    }
    all
}

#[test]
fn an_id_of_the_window_is_in_the_log_once_also_for_a_producer_that_starts_again() {
    let cluster = cluster(3, Medium::Ram);
    let (client, runtime) = client_of(&cluster);
    runtime.block_on(async {
        for mode in [AppendMode::Bind, AppendMode::Corfu] {
            client.create_log(None, "p", mode).await.expect("made");
            let mut first = producer(&client, 4).await.expect("opened");
            let records: Vec<_> = (0..6).map(|n| record(n, "first")).collect();
            let long = first.append(&records).await;
            let long = long.expect_err("its first ids would be forgotten before it ends");
            assert_eq!(long.code(), ErrorCode::Refused, "{long}");
            let mut at = first.append(&records[..4]).await.expect("appended");
            let twice = [&records[4..], &records[2..3]].concat();
            at.extend(first.append(&twice).await.expect("appended"));
            assert_eq!(at[6], at[2], "the same id once more");
            // Another start, and the first one at the same time.
            let mut second = producer(&client, 4).await.expect("opened");
            let changed = [record(4, "second"), record(6, "second")];
            let again = second.append(&changed).await.expect("appended");
            assert_eq!(again[0], at[4]);
            assert!(again[1] > at[5]);
            let known = first.append(&changed[1..]).await.expect("an answer");
            assert_eq!(known, again[1..]);
            // The window has 3 to 6: 2 is new.
            let beyond = second.append(&records[2..4]).await.expect("appended");
            assert!(beyond[0] > again[1] && beyond[1] == at[3], "{beyond:?}");
            let ids = produced(&client).await;
            let ids: Vec<_> = ids.iter().map(|(_, record)| record.id.clone()).collect();
            let expected = [0, 1, 2, 3, 4, 5, 6, 2].map(|n| record(n, "").id);
            assert_eq!(ids, expected);
            let long = ProducedRecord {
                id: Bytes::from(vec![0; 65]),
                value: Bytes::new(),
            };
            let long = second.append(&[long]).await.expect_err("too long");
            assert_eq!(long.code(), ErrorCode::Refused, "{long}");
            client.delete_log(None, "p").await.expect("deleted");
        }
    });
}

/// Appends ids in lists of three until each has its position. Every error is a restart, and some appends are given up while they are under way.
async fn persist(client: Client, count: u64) -> BTreeMap<u64, u64> {
    let mut positions = BTreeMap::new();
    let mut open = None;
    let mut n = 0_u64;
    while (positions.len() as u64) < count {
        let done = positions.len() as u64;
        let records: Vec<_> = (done..done + 3).map(|id| record(id, "value")).collect();
        let mut own = match open.take() {
            Some(own) => own,
            None => match producer(&client, 64).await {
                Ok(own) => own,
                Err(_) => continue,
            },
        };
        n += 1;
        let patience = match n % 4 {
            3 => Duration::from_millis(n % 5),
            _ => Duration::from_secs(60),
        };
        if let Ok(Ok(at)) = tokio::time::timeout(patience, own.append(&records)).await {
            positions.extend((done..).zip(at));
            open = Some(own);
        }
    }
    positions
}

#[test]
fn ids_are_in_the_log_once_and_in_order_through_restarts_and_the_death_of_the_sequencers_node() {
    let mut cluster = cluster(4, Medium::Ram);
    let (client, runtime) = client_of(&cluster);
    let made = client.create_log(None, "p", AppendMode::Bind);
    runtime.block_on(made).expect("made");
    let task = runtime.spawn(persist(client.clone(), 240));
    let so_far = || runtime.block_on(produced(&client)).len();
    wait_until("records are produced", || so_far() > 60);
    kill_sequencer(&mut cluster, (&client, &runtime), "p");
    let positions = runtime.block_on(task).expect("it ends");
    let all = runtime.block_on(produced(&client));
    let expected = positions.iter().map(|(id, at)| (*at, record(*id, "value")));
    assert_eq!(all, expected.collect::<Vec<_>>());
}
