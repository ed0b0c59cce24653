//! A shared secret: who knows it comes in, in its role, and nobody else does.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use staves_net::{Connection, Identity, NetError, Options, Secret, Secrets, Server};
use staves_wire::directory::Propose;
use staves_wire::frame::{self, Decoder, Envelope, Incoming, Limits};
use staves_wire::hello::{Challenge, Proven, Role, Welcome};
use staves_wire::{ErrorCode, Message, Opcode};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::common::*;
use crate::hostile::Raw;

const NODES: u8 = 1;
const CLIENTS: u8 = 2;
const OTHER: u8 = 3;

fn secret(byte: u8) -> Secret {
    Secret::new(&[byte; 32])
}

async fn guarded() -> (Server, String) {
    let identity = node(1).with_secrets(Some(Secrets {
        nodes: secret(NODES),
        clients: Some(secret(CLIENTS)),
    }));
    let server = Server::bind(
        "127.0.0.1:0",
        identity,
        Options::default(),
        Script::default(),
    );
    let server = server.await.expect("a free port on loopback");
    let addr = server.local_addr().to_string();
    (server, addr)
}

async fn open(addr: &str, identity: &Identity) -> Result<Connection, NetError> {
    Connection::open(addr, identity, &Options::default()).await
}

async fn denied(addr: &str, identity: &Identity) -> String {
    let opened = open(addr, identity).await.map(|_| ());
    let error = opened.expect_err("it has no secret that suffices");
    assert_eq!(error.code(), ErrorCode::Denied, "{error}");
    assert_eq!(error.sign(), None, "no sign of death");
    error.to_string()
}

#[test]
fn a_secret_opens_the_door_for_its_rank() {
    block_on(async {
        let (server, addr) = guarded().await;
        let client = || Identity::client(CLUSTER);
        let all = [
            (node(7), [true, false]),
            (node(7).for_directory(), [true, false]),
            (client(), [true, true]),
            (Identity::admin(CLUSTER), [true, true]),
        ];
        let mut refused = 0;
        for (identity, enough) in all {
            for (byte, enough) in [NODES, CLIENTS].into_iter().zip(enough) {
                let who = identity.clone().with_secret(Some(secret(byte)));
                if enough {
                    let opened = open(&addr, &who).await;
                    opened.unwrap_or_else(|error| panic!("{who:?}: {error}"));
                } else {
                    let text = denied(&addr, &who).await;
                    assert!(
                        text.contains("not the secret of this cluster's nodes"),
                        "{text}"
                    );
                    refused += 1;
                }
            }
            denied(&addr, &identity.clone().with_secret(Some(secret(OTHER)))).await;
            let text = denied(&addr, &identity).await;
            assert!(text.contains("--secret-file"), "{text}");
            refused += 2;
        }
        assert_eq!(server.refused().secret.total(), refused);
    });
}

#[test]
fn who_has_a_secret_speaks_only_to_who_has_it_too() {
    block_on(async {
        let (_server, _, addr) = server(Options::default()).await;
        let knows = node(7).with_secret(Some(secret(NODES)));
        let text = denied(&addr, &knows).await;
        assert!(text.contains("asks for no secret"), "{text}");
        // One who pretends: a challenge, and a proof that is none.
        let pretender = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = pretender.local_addr().expect("an address").to_string();
        tokio::spawn(async move {
            let (mut socket, _) = pretender.accept().await.expect("a connection");
            let nonce = Bytes::from_static(&[7; 32]);
            let challenge = Message::Challenge(Challenge { nonce });
            let welcome = Welcome {
                cluster: CLUSTER,
                node: staves_model::NodeId(1),
                incarnation: staves_model::Incarnation(1),
                version: 5,
                features: 0,
                message_bytes_max: 1 << 20,
                in_flight_max: 1,
            };
            let mut bytes = BytesMut::new();
            Message::Welcome(welcome).put_body(&mut bytes);
            let proven = Message::Proven(Proven {
                proof: Bytes::from_static(&[7; 32]),
                welcome: bytes.freeze(),
            });
            for answer in [challenge, proven] {
                let _ = socket.read(&mut [0; 4096]).await;
                let mut bytes = BytesMut::new();
                let envelope = Envelope {
                    request: 1,
                    answer: true,
                    deadline_ms: 0,
                };
                frame::encode(envelope, &answer, &mut bytes);
                socket.write_all(&bytes).await.expect("it listens");
            }
        });
        let text = denied(&addr, &knows).await;
        assert!(text.contains("proof of the secret is wrong"), "{text}");
    });
}

