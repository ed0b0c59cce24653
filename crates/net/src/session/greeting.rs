//! The greeting of an accepted connection: the hello, the proof of the secret where there is one, and a place.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use staves_wire::frame::{self, Envelope, Incoming, VERSION_MAX, VERSION_MIN};
use staves_wire::hello::{Challenge, Hello, Prove, Proven, Role, SECRET_BYTES, Welcome};
use staves_wire::{ErrorCode, ErrorPacket, Message, Opcode};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use super::input::Input;
use crate::seal::Seals;
use crate::secret::{Prover, Secret, Secrets, nonce};
use crate::server::{Handler, ServerShared};

/// The answer to a client of Redis's protocol, in its words.
const REDIS_REFUSAL: &[u8] = b"-ERR this port speaks the native protocol of Staves; Redis's protocol is spoken at the port that the node \
    serves it at (--resp, 6379 if not given)\r\n";

/// True for the first bytes of a command of Redis's protocol, or of the commonest of those that people type.
fn speaks_redis(first: &[u8]) -> bool {
    let typed = |word: &[u8]| {
        let typed = first.get(..word.len());
        typed.is_some_and(|typed| typed.eq_ignore_ascii_case(word))
    };
    let is_array = matches!(first, [b'*', digit, ..] if digit.is_ascii_digit());
    is_array || typed(b"ping\r\n") || typed(b"info\r\n")
}

/// The hello, and our answer to it.
pub(super) async fn greet<H: Handler>(
    socket: &mut TcpStream,
    addr: SocketAddr,
    input: &mut Input,
    shared: &ServerShared<H>,
) -> Result<Greeted, String> {
    let incoming = match input
        .next(socket, shared.options.connect_timeout, true)
        .await
    {
        Ok(Some(incoming)) => incoming,
        Ok(None) => return Err("it left before its hello".to_owned()),
        Err(reason) if speaks_redis(&input.buffer) => {
            shared.refused.protocol.add(|unsaid| {
                tracing::warn!(%addr, unsaid, "a client of Redis's protocol was refused at the native port: it is to use the port of --resp");
            });
            // If it fails, the client has left.
            let _ = socket.write_all(REDIS_REFUSAL).await;
            return Err(reason);
        }
        Err(reason) => {
            if input.buffer.is_empty() {
                shared.refused.silent.add(|unsaid| {
                    tracing::info!(%addr, unsaid, "a connection that did not say hello was closed");
                });
            }
            say(
                socket,
                0,
                &Message::error(ErrorCode::Malformed, reason.clone()),
            )
            .await;
            return Err(reason);
        }
    };
    match admit(socket, input, shared, incoming).await {
        Ok((greeted, (request, last))) => {
            say(socket, request, &last).await;
            Ok(greeted)
        }
        Err((request, packet)) => {
            let reason = packet.to_string();
            say(socket, request, &Message::Error(packet)).await;
            Err(reason)
        }
    }
}

/// A refusal, and the message that it answers.
type RefusedHello = (u64, ErrorPacket);
/// A connection that is let in: its hello, its place, and the seals of what follows where there is a secret.
pub(super) type Greeted = (Hello, OwnedSemaphorePermit, Option<Seals>);
/// The same, and the last word of the greeting.
type Admitted = (Greeted, (u64, Message));

/// Everything that a connection must pass. Who cannot prove the secret learns nothing of the cluster.
async fn admit<H: Handler>(
    socket: &mut TcpStream,
    input: &mut Input,
    shared: &ServerShared<H>,
    incoming: Incoming,
) -> Result<Admitted, RefusedHello> {
    let request = request_of(&incoming);
    let (hello, said) = read_hello(incoming).map_err(|packet| (request, packet))?;
    let secrets = shared.identity.secrets();
    let (request, proven) = match secrets {
        None => (request, None),
        Some(secrets) => {
            let proven = challenge(socket, input, shared, secrets, request, &hello, said).await;
            let (request, proven) = proven.inspect_err(|(_, packet)| {
                let role = hello.role;
                shared.refused.secret.add(|unsaid| {
                    tracing::warn!(?role, unsaid, reason = %packet.text, "a connection without the secret was refused");
                });
            })?;
            (request, Some(proven))
        }
    };
    let refused = |packet| (request, packet);
    let welcome = welcome(&hello, shared).map_err(refused)?;
    let place = shared.place(hello.role, socket).map_err(refused)?;
    let (last, seals) = match proven {
        None => (Message::Welcome(welcome), None),
        Some(proven) => {
            let came = std::mem::take(&mut input.buffer);
            let seals = proven.seals(came);
            (Message::Proven(proven.answer(&welcome)), Some(seals))
        }
    };
    Ok(((hello, place, seals), (request, last)))
}

fn request_of(incoming: &Incoming) -> u64 {
    match incoming {
        Incoming::Message(raw) => raw.header.request,
        Incoming::TooLarge { header, .. } | Incoming::GivenUp(header) => header.request,
    }
}

/// A connecting side that knows a secret, and what the answering proof is over.
struct ProvenHello<'a> {
    secret: &'a Secret,
    hello: Bytes,
    nonce: Bytes,
}

