//! Strangers at the port: each is refused by itself, and the server goes on.

use std::time::{Duration, Instant};

use bytes::BytesMut;
use staves_net::{Connection, NetError, Options};
use staves_wire::frame::{self, Decoder, Envelope, Header, Incoming, Limits, VERSION_MAX};
use staves_wire::group::Batch;
use staves_wire::{ErrorCode, Message, Opcode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::*;

pub struct Raw {
    socket: TcpStream,
    decoder: Decoder,
    buffer: BytesMut,
}

impl Raw {
    pub async fn open(addr: &str) -> Raw {
        let socket = TcpStream::connect(addr).await.expect("it listens");
        Raw {
            socket,
            decoder: Decoder::new(Limits::default()),
            buffer: BytesMut::new(),
        }
    }

    pub async fn greeted(addr: &str) -> Raw {
        let mut raw = Raw::open(addr).await;
        let hello = staves_net::Identity::client(CLUSTER).hello();
        raw.say(1, &Message::Hello(hello)).await;
        assert!(matches!(raw.hear().await, Some((1, Message::Welcome(_)))));
        raw
    }

    pub async fn say(&mut self, request: u64, message: &Message) {
        let mut bytes = BytesMut::new();
        frame::encode(
            Envelope {
                request,
                ..Envelope::default()
            },
            message,
            &mut bytes,
        );
        self.bytes(&bytes).await;
    }

    pub async fn bytes(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).await.expect("it takes bytes");
    }

    /// The next message; `None` when the other side has closed.
    pub async fn hear(&mut self) -> Option<(u64, Message)> {
        loop {
            match self
                .decoder
                .next(&mut self.buffer)
                .expect("the server speaks well")
            {
                Some(Incoming::Message(raw)) => {
                    let opcode = Opcode::from_number(raw.header.opcode).expect("known");
                    let message = Message::decode(opcode, raw.header.epoch, raw.body);
                    return Some((raw.header.request, message.expect("decodes")));
                }
                Some(other) => panic!("{other:?}"),
                None => {}
            }
            match self.socket.read_buf(&mut self.buffer).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    async fn hear_error(&mut self) -> (u64, ErrorCode) {
        match self.hear().await {
            Some((request, Message::Error(packet))) => (request, packet.code),
            other => panic!("an error packet was due, and {other:?} came"),
        }
    }
}

#[test]
fn garbage_ends_its_own_connection_and_no_other() {
    block_on(async {
        let (_server, _, addr) = server(Options::default()).await;
        let well = client(&addr, Options::default()).await;
        let garbage: [&[u8]; 3] = [
            b"GET / HTTP/1.1\r\nHost: somewhere\r\nAccept: */*\r\n\r\n",
            &[0; 4096],
            &[0xFF; 100],
        ];
        for bytes in garbage {
            let mut raw = Raw::open(&addr).await;
            raw.bytes(bytes).await;
            assert_eq!(raw.hear_error().await.1, ErrorCode::Malformed);
            assert!(raw.hear().await.is_none(), "and it is closed");
            // The same after a hello.
            let mut raw = Raw::greeted(&addr).await;
            raw.bytes(bytes).await;
            assert_eq!(raw.hear_error().await, (0, ErrorCode::Malformed));
            assert!(raw.hear().await.is_none(), "and it is closed");
        }
        assert_eq!(
            well.call(&ask(9), within(5000)).await.expect("answered"),
            status(9)
        );
    });
}

#[test]
fn what_cannot_be_understood_is_refused_and_the_connection_goes_on() {
    block_on(async {
        let (_server, _, addr) = server(Options::default()).await;
        let mut raw = Raw::greeted(&addr).await;
        let header = |opcode, body: &[u8]| Header {
            format: 1,
            opcode,
            flags: 0,
            request: 42,
            epoch: 0,
            deadline_ms: 0,
            body_len: body.len() as u32,
            body_crc: crc32c(body),
        };
        raw.bytes(&header(250, b"").encode()).await;
        assert_eq!(raw.hear_error().await, (42, ErrorCode::Unsupported));
        raw.bytes(&header(Opcode::Service as u8, b"abc").encode())
            .await;
        raw.bytes(b"abc").await;
        assert_eq!(raw.hear_error().await, (42, ErrorCode::Malformed));
        raw.say(43, &ask(5)).await;
        assert!(matches!(raw.hear().await, Some((43, answer)) if answer == status(5)));
    });
}

/// CRC32C by its definition, so that the test does not lean on what it tests.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc: u32, _| {
            (crc >> 1) ^ if crc & 1 == 1 { 0x82F6_3B78 } else { 0 }
        })
    })
}