/// The first message of a connection.
async fn first(socket: &mut TcpStream) -> (u64, Message) {
    let (mut decoder, mut buffer) = (Decoder::new(Limits::default()), BytesMut::new());
    loop {
        if let Some(Incoming::Message(raw)) = decoder.next(&mut buffer).expect("a frame") {
            let opcode = Opcode::from_number(raw.header.opcode).expect("known");
            let message = Message::decode(opcode, raw.header.epoch, raw.body);
            return (raw.header.request, message.expect("it decodes"));
        }
        let read = socket.read_buf(&mut buffer).await.expect("it is open");
        assert!(read > 0, "it ended");
    }
}

/// One on the way who makes a node of a client, or changes nothing.
async fn relay(to: String, change: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = listener.local_addr().expect("an address").to_string();
    tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.expect("a connection");
        let mut far = TcpStream::connect(to).await.expect("it listens");
        let (request, mut message) = first(&mut near).await;
        if let (Message::Hello(hello), true) = (&mut message, change) {
            hello.role = Role::Node;
        }
        let mut bytes = BytesMut::new();
        let envelope = Envelope {
            request,
            ..Envelope::default()
        };
        frame::encode(envelope, &message, &mut bytes);
        far.write_all(&bytes).await.expect("it listens");
        let _ = copy_bidirectional(&mut near, &mut far).await;
    });
    addr
}

#[test]
fn a_proof_is_of_the_role_that_was_said() {
    block_on(async {
        let (_server, addr) = guarded().await;
        let client = Identity::client(CLUSTER).with_secret(Some(secret(NODES)));
        let unchanged = relay(addr.clone(), false).await;
        open(&unchanged, &client)
            .await
            .expect("nothing was changed");
        let changed = relay(addr, true).await;
        denied(&changed, &client).await;
    });
}

#[test]
fn nothing_but_a_proof_answers_a_challenge_and_each_is_new() {
    block_on(async {
        let (server, addr) = guarded().await;
        let hello = Identity::client(CLUSTER)
            .with_secret(Some(secret(CLIENTS)))
            .hello();
        for (at, answer) in [
            Message::Hello(hello.clone()),
            Message::Status,
            Message::Prove(staves_wire::hello::Prove {
                proof: Bytes::from_static(&[0; 32]),
            }),
            Message::Prove(staves_wire::hello::Prove {
                proof: Bytes::new(),
            }),
        ]
        .into_iter()
        .enumerate()
        {
            let mut raw = Raw::open(&addr).await;
            raw.say(1, &Message::Hello(hello.clone())).await;
            let Some((1, Message::Challenge(challenge))) = raw.hear().await else {
                panic!("a challenge comes");
            };
            assert_eq!(challenge.nonce.len(), 32);
            raw.say(2, &answer).await;
            match raw.hear().await {
                Some((2, Message::Error(packet))) => {
                    assert_eq!(packet.code, ErrorCode::Denied);
                    let cluster = format!("{:016x}", CLUSTER.0);
                    assert!(!packet.text.contains(&cluster), "{}", packet.text);
                }
                other => panic!("{other:?}"),
            }
            assert!(raw.hear().await.is_none(), "closed");
            assert_eq!(server.refused().secret.total(), at as u64 + 1);
        }
        let nonces = [Raw::open(&addr).await, Raw::open(&addr).await].map(|mut raw| {
            let hello = hello.clone();
            async move {
                raw.say(1, &Message::Hello(hello)).await;
                raw.hear().await
            }
        });
        let [one, two] = nonces;
        assert_ne!(one.await, two.await, "a challenge is new each time");
    });
}