impl ProvenHello<'_> {
    fn answer(&self, welcome: &Welcome) -> Proven {
        let mut bytes = BytesMut::new();
        Message::Welcome(welcome.clone()).put_body(&mut bytes);
        let parts: [&[u8]; 3] = [&self.hello, &self.nonce, &bytes];
        let proof = self.secret.proof(Prover::Accepts, &parts);
        Proven {
            proof: Bytes::copy_from_slice(proof.as_bytes()),
            welcome: bytes.freeze(),
        }
    }

    fn seals(&self, came: BytesMut) -> Seals {
        let side = Prover::Accepts;
        self.secret.seals(side, &self.hello, &self.nonce, came)
    }
}

/// Has the secret proven. `said` is the hello as it came.
async fn challenge<'a, H: Handler>(
    socket: &mut TcpStream,
    input: &mut Input,
    shared: &ServerShared<H>,
    secrets: &'a Secrets,
    request: u64,
    hello: &Hello,
    said: Bytes,
) -> Result<(u64, ProvenHello<'a>), RefusedHello> {
    let denied = |text: &str| ErrorPacket::new(ErrorCode::Denied, text);
    if hello.credentials.len() != SECRET_BYTES {
        let text = "this cluster has a secret, and the hello offers no proof of it: give --secret-file (STAVES_SECRET_FILE)";
        return Err((request, denied(text)));
    }
    let nonce = nonce();
    let asked = Challenge {
        nonce: nonce.clone(),
    };
    say(socket, request, &Message::Challenge(asked)).await;
    let next = input
        .next(socket, shared.options.connect_timeout, true)
        .await;
    let Ok(Some(next)) = next else {
        return Err((request, denied("the proof of the secret did not come")));
    };
    let request = request_of(&next);
    let proof = match next {
        Incoming::Message(raw) if raw.header.opcode == Opcode::Prove as u8 && !raw.is_answer() => {
            match Message::decode(Opcode::Prove, raw.header.epoch, raw.body) {
                Ok(Message::Prove(Prove { proof })) => proof,
                _ => Bytes::new(),
            }
        }
        _ => Bytes::new(),
    };
    let parts: [&[u8]; 2] = [&said, &nonce];
    match secrets.proven(hello.role, &proof, &parts) {
        Some(secret) => {
            let hello = said;
            Ok((
                request,
                ProvenHello {
                    secret,
                    hello,
                    nonce,
                },
            ))
        }
        None => {
            let text = match hello.role {
                Role::Node => {
                    "that is not the secret of this cluster's nodes: nodes need the same --secret-file"
                }
                Role::Client | Role::Admin => {
                    "that is not a secret of this cluster: give its --secret-file (STAVES_SECRET_FILE)"
                }
            };
            Err((request, denied(text)))
        }
    }
}

async fn say(socket: &mut TcpStream, request: u64, message: &Message) {
    let mut bytes = BytesMut::new();
    frame::encode(
        Envelope {
            request,
            answer: true,
            deadline_ms: 0,
        },
        message,
        &mut bytes,
    );
    // If it fails, the next read says so.
    let _ = socket.write_all(&bytes).await;
}

/// The hello, and its body as it came.
fn read_hello(incoming: Incoming) -> Result<(Hello, Bytes), ErrorPacket> {
    let malformed = |text: &str| ErrorPacket::new(ErrorCode::Malformed, text);
    let Incoming::Message(raw) = incoming else {
        return Err(malformed("the hello is too large"));
    };
    if raw.header.opcode != Opcode::Hello as u8 || raw.is_answer() {
        return Err(malformed(
            "the first message of a connection must be a hello",
        ));
    }
    let said = raw.body.clone();
    let hello = match Message::decode(Opcode::Hello, raw.header.epoch, raw.body) {
        Ok(Message::Hello(hello)) => hello,
        Ok(_) => {
            return Err(malformed(
                "the first message of a connection must be a hello",
            ));
        }
        Err(error) => return Err(malformed(&format!("the hello does not decode: {error}"))),
    };
    if hello.version_min > VERSION_MAX || hello.version_max < VERSION_MIN {
        let text = format!(
            "you speak versions {} to {} of the protocol, this node {VERSION_MIN} to {VERSION_MAX}: update the older one",
            hello.version_min, hello.version_max
        );
        return Err(ErrorPacket::new(ErrorCode::Unsupported, text));
    }
    Ok((hello, said))
}

/// The answer to a hello that may come in.
fn welcome<H: Handler>(hello: &Hello, shared: &ServerShared<H>) -> Result<Welcome, ErrorPacket> {
    let who = shared.identity.who();
    if hello.cluster.0 != 0 && who.cluster.0 != 0 && hello.cluster != who.cluster {
        let text = format!(
            "this node belongs to cluster {:016x}, and you mean {:016x}",
            who.cluster.0, hello.cluster.0
        );
        return Err(ErrorPacket::new(ErrorCode::WrongCluster, text));
    }
    shared.handler.admit(hello)?;
    Ok(Welcome {
        cluster: who.cluster,
        node: who.node,
        incarnation: who.incarnation,
        version: VERSION_MAX.min(hello.version_max),
        features: 0,
        message_bytes_max: shared.options.limits.message_bytes_max as u64,
        in_flight_max: shared.options.in_flight_max,
    })
}
