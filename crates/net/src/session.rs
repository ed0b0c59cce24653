//! One accepted connection, from its hello to its end.

mod greeting;
mod input;
mod turns;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use staves_wire::frame::{self, Decoder, Envelope, Incoming, Raw};
use staves_wire::hello::{Pong, Role};
use staves_wire::service::ServiceRequest;
use staves_wire::{ErrorCode, Kind, Message, Opcode};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::greeting::greet;
use self::input::Input;
use crate::connection::{READ_BYTES, Turn};
use crate::in_flight::OWN_BYTES;
use crate::in_flight::{InFlightPart, KeptBuffers};
use crate::newcomers::Newcomer;
use crate::outbox::Outbox;
use crate::reply::{Owed, Reply};
use crate::seal::Sealer;
use crate::server::{Handler, PeerInfo, ServerShared};

const DISPLACED: &str = "it had said no hello for longer than others, whose place another took";

/// Serves a connection until it ends; says why.
pub(crate) async fn serve<H: Handler>(
    mut socket: TcpStream,
    addr: SocketAddr,
    shared: Arc<ServerShared<H>>,
    stopping: watch::Receiver<bool>,
    newcomer: Newcomer,
) -> Result<(), String> {
    let options = &shared.options;
    socket
        .set_nodelay(true)
        .map_err(|error| error.to_string())?;
    let mut input = Input {
        decoder: Decoder::new(options.limits),
        buffer: BytesMut::with_capacity(READ_BYTES),
        read_at: Instant::now(),
        turn: Turn::default(),
        in_flight: options.in_flight.clone(),
        part: InFlightPart::new(options.in_flight.clone()),
        kept: KeptBuffers::new(options.in_flight.clone()),
        opener: None,
    };
    let hello = tokio::time::timeout(
        options.connect_timeout,
        greet(&mut socket, addr, &mut input, &shared),
    );
    let hello = tokio::select! {
        hello = hello => hello.map_err(|_| "no hello came in time".to_owned())?,
        () = newcomer.displaced() => return Err(DISPLACED.to_owned()),
    };
    let (mut hello, _place, seals) = hello?;
    // They were looked at, and hold on to the memory that they came in.
    hello.credentials = Bytes::new();
    if !newcomer.has_spoken() {
        return Err(DISPLACED.to_owned());
    }
    let peer = PeerInfo {
        addr,
        hello,
        connection: shared.next_connection(),
    };
    let sealer = seals.map(|seals| {
        input.opener = Some(seals.opener);
        seals.sealer
    });
    let Some(runtime) = shared.handler.runtime(&peer.hello) else {
        return converse(socket, (input, sealer), peer, &shared, stopping).await;
    };
    // A socket belongs to the runtime that waits for it.
    let socket = socket.into_std().map_err(|error| error.to_string())?;
    let mut there = JoinSet::new();
    let session = async move {
        let socket = TcpStream::from_std(socket).map_err(|error| error.to_string())?;
        converse(socket, (input, sealer), peer, &shared, stopping).await
    };
    there.spawn_on(session, &runtime);
    let ended = there.join_next().await.and_then(Result::ok);
    ended.unwrap_or_else(|| Err("its runtime ended".to_owned()))
}

/// Everything after the hello.
async fn converse<H: Handler>(
    socket: TcpStream,
    (mut input, sealer): (Input, Option<Sealer>),
    peer: PeerInfo,
    shared: &ServerShared<H>,
    stopping: watch::Receiver<bool>,
) -> Result<(), String> {
    let options = &shared.options;
    let (mut reading, writing) = socket.into_split();
    // Nodes have bounds of their own, and what they ask for clients counts where the client is.
    let is_client = peer.hello.role != Role::Node;
    let session = Session {
        shared,
        peer,
        outbox: Arc::new(Outbox::among(
            options.in_flight.queued.clone(),
            options.queued_bytes_max,
            None,
            sealer,
        )),
        owed: Arc::new(Owed::new(is_client.then(|| options.in_flight.clone()))),
        unsaid: AtomicBool::new(false),
    };
    let result = tokio::select! {
        // The reader first: what it answers at once leaves in the same turn, in one write.
        biased;
        result = session.work(&mut reading, &mut input, stopping) => result,
        error = session.outbox.run(&writing, options.stall_max) => {
            Err(format!("writing failed: {error}"))
        }
    };
    if let Err(reason) = &result {
        // A last word, if the other side still listens: why.
        let mut bytes = BytesMut::new();
        let envelope = Envelope {
            request: 0,
            answer: true,
            deadline_ms: 0,
        };
        let message = Message::error(ErrorCode::Malformed, reason.clone());
        frame::encode(envelope, &message, &mut bytes);
        session.outbox.write_last(&writing, bytes);
    }
    session.outbox.close();
    result
}

struct Session<'a, H> {
    shared: &'a ServerShared<H>,
    peer: PeerInfo,
    outbox: Arc<Outbox>,
    owed: Arc<Owed>,
    /// Messages came that may have led to others.
    unsaid: AtomicBool,
}

