//! Links between nodes.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use staves_model::{DiskId, Epoch, GroupId, Incarnation, Label, MemberId, NodeId, Time};
use staves_net::{NetError, Options, PeerOptions, Peers};
use staves_wire::directory::Sign;
use staves_wire::group::{Delta, GroupEnvelope, GroupMessage, Run, RunKind};

use crate::common::*;

pub type Signs = Arc<Mutex<Vec<(NodeId, Sign)>>>;

pub fn peers(options: PeerOptions) -> (Peers, Signs) {
    let signs = Signs::default();
    let told = signs.clone();
    let evidence = move |node, sign| told.lock().unwrap().push((node, sign));
    (Peers::new(node(2), options, Arc::new(evidence)), signs)
}

pub fn envelope(seq: u64, len: usize) -> GroupEnvelope {
    let delta = Delta {
        label: Label {
            epoch: Epoch(1),
            seq,
        },
        request: None,
        answer: Bytes::new(),
        runs: vec![Run {
            offset: 0,
            len: len as u32,
            kind: RunKind::Bytes,
        }],
        bytes: Bytes::from(vec![1; len]),
    };
    GroupEnvelope {
        group: GroupId(1),
        epoch: Epoch(1),
        from: MemberId::new(NodeId(2), Incarnation(2)),
        to: DiskId::MEMORY,
        message: GroupMessage::Deltas {
            stream: 0,
            deltas: vec![delta],
            stable: 0,
            purgeable: 0,
            last: seq,
            clock: Time(1),
            want_extents: 0,
        },
    }
}

fn seqs(script: &Script) -> Vec<u64> {
    let last = |envelope: &GroupEnvelope| match &envelope.message {
        GroupMessage::Deltas { last, .. } => *last,
        _ => 0,
    };
    script.groups.lock().unwrap().iter().map(last).collect()
}

#[test]
fn group_messages_arrive_in_order_and_share_writes() {
    block_on(async {
        let (_server, script, addr) = server(Options::default()).await;
        let (peers, signs) = peers(PeerOptions::default());
        assert!(
            !peers.send_group(NodeId(1), &envelope(0, 1)),
            "there is no link yet"
        );
        peers.set_addr(NodeId(1), &addr);
        // From a thread that knows of no runtime.
        let sender = peers.clone();
        std::thread::spawn(move || {
            for seq in 1..=5000 {
                assert!(sender.send_group(NodeId(1), &envelope(seq, 100)));
            }
            sender.flush();
        })
        .join()
        .expect("sending never blocks");
        wait_until_async("the group messages arrive", || {
            script.groups.lock().unwrap().len() == 5000
        })
        .await;
        assert!(seqs(&script).into_iter().eq(1..=5000));
        let batches = *script.batches.lock().unwrap();
        assert!(batches < 2500, "{batches} frames for 5000 messages");
        assert_eq!(signs.lock().unwrap()[..], [(NodeId(1), Sign::Alive)]);
        let stats = &peers.stats()[0];
        assert!(stats.connected && stats.group_sent == 5000 && stats.group_dropped == 0);
    });
}

#[test]
fn a_group_message_larger_than_a_frame_arrives_whole() {
    block_on(async {
        let (_server, script, addr) = server(Options::default()).await;
        let (peers, _) = peers(PeerOptions::default());
        peers.set_addr(NodeId(1), &addr);
        let large = envelope(1, 3 << 20);
        peers.send_group(NodeId(1), &large);
        peers.send_group(NodeId(1), &envelope(2, 10));
        peers.flush();
        wait_until_async("the group messages arrive", || {
            script.groups.lock().unwrap().len() == 2
        })
        .await;
        assert!(script.groups.lock().unwrap()[0] == large);
    });
}

#[test]
fn the_oldest_group_messages_are_let_go_when_a_peer_does_not_take_them() {
    block_on(async {
        let (_server, script, addr) = server(Options::default()).await;
        let relay = Relay::start(addr).await;
        let options = PeerOptions {
            group_bytes_max: 2 << 20,
            ..PeerOptions::default()
        };
        let (peers, _) = peers(options);
        peers.set_addr(NodeId(1), &relay.addr);
        peers.send_group(NodeId(1), &envelope(1, 10));
        peers.flush();
        wait_until_async("the group messages arrive", || {
            script.groups.lock().unwrap().len() == 1
        })
        .await;
        relay.freeze();
        for seq in 2..=500 {
            peers.send_group(NodeId(1), &envelope(seq, 100_000));
            peers.flush();
            tokio::task::yield_now().await;
        }
        let stats = peers.stats().remove(0);
        assert!(stats.queued_bytes <= 3 << 20, "{stats:?}");
        assert!(stats.group_dropped > 0, "{stats:?}");
        relay.thaw();
        wait_until_async("the messages arrive", || seqs(&script).last() == Some(&500)).await;
        let got = seqs(&script);
        assert!(
            got.is_sorted() && got.len() < 500,
            "the newest came, in order"
        );
    });
}

