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

/// Takes messages of the group protocol, and counts the ends of turns.
#[derive(Clone, Default)]
struct Ends {
    frames: Arc<AtomicU64>,
    ends: Arc<AtomicU64>,
}

impl Handler for Ends {
    fn group(&self, _: &PeerInfo, _: Vec<GroupEnvelope>) {
        self.frames.fetch_add(1, Ordering::Relaxed);
    }

    fn request(&self, _: &PeerInfo, _: Message, reply: Reply) {
        reply.send(&status(1));
    }

    fn end_turn(&self) {
        self.ends.fetch_add(1, Ordering::Relaxed);
    }
}

/// All that has come is taken before the turn ends, though it is several reads: so the outcome of many frames leaves together.
#[test]
fn the_turn_ends_once_all_that_has_come_is_taken() {
    const FRAMES: u64 = 64;
    let handler = Ends::default();
    let (tell, told) = std::sync::mpsc::channel::<String>();
    let (say_sent, sent) = std::sync::mpsc::channel::<()>();
    let (let_go, go) = std::sync::mpsc::channel::<()>();
    let sending = std::thread::spawn(move || {
        let addr = told.recv().expect("an address");
        block_on(async {
            let (peers, _) = crate::peers::peers(staves_net::PeerOptions::default());
            peers.set_addr(staves_model::NodeId(1), &addr);
            let say = |seq| {
                peers.send_group(staves_model::NodeId(1), &crate::peers::envelope(seq, 1500));
                peers.flush();
            };
            wait_until_async("the link is up", || peers.stats()[0].connected).await;
            say(1);
            go.recv().expect("the first came");
            (2..=1 + FRAMES).for_each(say);
            say_sent.send(()).expect("it waits");
            // The link stays until all has come.
            let _ = go.recv();
        });
    });
    one_thread().block_on(async {
        let server = Server::bind("127.0.0.1:0", node(1), Options::default(), handler.clone());
        let server = server.await.expect("a free port on loopback");
        tell.send(server.local_addr().to_string())
            .expect("it listens");
        let came = |count| handler.frames.load(Ordering::Relaxed) >= count;
        wait_until_async("the first frame comes", || came(1)).await;
        wait_until_async("its turn ends", || handler.ends.load(Ordering::Relaxed) > 0).await;
        let before = handler.ends.load(Ordering::Relaxed);
        let_go.send(()).expect("it waits");
        // This thread stands still until all frames lie there.
        sent.recv().expect("they are sent");
        wait_until_async("the frames come", || came(1 + FRAMES)).await;
        wait_until_async("the turn ends", || {
            handler.ends.load(Ordering::Relaxed) > before
        })
        .await;
        let ends = handler.ends.load(Ordering::Relaxed) - before;
        assert!(ends <= 3, "{ends} turns for {FRAMES} frames of 96 KB");
        drop(let_go);
    });
    sending.join().expect("no panic");
}