impl<H: Handler> Session<'_, H> {
    async fn work(
        &self,
        socket: &mut OwnedReadHalf,
        input: &mut Input,
        mut stopping: watch::Receiver<bool>,
    ) -> Result<(), String> {
        tokio::select! {
            biased;
            result = self.read(socket, input) => result,
            () = told_to_stop(&mut stopping) => {
                // The writer is polled beside this: it ends when all that is owed has been said.
                self.owed.wait_none().await;
                while !self.outbox.is_empty() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Ok(())
            }
        }
    }

    async fn read(&self, socket: &mut OwnedReadHalf, input: &mut Input) -> Result<(), String> {
        let is_client = self.peer.hello.role != Role::Node;
        loop {
            // Push back: while too much is under way, or too many answers wait to be taken, nothing
            // more is read, and TCP tells the other side.
            while self.is_held_back(is_client) {
                // What it waits for may hang on what is still to be sent.
                self.end_turn().await;
                self.pushes_back(is_client).await;
            }
            let incoming = match input.decoded()? {
                Some(incoming) => incoming,
                None => match self.next(socket, input).await? {
                    Some(incoming) => incoming,
                    None => return Ok(()),
                },
            };
            match incoming {
                Incoming::Message(raw) => self.admit(raw, input, is_client).await?,
                Incoming::GivenUp(header) => {
                    self.refuse(header.request, ErrorCode::Busy, input.part.of().refusal());
                }
                Incoming::TooLarge { header, bytes_max } => {
                    let text = format!("a message of more than {bytes_max} bytes is refused");
                    self.refuse(header.request, ErrorCode::TooLarge, text);
                }
            }
        }
    }

    /// Takes a message, a client's once there is memory for what it becomes: many small operations are far more than their bytes. It
    /// is refused after a while if there is none.
    async fn admit(&self, raw: Raw, input: &mut Input, is_client: bool) -> Result<(), String> {
        let own = raw.body.len();
        let bytes = match raw.header.opcode == Opcode::Service as u8 {
            true if is_client => ServiceRequest::memory_bytes(&raw.body),
            _ => own,
        };
        if bytes - own > OWN_BYTES {
            input.holds(own);
            if !input.has_room(bytes) {
                // What it waits for may hang on what is still to be sent.
                self.end_turn().await;
                if let Err(text) = input.wait_for_room(bytes).await {
                    input.part.waits_no_more();
                    self.refuse(raw.header.request, ErrorCode::Busy, text);
                    return Ok(());
                }
            }
        }
        self.take(raw, input.read_at, bytes)
    }

    /// A message goes where it belongs, with so many bytes of memory. An error ends the connection.
    fn take(&self, raw: Raw, came: Instant, bytes: usize) -> Result<(), String> {
        let header = raw.header;
        if raw.is_answer() {
            return Err("an answer came, and nothing was asked".to_owned());
        }
        let Some(opcode) = Opcode::from_number(header.opcode) else {
            let text = format!("opcode {} is not known to this version", header.opcode);
            self.refuse(header.request, ErrorCode::Unsupported, text);
            return Ok(());
        };
        if opcode.kind() == Kind::Answer || opcode == Opcode::Hello {
            return Err(format!("{} came out of place", opcode.word()));
        }
        if self.peer.hello.role != Role::Node && is_for_nodes(opcode) {
            let text = format!("{} is for nodes of the cluster only", opcode.word());
            self.refuse(header.request, ErrorCode::Denied, text);
            return Ok(());
        }
        if self.peer.hello.is_of_directory() && !matches!(opcode, Opcode::Raft | Opcode::Ping) {
            let text = format!("{} is none of the directory's messages", opcode.word());
            self.refuse(header.request, ErrorCode::Denied, text);
            return Ok(());
        }
        match Message::decode(opcode, header.epoch, raw.body) {
            Ok(Message::Group(batch)) => {
                self.unsaid.store(true, Ordering::Relaxed);
                self.shared.handler.group(&self.peer, batch.0);
            }
            Ok(Message::Ping(ping)) => {
                let who = self.shared.identity.who();
                let pong = Pong {
                    clock: ping.clock,
                    node: who.node,
                    incarnation: who.incarnation,
                };
                self.answer(header.request, &Message::Pong(pong));
            }
            Ok(request) => {
                let wait = u64::from(header.deadline_ms);
                // From when it came: it may have waited here for others to be answered.
                let deadline = (wait > 0).then(|| came + Duration::from_millis(wait));
                if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                    let text = format!(
                        "{} waited {} ms for its turn, longer than its asker waits; nothing was done",
                        opcode.word(),
                        came.elapsed().as_millis()
                    );
                    self.refuse(header.request, ErrorCode::Busy, text);
                    return Ok(());
                }
                let (outbox, owed) = (self.outbox.clone(), self.owed.clone());
                let reply =
                    Reply::new(outbox, owed, header.request, opcode.word(), bytes, deadline);
                self.shared.handler.request(&self.peer, request, reply);
            }
            Err(error) => {
                let text = format!("the {} message does not decode: {error}", opcode.word());
                self.refuse(header.request, ErrorCode::Malformed, text);
            }
        }
        Ok(())
    }

    fn refuse(&self, request: u64, code: ErrorCode, text: String) {
        tracing::debug!(addr = %self.peer.addr, %code, %text, "a message was refused");
        self.answer(request, &Message::error(code, text));
    }

    fn answer(&self, request: u64, message: &Message) {
        let envelope = Envelope {
            request,
            answer: true,
            deadline_ms: 0,
        };
        // It can only be closed, and then nobody waits.
        let _ = self.outbox.put(envelope, message, usize::MAX);
    }
}

async fn told_to_stop(stopping: &mut watch::Receiver<bool>) {
    // An error means that the server is gone, which is also a reason.
    let _ = stopping.wait_for(|stop| *stop).await;
}

/// True for messages that applications and people's tools must not send.
fn is_for_nodes(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::Group | Opcode::Raft)
}
