//! Connections on which megabytes come, and the others beside them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use bytes::Bytes;
use parking_lot::Mutex;
use staves_net::{Connection, Handler, Options, PeerInfo, Reply, Server};
use staves_wire::Message;
use staves_wire::directory::Propose;
use staves_wire::group::GroupEnvelope;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::common::*;

/// One message.
const BYTES: usize = 256 << 10;
const MESSAGES: usize = 256;
/// A turn, the read that ended it, and what lay in the buffer before.
const IN_ONE_TURN_MAX: usize = 4 << 20;

/// The bytes that come between two turns of a task beside it.
#[derive(Clone, Default)]
struct Turns {
    count: Arc<AtomicU64>,
    /// In which turn the last message came, how many bytes in that, and the most in any.
    came: Arc<Mutex<(u64, usize, usize)>>,
}

impl Turns {
    fn message(&self) {
        let turn = self.count.load(Ordering::Relaxed);
        let mut came = self.came.lock();
        came.1 = if came.0 == turn { came.1 } else { 0 } + BYTES;
        came.0 = turn;
        came.2 = came.2.max(came.1);
    }

    fn most(&self) -> usize {
        self.came.lock().2
    }

    /// A task that wants its turn all the time.
    async fn go_on(self) {
        std::future::poll_fn(|context| {
            self.count.fetch_add(1, Ordering::Relaxed);
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }
}

impl Handler for Turns {
    fn group(&self, _: &PeerInfo, _: Vec<GroupEnvelope>) {}

    fn request(&self, _: &PeerInfo, _: Message, reply: Reply) {
        self.message();
        reply.send(&status(1));
    }
}

fn one_thread() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}

/// Asks all at once.
async fn ask_all(connection: &Connection, request: &Message, mut came: impl FnMut()) {
    let mut calls = JoinSet::new();
    for _ in 0..MESSAGES {
        let (connection, request) = (connection.clone(), request.clone());
        calls.spawn(async move { connection.call(&request, within(20_000)).await });
    }
    while let Some(answer) = calls.join_next().await {
        answer.expect("no panic").expect("it is answered");
        came();
    }
}

#[test]
fn a_server_that_is_sent_megabytes_lets_others_have_their_turn() {
    let turns = Turns::default();
    let (tell, told) = std::sync::mpsc::channel();
    let asking = std::thread::spawn(move || {
        let addr: String = told.recv().expect("an address");
        block_on(async {
            let connection = client(&addr, Options::default()).await;
            let request = Message::Propose(Propose {
                expected: None,
                change: Bytes::from(vec![7; BYTES]),
            });
            ask_all(&connection, &request, || {}).await;
        });
    });
    one_thread().block_on(async {
        let server = Server::bind("127.0.0.1:0", node(1), Options::default(), turns.clone()).await;
        let server = server.expect("a free port on loopback");
        tell.send(server.local_addr().to_string())
            .expect("it listens");
        tokio::spawn(turns.clone().go_on());
        while !asking.is_finished() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    });
    asking.join().expect("no panic");
    let most = turns.most();
    assert!(
        (BYTES..=IN_ONE_TURN_MAX).contains(&most),
        "{most} bytes in one turn"
    );
}

#[test]
fn a_client_that_is_answered_megabytes_lets_others_have_their_turn() {
    let turns = Turns::default();
    let servers = tokio::runtime::Runtime::new().expect("a runtime");
    let (server, _, addr) = servers.block_on(server(Options::default()));
    one_thread().block_on(async {
        let connection = client(&addr, Options::default()).await;
        tokio::spawn(turns.clone().go_on());
        ask_all(&connection, &ask(BYTES as u32), || turns.message()).await;
    });
    drop(server);
    let most = turns.most();
    assert!(
        (BYTES..=IN_ONE_TURN_MAX).contains(&most),
        "{most} bytes in one turn"
    );
}
