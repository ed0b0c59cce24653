//! Connections that are let in, and the words for the others.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use staves_net::{Connection, Descriptors, Identity, InFlight, NetError, Options};
use staves_wire::directory::Propose;
use staves_wire::frame::{self, Envelope};
use staves_wire::{ErrorCode, Message};

use crate::common::*;
use crate::hostile::{Raw, until_greeted};

#[test]
fn no_more_connections_than_allowed() {
    block_on(async {
        let options = Options {
            connections_max: 2,
            ..Options::default()
        };
        let (server, _, addr) = server(options).await;
        let one = Raw::greeted(&addr).await;
        let _two = Raw::greeted(&addr).await;
        let client = Identity::client(CLUSTER);
        let three = Connection::open(&addr, &client, &Options::default()).await;
        let Err(NetError::Hello { reason, code, .. }) = three.map(|_| ()) else {
            panic!("a third is let in");
        };
        assert_eq!(code, Some(ErrorCode::Busy), "{reason}");
        assert!(reason.contains("has 2 connections"), "{reason}");
        // Clients take no place of a node.
        let opened = Connection::open(&addr, &node(7), &Options::default()).await;
        opened.expect("a node has places of its own");
        // Regression: as many clients as may be there kept all tools out, which people need just then.
        let tool = Identity::admin(CLUSTER);
        let opened = Connection::open(&addr, &tool, &Options::default()).await;
        opened.expect("tools have places of their own then");
        assert_eq!(server.refused().too_many.total(), 1);
        drop(one);
        until_greeted(&addr).await;
    });
}

/// Sockets on which nobody says hello take only so many places, and keep out nobody who says it. Regression: whoever came while all places
/// were taken was closed, so that silent connections that came again shut out nodes and tools for as long as they liked.
#[test]
fn who_does_not_say_hello_keeps_nobody_out() {
    block_on(async {
        let options = Options {
            greeting_max: 2,
            ..Options::default()
        };
        let (server, _, addr) = server(options).await;
        let mut silent = Vec::new();
        for displaced in 1..5 {
            silent.push(Raw::open(&addr).await);
            silent.push(Raw::open(&addr).await);
            let opened = Connection::open(&addr, &node(7), &Options::default()).await;
            opened.expect("one that says hello is let in");
            assert!(server.refused().silent.total() >= displaced);
        }
        // Regression: they counted as clients for which there was no room, and status said so.
        let refused = server.refused();
        assert_eq!((refused.too_many.total(), refused.recent()), (0, 0));
        assert!(silent[0].hear().await.is_none(), "the oldest was closed");
    });
}

/// One that says nothing for as long as it may is closed, and counted as what it is.
#[test]
fn who_says_nothing_in_time_is_counted_as_silent() {
    block_on(async {
        let options = Options {
            connect_timeout: Duration::from_millis(100),
            ..Options::default()
        };
        let (server, _, addr) = server(options).await;
        let mut silent = Raw::open(&addr).await;
        while silent.hear().await.is_some() {}
        let refused = server.refused();
        assert_eq!((refused.silent.total(), refused.recent()), (1, 0));
        assert_eq!(refused.too_many.total() + refused.protocol.total(), 0);
    });
}

/// A client whose socket lies in the reserve of descriptors is refused, and a node is not.
#[test]
fn the_reserve_of_descriptors_is_for_nodes() {
    block_on(async {
        let descriptors = Descriptors {
            limit: 4,
            reserve: 2,
        };
        let options = Options {
            descriptors,
            ..Options::default()
        };
        let (server, _, addr) = server(options).await;
        for who in [Identity::client(CLUSTER), Identity::admin(CLUSTER)] {
            let opened = Connection::open(&addr, &who, &Options::default()).await;
            let error = opened.map(|_| ()).expect_err("no descriptor is left");
            assert_eq!(error.code(), ErrorCode::Busy, "{error}");
            assert!(error.to_string().contains("of 4 in all"), "{error}");
        }
        let opened = Connection::open(&addr, &node(7), &Options::default()).await;
        opened.expect("the reserve is for nodes");
        assert_eq!(server.refused().descriptors.total(), 2);
    });
}

/// Eight clients begin large messages and do not end them: the server takes no more of them than its budget allows, and
/// small ones go on. When they go on, some are answered, and the others told why not.
#[test]
fn unfinished_messages_share_one_budget() {
    const MIB: usize = 1 << 20;
    block_on(async {
        let in_flight = InFlight::new(4 * MIB);
        let options = Options {
            in_flight: in_flight.clone(),
            ..Options::default()
        };
        let (_server, _, addr) = server(options).await;
        let large = Message::Propose(Propose {
            expected: None,
            change: Bytes::from(vec![7; 3 * MIB]),
        });
        let envelope = Envelope {
            request: 7,
            ..Envelope::default()
        };
        let mut encoded = BytesMut::new();
        frame::encode(envelope, &large, &mut encoded);
        let (begin, end) = encoded.split_at(encoded.len() - 10);
        let mut all = Vec::new();
        for _ in 0..8 {
            let mut raw = Raw::greeted(&addr).await;
            raw.bytes(begin).await;
            all.push(raw);
        }
        wait_until_async("they are begun", || in_flight.held_bytes() >= 2 * MIB).await;
        let well = client(&addr, Options::default()).await;
        for _ in 0..10 {
            let answer = well.call(&ask(9), within(5000)).await;
            assert_eq!(answer.expect("answered"), status(9));
            // One of 3 MiB may go on beside a reserve of one, and all are counted in steps.
            assert!(in_flight.held_bytes() <= 4 * MIB + MIB / 8);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for raw in &mut all {
            raw.bytes(end).await;
        }
        let mut answered = 0;
        for mut raw in all {
            match raw.hear().await {
                // The others are refused; their connections are well.
                Some((7, Message::Error(packet))) => {
                    assert!(packet.text.contains("in_flight_bytes_max"), "{packet}");
                    raw.say(9, &ask(9)).await;
                    assert_eq!(raw.hear().await, Some((9, status(9))));
                }
                Some((7, message)) => {
                    assert_eq!(message, status(3 * MIB));
                    answered += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(answered > 0);
        wait_until_async("all is given back", || in_flight.held_bytes() == 0).await;
    });
}
