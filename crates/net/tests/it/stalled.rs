//! A node that reads nothing for a while, and the order of what it is sent then.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use staves_model::{ClientId, PoolId, Revision, ServiceId};
use staves_net::{Connection, Identity, Options};
use staves_wire::cache::{Condition, OwnedOp};
use staves_wire::frame::{
    self, Envelope, FRAME_BODY_MAX, HEADER_BYTES, Header, Limits, VERSION_MAX,
};
use staves_wire::hello::Welcome;
use staves_wire::service::{PoolRef, ServiceRequest};
use staves_wire::{Message, Opcode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::common::*;

/// More than the kernel takes for a connection that nobody reads.
const BULK: usize = 48 << 20;

/// A server that welcomes a client and then reads only on request.
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
            version: VERSION_MAX,
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

    /// The next frame that is not a ping.
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
        answer_bytes_max: 0,
        strict: false,
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

/// Polls a call once, which puts its request into the queue; true if it waits for the answer.
async fn begins(mut call: Pin<&mut impl Future>) -> bool {
    poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_pending())).await
}

/// A small message does not wait for a large one to end.
#[test]
fn a_small_message_overtakes_a_large_one() {
    block_on(async {
        let (mut stalled, client) = Stalled::with_client(patient()).await;
        let large = set(BULK);
        let mut large = pin!(client.call(&large, within(60_000)));
        assert!(begins(large.as_mut()).await);
        // Some of the large one has left, and the rest of it is more than the kernel takes.
        let (first, _) = stalled.frame().await;
        assert_eq!(first.opcode, Opcode::Service as u8);
        let small = ask(1);
        let mut small = pin!(client.call(&small, within(60_000)));
        assert!(begins(small.as_mut()).await);
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
    });
}
