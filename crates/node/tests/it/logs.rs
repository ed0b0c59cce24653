//! Logs on real nodes: rows L1, L2 and L7.

mod bounds;
mod figures;
mod moves;
mod rules;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use staves_client::{AppendMode, Client, ClientOptions, ErrorCode, LogHandle, LogSlot};
use staves_model::{Change, Medium, NodeState, PoolKind, ServiceId};
use staves_testkit::cluster::TestCluster;
use staves_testkit::wait_until;
use tokio::runtime::Runtime;

const CLIENTS: u64 = 4;

fn create(medium: Medium) -> Change {
    Change::CreatePool {
        name: "logs".into(),
        kind: PoolKind::Slots(ServiceId::LOG),
        scheme: "1+1".parse().expect("a scheme"),
        medium,
        node_budget_bytes: 32 << 20,
        buckets: 4,
        may_start_empty: false,
    }
}

/// Nodes with a pool of logs whose units are open.
pub(crate) fn cluster(nodes: usize, medium: Medium) -> TestCluster {
    let cluster = TestCluster::start(nodes);
    make(&cluster, &create(medium));
    cluster
}

fn make(cluster: &TestCluster, create: &Change) {
    let made = cluster.nodes[0].propose(create);
    made.expect("the pool is made");
    wait_until("the pool's groups are open", || {
        let map = cluster.nodes[0].map();
        let pool = map.pool_named("logs");
        pool.is_some_and(|pool| map.groups_of(pool).all(|group| group.open))
    });
}

/// A client on threads of its own: any node may die.
pub(crate) fn client_of(cluster: &TestCluster) -> (Client, Runtime) {
    let runtime = Runtime::new().expect("threads");
    let addresses = cluster.nodes.iter().map(|n| n.addresses.native.to_string());
    let addresses: Vec<String> = addresses.collect();
    let options = ClientOptions {
        deadline: Duration::from_secs(20),
        ..ClientOptions::default()
    };
    let client = runtime.block_on(Client::connect(&addresses, options));
    (client.expect("a client"), runtime)
}

/// The text of an acknowledged record, and its position.
type Acked = BTreeMap<u64, String>;

/// One client: it appends, one record after the other, until it is told to stop. Each was acknowledged before the next began, so that its position is lower.
async fn append(log: LogHandle, client: u64, stop: Arc<AtomicBool>, done: Arc<AtomicU64>) -> Acked {
    let mut acked = Acked::new();
    for n in 0_u64.. {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let text = format!("{client}:{n}");
        // Where the outcome is not known, another record follows; the judge bears that it is in the log.
        let appended = log.append(&[Bytes::from(text.clone())]).await;
        if let Ok(position) = appended {
            let last = acked.last_key_value().map(|(position, _)| *position);
            assert!(last < Some(position), "what began later lies above");
            acked.insert(position, text);
            done.fetch_add(1, Ordering::AcqRel);
        }
    }
    acked
}

/// All records of a log, by position.
async fn read_all(log: &LogHandle) -> Acked {
    let tail = log.tail().await.expect("the tail");
    let mut all = Acked::new();
    for position in 0..tail {
        match log.read(position).await.expect("a position below the tail") {
            LogSlot::Record(bytes) => {
                let text = String::from_utf8(bytes.to_vec()).expect("text");
                all.insert(position, text);
            }
            LogSlot::Junk => {}
            other => panic!("{position}: {other:?}"),
        }
    }
    assert_eq!(log.read(tail).await.expect("an answer"), LogSlot::PastTail);
    all
}

/// Each acknowledged record is where it was said to be, and nothing is there twice.
fn judge(acked: &[Acked], all: &Acked) {
    for (position, text) in acked.iter().flatten() {
        assert_eq!(all.get(position), Some(text), "position {position}");
    }
    let mut texts: Vec<&String> = all.values().collect();
    texts.sort();
    let count = texts.len();
    texts.dedup();
    assert_eq!(texts.len(), count, "a record is in the log twice");
}

fn lives(client: &Client, name: &str) -> bool {
    let map = client.map();
    let mut nodes = map.nodes.values();
    nodes.any(|node| node.name == name && node.state == NodeState::Up)
}

