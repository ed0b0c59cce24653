//! Connections that are let in, and the words for the others.

use std::time::Duration;

use staves_net::{Connection, Descriptors, Identity, NetError, Options};
use staves_wire::ErrorCode;

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
        assert_eq!(server.refused().too_many.total(), 1);
        drop(one);
        until_greeted(&addr).await;
    });
}

/// Sockets on which nobody says hello take only so many places, and hold none of them for long.
#[test]
fn who_does_not_say_hello_keeps_nobody_out() {
    block_on(async {
        let options = Options {
            greeting_max: 2,
            connect_timeout: Duration::from_millis(300),
            ..Options::default()
        };
        let (server, _, addr) = server(options).await;
        let _silent = [Raw::open(&addr).await, Raw::open(&addr).await];
        let mut third = Raw::open(&addr).await;
        assert!(third.hear().await.is_none(), "closed at once");
        assert_eq!(server.refused().too_many.total(), 1);
        until_greeted(&addr).await;
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