#[test]
fn a_newer_node_is_greeted_in_our_version_and_one_too_new_is_told_so() {
    block_on(async {
        let (_server, _, addr) = server(Options::default()).await;
        let offer = |min, max| {
            let mut hello = staves_net::Identity::client(CLUSTER).hello();
            (hello.version_min, hello.version_max) = (min, max);
            hello.features = 1;
            let mut bytes = BytesMut::new();
            Message::Hello(hello).put_body(&mut bytes);
            bytes.extend_from_slice(b"and a field of a later version");
            bytes
        };
        let header = |body: &[u8]| Header {
            format: 1,
            opcode: Opcode::Hello as u8,
            flags: 0,
            request: 5,
            epoch: 0,
            deadline_ms: 0,
            body_len: body.len() as u32,
            body_crc: crc32c(body),
        };
        let newer = offer(VERSION_MAX, VERSION_MAX + 1);
        let mut raw = Raw::open(&addr).await;
        raw.bytes(&header(&newer).encode()).await;
        raw.bytes(&newer).await;
        match raw.hear().await {
            Some((5, Message::Welcome(welcome))) => {
                assert_eq!((welcome.version, welcome.features), (VERSION_MAX, 0));
            }
            other => panic!("a welcome was due, and {other:?} came"),
        }
        raw.say(6, &ask(7)).await;
        assert!(matches!(raw.hear().await, Some((6, answer)) if answer == status(7)));

        let too_new = offer(VERSION_MAX + 1, VERSION_MAX + 2);
        let mut raw = Raw::open(&addr).await;
        raw.bytes(&header(&too_new).encode()).await;
        raw.bytes(&too_new).await;
        assert_eq!(raw.hear_error().await, (5, ErrorCode::Unsupported));
        assert!(raw.hear().await.is_none(), "and it is closed");
    });
}

#[test]
fn a_client_may_not_speak_as_a_node() {
    block_on(async {
        let (_server, script, addr) = server(Options::default()).await;
        let mut raw = Raw::greeted(&addr).await;
        raw.say(7, &Message::Group(Batch::default())).await;
        assert_eq!(raw.hear_error().await, (7, ErrorCode::Denied));
        assert_eq!(*script.batches.lock().unwrap(), 0);
    });
}

#[test]
fn whoever_connects_and_says_nothing_is_let_go() {
    block_on(async {
        let options = Options {
            connect_timeout: Duration::from_secs(2),
            idle_max: Duration::from_millis(150),
            ..Options::default()
        };
        let (_server, _, addr) = server(options).await;
        let mut raw = Raw::open(&addr).await;
        while raw.hear().await.is_some() {}
        let mut raw = Raw::greeted(&addr).await;
        while raw.hear().await.is_some() {}
    });
}

#[test]
fn a_client_that_takes_no_answers_is_not_read_from_and_then_let_go() {
    block_on(async {
        let options = Options {
            queued_bytes_max: 1 << 20,
            stall_max: Duration::from_millis(300),
            ..Options::default()
        };
        let (_server, script, addr) = server(options).await;
        let mut raw = Raw::greeted(&addr).await;
        let mut bytes = BytesMut::new();
        for request in 0..400 {
            let envelope = Envelope {
                request,
                ..Envelope::default()
            };
            frame::encode(envelope, &ask(1 << 20), &mut bytes);
        }
        raw.bytes(&bytes).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let seen = script.seen.lock().unwrap().len();
        assert!(
            seen < 50,
            "{seen} requests were taken, though no answer was"
        );
        tokio::time::sleep(Duration::from_millis(600)).await;
        assert!(script.seen.lock().unwrap().len() < 50, "it was let go");
    });
}