#[test]
fn d5_a_peer_that_dies_and_comes_back_is_seen_and_reached_again() {
    block_on(async {
        let (server, _, addr) = server(Options::default()).await;
        let (peers, signs) = peers(PeerOptions::default());
        peers.set_addr(NodeId(1), &addr);
        let answer = peers
            .call(NodeId(1), &ask(9), within(5000))
            .await
            .expect("answered");
        assert_eq!(answer, status(9));

        drop(server);
        wait_until_async("the sign is reported", || {
            signs.lock().unwrap().contains(&(NodeId(1), Sign::Failed))
        })
        .await;
        wait_until_async("the sign is reported", || {
            signs.lock().unwrap().contains(&(NodeId(1), Sign::Refused))
        })
        .await;
        // It fails at once: nobody waits for a node that is known to be away.
        let started = Instant::now();
        let error = peers
            .call(NodeId(1), &ask(9), within(5000))
            .await
            .expect_err("it is away");
        assert!(
            started.elapsed() < Duration::from_secs(4),
            "{:?}",
            started.elapsed()
        );
        assert!(
            error.to_string().contains(&addr) && error.nothing_done(),
            "{error}"
        );
        peers.send_group(NodeId(1), &envelope(1, 10));
        peers.flush();

        let (_server, script) = server_on(&addr, 1, Options::default()).await;
        wait_until_async("the connection changes", || peers.stats()[0].connected).await;
        let answer = peers
            .call(NodeId(1), &ask(8), within(5000))
            .await
            .expect("answered");
        assert_eq!(answer, status(8));
        peers.send_group(NodeId(1), &envelope(2, 10));
        peers.flush();
        wait_until_async("the messages arrive", || seqs(&script).contains(&2)).await;
        let back = signs
            .lock()
            .unwrap()
            .iter()
            .filter(|(_, sign)| *sign == Sign::Alive)
            .count();
        assert_eq!(back, 2);
    });
}

#[test]
fn a_node_that_moves_is_followed_and_a_stranger_at_its_address_is_not_taken_for_it() {
    block_on(async {
        let (_one, _, one) = server(Options::default()).await;
        let (_two, script) = server_on("127.0.0.1:0", 3, Options::default()).await;
        let two = _two.local_addr().to_string();
        let (peers, signs) = peers(PeerOptions::default());
        peers.set_addr(NodeId(3), &one);
        let error = peers
            .call(NodeId(3), &ask(9), within(5000))
            .await
            .expect_err("another node");
        assert!(
            matches!(
                error,
                NetError::WrongNode {
                    found: NodeId(1),
                    ..
                }
            ),
            "{error}"
        );
        assert_eq!(signs.lock().unwrap()[0], (NodeId(3), Sign::Refused));
        peers.set_addr(NodeId(3), &two);
        wait_until_async("the connection changes", || peers.stats()[0].connected).await;
        peers
            .call(NodeId(3), &ask(9), within(5000))
            .await
            .expect("answered");
        assert_eq!(script.seen.lock().unwrap()[..], [9]);
        // And back, while it is up.
        peers.set_addr(NodeId(3), &one);
        wait_until_async("the connection changes", || !peers.stats()[0].connected).await;
        peers.remove(NodeId(3));
        let error = peers
            .call(NodeId(3), &ask(9), within(5000))
            .await
            .expect_err("no link");
        assert!(matches!(error, NetError::NoAddress { .. }), "{error}");
    });
}

#[test]
fn d5_a_link_to_a_silent_peer_is_broken_and_reported() {
    block_on(async {
        let (_server, _, addr) = server(Options::default()).await;
        let relay = Relay::start(addr).await;
        let mut options = PeerOptions::default();
        options.connection.silence_max = Duration::from_millis(200);
        options.connection.connect_timeout = Duration::from_millis(200);
        let (peers, signs) = peers(options);
        peers.set_addr(NodeId(1), &relay.addr);
        wait_until_async("the connection changes", || peers.stats()[0].connected).await;
        relay.freeze();
        wait_until_async("the sign is reported", || {
            signs
                .lock()
                .unwrap()
                .iter()
                .any(|(_, sign)| matches!(sign, Sign::Silent))
        })
        .await;
        relay.thaw();
        wait_until_async("the connection changes", || peers.stats()[0].connected).await;
    });
}
