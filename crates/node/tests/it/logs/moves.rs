//! The sequencer of a log goes to another node while the log serves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use staves_client::{AppendMode, Client, ErrorCode, LogSlot, LogStat};
use staves_model::{Change, Medium, NodeId};
use staves_testkit::{DEADLINE, wait_until};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::{Acked, append, client_of, cluster, judge, read_all};

/// Clients that append until they are told to stop.
struct Appends {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    clients: Vec<JoinHandle<Acked>>,
}

impl Appends {
    fn start(client: &Client, runtime: &Runtime, count: u64) -> Appends {
        let mut all = Appends {
            stop: Arc::default(),
            done: Arc::default(),
            clients: Vec::new(),
        };
        for n in 0..count {
            let (client, stop, done) = (client.clone(), all.stop.clone(), all.done.clone());
            all.clients.push(runtime.spawn(async move {
                let log = client.open_log(None, "events").await.expect("a log");
                append(log, n, stop, done).await
            }));
        }
        all
    }

    /// Waits until so many more are acknowledged.
    fn go_on(&self, more: u64) {
        let so_far = self.done.load(Ordering::Acquire);
        wait_until("the clients go on", || {
            self.done.load(Ordering::Acquire) > so_far + more
        });
    }

    /// Stops them, and looks whether each acknowledged record is where it was said to be.
    fn end(self, client: &Client, runtime: &Runtime) {
        self.stop.store(true, Ordering::Release);
        let clients = self.clients;
        let join = async {
            let mut all = Vec::new();
            for client in clients {
                all.push(client.await.expect("a client ends in order"));
            }
            all
        };
        let acked = runtime.block_on(join);
        let log = runtime.block_on(client.open_log(None, "events"));
        let all = runtime.block_on(read_all(&log.expect("the log")));
        judge(&acked, &all);
    }
}

fn moves_under_appends(mode: AppendMode) {
    let cluster = cluster(3, Medium::Ram);
    let (client, runtime) = client_of(&cluster);
    let made = runtime.block_on(client.create_log(None, "events", mode));
    made.expect("the log is made");
    let appends = Appends::start(&client, &runtime, 3);
    appends.go_on(20);
    let mut term = 0;
    for round in 0..6 {
        let to = cluster.nodes[round % 3].id;
        let moved: LogStat = runtime
            .block_on(client.move_log(None, "events", to))
            .expect("it is moved");
        let name = client.map().nodes.get(&to).map(|node| node.name.clone());
        assert_eq!(moved.sequencer, name);
        assert!(moved.term > term, "{moved:?}");
        term = moved.term;
        // It is there already: nothing changes.
        let again = runtime.block_on(client.move_log(None, "events", to));
        assert_eq!(again.expect("it is there").term, term);
        appends.go_on(20);
    }
    let sealed = runtime.block_on(client.seal_log(None, "events"));
    assert_eq!(sealed.expect("a new term").term, term + 1);
    appends.go_on(20);
    appends.end(&client, &runtime);
}

#[test]
fn a_move_under_appends_loses_nothing() {
    moves_under_appends(AppendMode::Bind);
}

#[test]
fn a_move_under_appends_with_tokens_loses_nothing() {
    moves_under_appends(AppendMode::Corfu);
}

/// Regression: one who followed a log at rest was told by its old sequencer, for ever, that nothing had come, and a reader that what had come was not there.
#[test]
fn one_who_waits_at_the_tail_goes_on_when_a_log_at_rest_is_moved() {
    let cluster = cluster(3, Medium::Ram);
    let (client, runtime) = client_of(&cluster);
    let made = runtime.block_on(client.create_log(None, "events", AppendMode::Bind));
    made.expect("the log is made");
    let open = || {
        runtime
            .block_on(client.open_log(None, "events"))
            .expect("a log")
    };
    let record = [Bytes::from_static(b"a")];
    let (follower, reader) = (open(), open());
    runtime.block_on(open().append(&record)).expect("the first");
    for log in [&follower, &reader] {
        let tail = runtime.block_on(log.tail());
        assert_eq!(tail.expect("a tail"), 1);
    }
    let stat = runtime.block_on(client.log_stat(None, "events"));
    let before = stat.expect("the log").sequencer.expect("a sequencer");
    let to = cluster.nodes.iter().map(|node| node.id).find(|id| {
        let name = client.map().nodes.get(id).map(|node| node.name.clone());
        name.as_ref() != Some(&before)
    });
    let moving = client.move_log(None, "events", to.expect("another node"));
    runtime.block_on(moving).expect("it is moved");
    runtime
        .block_on(open().append(&record))
        .expect("the second");
    let read = runtime.block_on(reader.read(1)).expect("it is read");
    assert_eq!(read, LogSlot::Record(record[0].clone()));
    let grown = runtime.block_on(follower.wait(1, None, DEADLINE));
    assert!(grown.expect("an answer"), "the second has come");
}

#[test]
fn a_drained_node_gives_its_sequencers_away_and_takes_none() {
    let cluster = cluster(3, Medium::Ram);
    let (client, runtime) = client_of(&cluster);
    let made = runtime.block_on(client.create_log(None, "events", AppendMode::Bind));
    made.expect("the log is made");
    let sealed = runtime.block_on(client.seal_log(None, "events"));
    let sealed = sealed.expect_err("there is no term to end");
    assert!(
        sealed.to_string().contains("has no sequencer now"),
        "{sealed}"
    );
    let node = &cluster.nodes[1];
    let moved = runtime.block_on(client.move_log(None, "events", node.id));
    moved.expect("it is moved");
    let appends = Appends::start(&client, &runtime, 2);
    appends.go_on(20);
    let drain = Change::Drain {
        node: node.id,
        on: true,
    };
    cluster.nodes[0].propose(&drain).expect("it is drained");
    let name = client.map().nodes.get(&node.id).map(|n| n.name.clone());
    wait_until("the sequencer is elsewhere", || {
        let stat = runtime.block_on(client.log_stat(None, "events"));
        let at = stat.expect("the log").sequencer;
        at.is_some() && at != name
    });
    appends.go_on(20);
    runtime.block_on(async {
        client.refresh().await.expect("a map");
        let back = client.move_log(None, "events", node.id).await;
        let back = back.expect_err("it is drained");
        assert_eq!(back.code(), ErrorCode::Refused);
        assert!(back.to_string().contains("is drained"), "{back}");
        let nobody = client.move_log(None, "events", NodeId(77)).await;
        let nobody = nobody.expect_err("there is none");
        assert!(
            nobody.to_string().contains("there is no node 77"),
            "{nobody}"
        );
    });
    appends.end(&client, &runtime);
}
