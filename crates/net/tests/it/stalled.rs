//! A node that takes nothing for a while, and what it is sent then.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use staves_model::{ClientId, PoolId, Revision, ServiceId};
use staves_net::{Connection, Identity, Options};
use staves_wire::cache::{Condition, OwnedOp};
use staves_wire::frame::{self, Envelope, FRAME_BODY_MAX, HEADER_BYTES, Header, Limits};
use staves_wire::hello::Welcome;
use staves_wire::service::{PoolRef, ServiceRequest};
use staves_wire::{Message, Opcode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::common::*;

/// More than the kernel takes for a connection that nobody reads.
const BULK: usize = 48 << 20;

/// Greets and then reads only when told to.
struct Stalled {
    socket: TcpStream,
    buffer: BytesMut,
}

impl Stalled {
    async fn with_client(options: Options) -> (Stalled, Connection) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("its address").to_string();
        let client = tokio::spawn(async move {
            let identity = Identity::client(CLUSTER);
            let opened = Connection::open(&addr, &identity, &options).await;
            opened.expect("it is greeted")
        });
        let (socket, _) = listener.accept().await.expect("the client");
        let mut stalled = Stalled {
            socket,
            buffer: BytesMut::new(),
        };
        let (hello, _) = stalled.frame().await;
        let welcome = Message::Welcome(Welcome {
            cluster: CLUSTER,
            node: who(1).node,
            incarnation: who(1).incarnation,
            version: 1,
            features: 0,
            message_bytes_max: Limits::default().message_bytes_max as u64,
            in_flight_max: 100,
        });
        let mut bytes = BytesMut::new();
        let envelope = Envelope {
            request: hello.request,
            answer: true,
            deadline_ms: 0,
        };
        frame::encode(envelope, &welcome, &mut bytes);
        stalled.socket.write_all(&bytes).await.expect("it listens");
        (stalled, client.await.expect("no panic"))
    }

    /// The next frame, but for questions whether we live.
    async fn frame(&mut self) -> (Header, Bytes) {
        loop {
            if let Some(head) = self.buffer.first_chunk::<HEADER_BYTES>() {
                let header = Header::decode(head).expect("the client speaks well");
                let end = HEADER_BYTES + header.body_len as usize;
                if self.buffer.len() >= end {
                    let frame = self.buffer.split_to(end).freeze();
                    if header.opcode == Opcode::Ping as u8 {
                        continue;
                    }
                    return (header, frame.slice(HEADER_BYTES..));
                }
            }
            self.buffer.reserve(FRAME_BODY_MAX);
            let read = self.socket.read_buf(&mut self.buffer).await;
            assert!(read.expect("it is open") > 0, "it is open");
        }
    }
}

fn set(bytes: usize) -> Message {
    let op = OwnedOp::Set {
        key: "k".into(),
        value: Bytes::from(vec![7; bytes]),
        condition: Condition::Always,
        get_old: false,
    };
    Message::Service(ServiceRequest {
        revision: Revision(1),
        service: ServiceId::CACHE,
        pool: PoolRef::Id(PoolId(1)),
        client: ClientId(1),
        floor: 1,
        retry: false,
        forwarded: false,
        ops: vec![op.numbered(1)],
    })
}

fn patient() -> Options {
    Options {
        queued_bytes_max: 4 * BULK,
        silence_max: Duration::from_secs(25),
        stall_max: Duration::from_secs(25),
        ..Options::default()
    }
}

/// A small message does not wait for a large one to end.
#[test]
fn a_small_message_overtakes_a_large_one() {
    run(async {
        let (mut stalled, client) = Stalled::with_client(patient()).await;
        let large = client.clone();
        let large = tokio::spawn(async move { large.call(&set(BULK), within(20_000)).await });
        // The large one is on its way, and the kernel is full of it.
        let (first, _) = stalled.frame().await;
        assert_eq!(first.opcode, Opcode::Service as u8);
        tokio::time::sleep(Duration::from_millis(100)).await;
        let small = tokio::spawn(async move { client.call(&ask(1), within(20_000)).await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut before = first.body_len as usize;
        loop {
            let (header, _) = stalled.frame().await;
            if header.opcode == Opcode::GetMap as u8 {
                break;
            }
            before += header.body_len as usize;
        }
        assert!(
            before < BULK / 2,
            "{before} bytes came before the small message"
        );
        large.abort();
        small.abort();
    });
}

/// What nobody waits for any more is not sent, and what is still waited for says how long.
#[test]
fn requests_that_waited_too_long_to_be_sent_are_not_sent() {
    run(async {
        let (mut stalled, client) = Stalled::with_client(patient()).await;
        let large = client.clone();
        let large = tokio::spawn(async move { large.call(&set(BULK), within(20_000)).await });
        let (first, _) = stalled.frame().await;
        assert_eq!(first.opcode, Opcode::Service as u8);
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut calls = Vec::new();
        for (n, ms) in [(21, 50), (22, 10_000), (23, 50), (24, 20_000)] {
            let client = client.clone();
            calls.push(tokio::spawn(async move {
                let request = if n == 23 { set(1 << 20) } else { ask(n) };
                client.call(&request, within(ms)).await
            }));
        }
        tokio::time::sleep(Duration::from_millis(800)).await;
        let mut asked = Vec::new();
        let mut sets = std::collections::BTreeSet::from([first.request]);
        while asked.len() < 2 {
            let (header, body) = stalled.frame().await;
            if header.opcode == Opcode::Service as u8 {
                sets.insert(header.request);
                continue;
            }
            let opcode = Opcode::from_number(header.opcode).expect("known");
            let message = Message::decode(opcode, header.epoch, body).expect("decodes");
            asked.push((message, header.deadline_ms));
        }
        asked.sort_by_key(|(_, left)| *left);
        let [(one, one_left), (two, two_left)] = &asked[..] else {
            panic!("two of three")
        };
        assert_eq!((one, two), (&ask(22), &ask(24)));
        assert!(
            *one_left < 9_900 && *two_left < 19_900,
            "{one_left} {two_left}"
        );
        // The large one goes on to its end, and the other that was late never came.
        let mut left = BULK;
        while left > 0 {
            let (header, _) = stalled.frame().await;
            sets.insert(header.request);
            left = left.saturating_sub(header.body_len as usize);
            if header.flags & frame::FLAG_MORE == 0 {
                break;
            }
        }
        client
            .call(&ask(25), within(50))
            .await
            .expect_err("nobody answers");
        let (last, _) = stalled.frame().await;
        assert_eq!(last.opcode, Opcode::GetMap as u8);
        assert_eq!(sets.len(), 1);
        large.abort();
        calls.iter().for_each(|call| call.abort());
    });
}