/// One on the way who passes the greeting on, and then says something of his own, or changes what the other says.
async fn relay_until_proven(to: String, says: Says) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = listener.local_addr().expect("an address").to_string();
    tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.expect("a connection");
        let mut far = TcpStream::connect(to).await.expect("it listens");
        for at_near in [true, false, true, false] {
            let (from, to) = match at_near {
                true => (&mut near, &mut far),
                false => (&mut far, &mut near),
            };
            let mut bytes = vec![0; 4096];
            let read = from.read(&mut bytes).await.expect("it is open");
            to.write_all(&bytes[..read]).await.expect("it listens");
        }
        match says {
            Says::Nothing => {}
            Says::Own => {
                let mut bytes = BytesMut::new();
                let envelope = Envelope {
                    request: 1,
                    ..Envelope::default()
                };
                frame::encode(envelope, &ask(77), &mut bytes);
                far.write_all(&bytes).await.expect("it listens");
            }
            Says::Changed => {
                let mut bytes = vec![0; 4096];
                let read = near.read(&mut bytes).await.expect("it asks");
                // The last byte of the request: how long it waits.
                bytes[read - 1] ^= 1;
                far.write_all(&bytes[..read]).await.expect("it listens");
            }
        }
        let _ = copy_bidirectional(&mut near, &mut far).await;
    });
    addr
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Says {
    Nothing,
    Own,
    Changed,
}

/// Regression: somebody who listened at the address of a node that was down, or that a tool was given by mistake, had two honest sides
/// prove themselves to each other through him, and was a node then: he deleted a pool.
#[test]
fn who_passes_the_proofs_on_gains_nothing() {
    block_on(async {
        let identity = node(1).with_secrets(Some(Secrets {
            nodes: secret(NODES),
            clients: Some(secret(CLIENTS)),
        }));
        let script = Script::default();
        let options = Options::default();
        let server = Server::bind("127.0.0.1:0", identity, options, script.clone()).await;
        let addr = server.as_ref().expect("a port").local_addr().to_string();
        for (role, byte) in [(node(7), NODES), (Identity::admin(CLUSTER), CLIENTS)] {
            let who = role.with_secret(Some(secret(byte)));
            for says in [Says::Nothing, Says::Own, Says::Changed] {
                let relayed = relay_until_proven(addr.clone(), says).await;
                let connection = open(&relayed, &who).await.expect("both prove themselves");
                let deadline = Instant::now() + Duration::from_secs(5);
                let answer = connection.call(&ask(100), deadline).await;
                match says {
                    Says::Nothing => assert_eq!(answer.expect("an answer"), status(100)),
                    Says::Own | Says::Changed => {
                        let error = answer.expect_err("the connection ends");
                        let text = error.to_string();
                        assert!(text.contains("was not sealed by who proved"), "{text}");
                    }
                }
            }
        }
        let seen = script.seen.lock().unwrap();
        assert_eq!(*seen, [100; 2], "nothing of his is done");
    });
}

/// Messages of all sizes, sealed: in one record, in many, and in many frames.
#[test]
fn sealed_messages_come_as_they_were() {
    block_on(async {
        let (_server, addr) = guarded().await;
        for (role, byte) in [(node(7), NODES), (Identity::client(CLUSTER), CLIENTS)] {
            let connection = open(&addr, &role.with_secret(Some(secret(byte)))).await;
            let connection = connection.expect("it proves its secret");
            let calls = [10, 16_344, 16_345, 70_000, 3 << 20, 4, 1 << 20].map(|len| {
                let connection = connection.clone();
                tokio::spawn(async move {
                    let deadline = Instant::now() + Duration::from_secs(20);
                    let answer = connection.call(&ask_cache(len), deadline).await;
                    assert_eq!(answer.expect("an answer"), status(len as usize));
                    let change = Bytes::from(vec![9; len as usize / 2]);
                    let propose = Message::Propose(Propose {
                        expected: None,
                        change,
                    });
                    let answer = connection.call(&propose, deadline).await;
                    assert_eq!(answer.expect("an answer"), status(len as usize / 2));
                })
            });
            for call in calls {
                call.await.expect("no panic");
            }
        }
    });
}