/// Appends of several clients, while the node of the sequencer dies: row L7.
fn survives(medium: Medium, mode: AppendMode) {
    let mut cluster = cluster(4, medium);
    let (client, runtime) = client_of(&cluster);
    let made = runtime.block_on(client.create_log(None, "events", mode));
    assert_eq!(made.expect("the log is made").term, 0);
    let (stop, done) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let start = |n: u64| {
        let (client, stop, done) = (client.clone(), stop.clone(), done.clone());
        runtime.spawn(async move {
            let log = client.open_log(None, "events").await.expect("a log");
            append(log, n, stop, done).await
        })
    };
    let clients: Vec<_> = (0..CLIENTS).map(start).collect();
    let acked = || done.load(Ordering::Acquire);
    wait_until("the clients are under way", || acked() > 60);

    let stat = || runtime.block_on(client.log_stat(None, "events"));
    let before = stat().expect("the log");
    let sequencer = before.sequencer.expect("a sequencer");
    let is_its = |node: &&mut staves_testkit::cluster::TestNode| {
        let map = client.map();
        map.nodes.get(&node.id).is_some_and(|n| n.name == sequencer)
    };
    let victim = cluster.nodes.iter_mut().find(is_its).expect("its node");
    victim.kill();
    wait_until("the map has it as gone", || {
        let _map = runtime.block_on(client.refresh());
        !lives(&client, &sequencer)
    });
    let so_far = acked();
    wait_until("the clients go on", || acked() > so_far + 60);
    let after = stat().expect("the log");
    assert!(after.term > before.term, "{after:?}");
    stop.store(true, Ordering::Release);
    let join = async {
        let mut all = Vec::new();
        for client in clients {
            all.push(client.await.expect("a client ends in order"));
        }
        all
    };
    let all_acked = runtime.block_on(join);
    let log = runtime.block_on(client.open_log(None, "events"));
    let all = runtime.block_on(read_all(&log.expect("the log")));
    judge(&all_acked, &all);
}

#[test]
fn nothing_acknowledged_is_lost_when_the_node_of_the_sequencer_dies() {
    survives(Medium::Ram, AppendMode::Bind);
}

/// Rows L1 and L2: positions belong to units in turn, and clients guess the unit of theirs.
#[test]
fn appends_to_predicted_units_keep_their_order() {
    survives(Medium::Ram, AppendMode::Predict);
}

#[test]
fn a_token_first_log_keeps_its_order() {
    survives(Medium::Ram, AppendMode::Corfu);
}

#[test]
fn a_log_is_trimmed_and_deleted_and_wrong_requests_have_one_clear_error() {
    let cluster = cluster(3, Medium::Ram);
    let (client, runtime) = client_of(&cluster);
    runtime.block_on(async {
        let none = client.open_log(None, "none").await.map(|_| ());
        let none = none.expect_err("there is none");
        assert_eq!(none.code(), ErrorCode::NotFound);
        assert!(none.to_string().contains("no log 'none'"), "{none}");
        let mode = AppendMode::Bind;
        let long = client.create_log(None, &"x".repeat(256), mode).await;
        let long = long.expect_err("too long").to_string();
        assert!(long.contains("1 to 255 bytes"), "{long}");
        client.create_log(None, "l", mode).await.expect("made");
        let again = client.create_log(None, "l", mode).await.expect_err("taken");
        assert!(again.to_string().contains("already"), "{again}");
        let log = client.open_log(Some("logs"), "l").await.expect("a log");
        let large = Bytes::from(vec![0; (1 << 20) + 1]);
        let large = log.append(&[large]).await.expect_err("too large");
        assert_eq!(large.code(), ErrorCode::TooLarge);
        let records: Vec<Bytes> = (0..100_u8).map(|n| Bytes::from(vec![n; 50])).collect();
        let first = log.append(&records).await.expect("appended");
        let past = log.trim(first + 1_000_000).await.expect_err("past all");
        assert!(past.to_string().contains("cannot be trimmed"), "{past}");
        log.trim(first + 40).await.expect("trimmed");
        assert_eq!(log.read(first + 39).await.expect("read"), LogSlot::Trimmed);
        let kept = log.read(first + 40).await.expect("read");
        assert_eq!(kept, LogSlot::Record(records[40].clone()));
        let all = client.logs(None).await.expect("a list");
        assert_eq!(
            all.iter().map(|log| &log.name[..]).collect::<Vec<_>>(),
            ["l"]
        );
        client.delete_log(None, "l").await.expect("deleted");
        let gone = log.append(&records[..1]).await.expect_err("deleted");
        assert_eq!(gone.code(), ErrorCode::NotFound, "{gone}");
        assert!(client.logs(None).await.expect("a list").is_empty());
    });
}