#[test]
fn a_server_that_has_enough_requests_stops_reading() {
    block_on(async {
        let options = Options {
            in_flight_max: 4,
            ..Options::default()
        };
        let (_server, script, addr) = server(options).await;
        let mut raw = Raw::greeted(&addr).await;
        for request in 0..10 {
            raw.say(request, &ask(KEEP)).await;
        }
        for answered in 0..10 {
            wait_until_async("the requests arrive", || {
                !script.kept.lock().unwrap().is_empty()
            })
            .await;
            tokio::time::sleep(Duration::from_millis(10)).await;
            assert!(script.seen.lock().unwrap().len() <= 4 + answered);
            let reply = script.kept.lock().unwrap().pop().expect("one");
            reply.send(&status(1));
        }
        for _ in 0..10 {
            assert!(matches!(raw.hear().await, Some((_, answer)) if answer == status(1)));
        }
    });
}

/// A client's connection has a few requests under way that cost much, and none that comes behind them; whoever answers learns that it
/// has ended.
#[test]
fn of_one_client_only_a_few_costly_requests_are_under_way() {
    block_on(async {
        let (_server, script, addr) = server(Options::default()).await;
        let mut raw = Raw::greeted(&addr).await;
        for request in 0..100 {
            raw.say(request, &ask(COSTLY)).await;
        }
        raw.say(100, &ask(40)).await;
        let seen = || script.seen.lock().unwrap().len();
        for answered in 0..100 {
            wait_until_async("the next is taken", || seen() > answered).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(seen() <= 4 + answered, "{} after {answered}", seen());
            let reply = script.kept.lock().unwrap().pop().expect("one");
            assert!(!reply.is_gone());
            reply.send(&status(1));
        }
        for answered in 0..101 {
            let (request, answer) = raw.hear().await.expect("an answer");
            let (behind, length) = (request == 100, if request == 100 { 40 } else { 1 });
            assert_eq!(answer, status(length));
            assert!(!behind || answered > 96, "it came after {answered}");
        }
        raw.say(101, &ask(COSTLY)).await;
        wait_until_async("the last", || !script.kept.lock().unwrap().is_empty()).await;
        let last = script.kept.lock().unwrap().pop().expect("just seen");
        drop(raw);
        last.gone().await;
        assert!(last.is_gone());
    });
}

pub async fn until_greeted(addr: &str) {
    let identity = staves_net::Identity::client(CLUSTER);
    while staves_net::Connection::open(addr, &identity, &Options::default())
        .await
        .is_err()
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A request that waited for its turn longer than its asker waits is not begun.
#[test]
fn what_comes_to_its_turn_after_its_deadline_is_refused_and_not_done() {
    block_on(async {
        let options = Options {
            in_flight_max: 1,
            ..Options::default()
        };
        let (_server, script, addr) = server(options).await;
        let mut raw = Raw::greeted(&addr).await;
        let mut bytes = BytesMut::new();
        let asks = [(11, KEEP, 60_000), (12, 40, 50), (13, 41, 60_000)];
        for (request, n, deadline_ms) in asks {
            let envelope = Envelope {
                request,
                deadline_ms,
                ..Envelope::default()
            };
            frame::encode(envelope, &ask(n), &mut bytes);
        }
        // In one write: the second and the third wait for the answer to the first.
        raw.bytes(&bytes).await;
        wait_until_async("the requests arrive", || {
            script.kept.lock().unwrap().len() == 1
        })
        .await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let first = script.kept.lock().unwrap().pop().expect("just seen");
        first.send(&status(1));
        assert_eq!(raw.hear().await, Some((11, status(1))));
        assert_eq!(raw.hear_error().await, (12, ErrorCode::Busy));
        assert_eq!(raw.hear().await, Some((13, status(41))));
        assert_eq!(*script.seen.lock().unwrap(), [KEEP, 41]);
    });
}

/// Connections of the directory are served ahead of all others, so nothing else gets onto them.
#[test]
fn a_connection_of_the_directory_carries_nothing_else() {
    block_on(async {
        let (_server, _, addr) = server(Options::default()).await;
        let (first, options) = (node(2).for_directory(), Options::default());
        let directory = Connection::open(&addr, &first, &options).await;
        let directory = directory.expect("it answers");
        let until = Instant::now() + Duration::from_secs(20);
        match directory.call(&ask(7), until).await {
            Err(NetError::Refused { packet, .. }) => assert_eq!(packet.code, ErrorCode::Denied),
            other => panic!("{other:?}"),
        }
        let ordinary = Connection::open(&addr, &node(2), &options).await;
        let answer = ordinary.expect("it answers").call(&ask(7), until).await;
        assert_eq!(answer.expect("it answers"), status(7));
    });
}
