//! The connecting side: many requests at once, answers in any order, each with its deadline.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use staves_model::Time;
use staves_wire::directory::Sign;
use staves_wire::frame::{
    Decoder, Envelope, Incoming, MESSAGE_BYTES_MAX, Raw, VERSION_MAX, VERSION_MIN,
};
use staves_wire::hello::{Challenge, Ping, Prove, Proven, Welcome};
use staves_wire::{ErrorCode, ErrorPacket, Kind, Message, Opcode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{Notify, Semaphore, oneshot};

use crate::error::NetError;
use crate::identity::Identity;
use crate::options::Options;
use crate::outbox::{NotPut, Outbox};
use crate::queue::GroupQueue;
use crate::seal::{Opener, Sealer, Seals};
use crate::secret::{Prover, Secret};

/// The least size of a read.
pub(crate) const READ_BYTES: usize = 16 << 10;
/// Most sealed bytes that are read at a time: they are here twice while they are opened.
pub(crate) const SEALED_READ_BYTES: usize = 64 << 10;

/// The time that an answer is given for each MiB that comes before it, or of it: 8 MiB/s.
const MIB: Duration = Duration::from_millis(125);
/// A large answer of which nothing has come for so long is not on its way any more.
const STALLED: Duration = Duration::from_secs(1);

type Answer = Result<Message, NetError>;

/// A connection to a node. Clones are the same connection; it ends when the last is dropped.
#[derive(Clone)]
pub struct Connection {
    shared: Arc<ConnectionShared>,
    _open: Arc<OpenGuard>,
}

struct ConnectionShared {
    addr: String,
    welcome: Welcome,
    outbox: Outbox,
    in_flight: Semaphore,
    waiting: Mutex<PendingRequests>,
    /// Somebody closed it here.
    closing: Notify,
    /// It is over.
    ended: Notify,
    /// While it is not: where to write.
    socket: Mutex<Option<Arc<OwnedWriteHalf>>>,
    heard: Heard,
}

/// The bytes received from the other side.
struct Heard {
    began: Instant,
    /// Bytes, and when the last of them came: milliseconds since it began.
    all: AtomicU64,
    all_ms: AtomicU64,
    /// Those of answers that are long on their way, and when the last of them came: milliseconds since it began.
    large: AtomicU64,
    large_ms: AtomicU64,
    /// One more than had come when a word was last asked for.
    asked_at: AtomicU64,
}

impl Heard {
    fn new() -> Heard {
        Heard {
            began: Instant::now(),
            all: AtomicU64::new(0),
            all_ms: AtomicU64::new(0),
            large: AtomicU64::new(0),
            large_ms: AtomicU64::new(0),
            asked_at: AtomicU64::new(0),
        }
    }

    /// So many bytes have come.
    fn add(&self, bytes: usize, of_large: bool) {
        self.all.fetch_add(bytes as u64, Ordering::Relaxed);
        let ms = self.began.elapsed().as_millis() as u64;
        self.all_ms.store(ms, Ordering::Relaxed);
        if of_large {
            self.large_ms.store(ms, Ordering::Relaxed);
            self.large.fetch_add(bytes as u64, Ordering::Release);
        }
    }

    /// The time since anything came, or since it began.
    fn silent_for(&self) -> Duration {
        let last = Duration::from_millis(self.all_ms.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(last)
    }

    /// True if a ping is due: not if anything was received since `mark`, nor twice in one silence.
    fn is_to_ask(&self, (all, _): (u64, u64)) -> bool {
        let at = all + 1;
        self.mark().0 == all && self.asked_at.swap(at, Ordering::Relaxed) != at
    }

    /// The bytes received by now: all, and those of large answers.
    fn mark(&self) -> (u64, u64) {
        (
            self.all.load(Ordering::Relaxed),
            self.large.load(Ordering::Acquire),
        )
    }

    /// Until when an answer is waited for that was to be here by the deadline: it may be that which is
    /// coming, or wait behind it.
    fn grown(&self, deadline: Instant, (_, large): (u64, u64)) -> Instant {
        let came = self.large.load(Ordering::Acquire) - large;
        if came == 0 {
            return deadline;
        }
        let mibs = came.min(MESSAGE_BYTES_MAX as u64) as f64 / f64::from(1 << 20);
        let last = Duration::from_millis(self.large_ms.load(Ordering::Relaxed));
        (deadline + MIB.mul_f64(mibs)).min(self.began + last + STALLED)
    }
}

#[derive(Default)]
struct PendingRequests {
    requests: BTreeMap<u64, (Opcode, oneshot::Sender<Answer>)>,
    over: Option<NetError>,
}

/// Ends the connection's task with the last clone.
struct OpenGuard(Arc<ConnectionShared>);

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.closing.notify_one();
    }
}

/// Takes a request off the list when nobody waits for it any more.
struct Forget<'a>(&'a ConnectionShared, u64);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.0.waiting.lock().requests.remove(&self.1);
    }
}

impl Connection {
    /// Connects, greets, and is ready for requests.
    pub async fn open(
        addr: &str,
        identity: &Identity,
        options: &Options,
    ) -> Result<Connection, NetError> {
        Connection::open_with(addr, identity, options, None).await
    }

    pub(crate) async fn open_with(
        addr: &str,
        identity: &Identity,
        options: &Options,
        group: Option<Arc<GroupQueue>>,
    ) -> Result<Connection, NetError> {
        let started = Instant::now();
        let greeted = tokio::time::timeout(options.connect_timeout, async {
            let mut socket = connect(addr, started).await?;
            let greeted = greet(addr, &mut socket, identity, options).await?;
            Ok((socket, greeted))
        });
        let (socket, (incoming, sealer, welcome)) = greeted.await.unwrap_or_else(|_| {
            Err(NetError::Connect {
                addr: addr.to_owned(),
                kind: io::ErrorKind::TimedOut,
                reason: format!(
                    "no answer within {} ms",
                    options.connect_timeout.as_millis()
                ),
                waited_ms: millis(options.connect_timeout),
            })
        })?;
        let in_flight = options.in_flight_max.min(welcome.in_flight_max).max(1);
        let shared = Arc::new(ConnectionShared {
            addr: addr.to_owned(),
            welcome,
            outbox: Outbox::new(options.queued_bytes_max, group, sealer),
            in_flight: Semaphore::new(in_flight as usize),
            waiting: Mutex::default(),
            closing: Notify::new(),
            ended: Notify::new(),
            socket: Mutex::default(),
            heard: Heard::new(),
        });
        tokio::spawn(run(shared.clone(), socket, incoming, options.clone()));
        Ok(Connection {
            _open: Arc::new(OpenGuard(shared.clone())),
            shared,
        })
    }

    /// The address that it was opened to.
    pub fn addr(&self) -> &str {
        &self.shared.addr
    }

    /// The other side's identity.
    pub fn welcome(&self) -> &Welcome {
        &self.shared.welcome
    }

    /// The reason of its end, if it has ended.
    pub fn over(&self) -> Option<NetError> {
        self.shared.waiting.lock().over.clone()
    }

    /// Waits until it has ended.
    pub async fn ended(&self) -> NetError {
        loop {
            let ended = self.shared.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if let Some(error) = self.over() {
                return error;
            }
            ended.await;
        }
    }

    /// Writes what was said, as far as the kernel takes it at once.
    pub(crate) fn write_now(&self) {
        let socket = self.shared.socket.lock().clone();
        if let Some(socket) = socket {
            self.shared.outbox.write_now(&socket);
        }
    }

    /// Ends it: whoever waits for an answer is told so.
    pub fn close(&self) {
        self.shared.closing.notify_one();
    }

    /// The time since anything came from the other side, or since the connection began. It is asked often enough that
    /// one that lives is never silent for long.
    pub fn silent_for(&self) -> Duration {
        self.shared.heard.silent_for()
    }

    /// Asks, and waits for the answer until the deadline, which travels with the request. How large the
    /// answer to a cache request is nobody knows who asks: that is waited for longer while it comes.
    pub async fn call(&self, request: &Message, deadline: Instant) -> Result<Message, NetError> {
        let shared = &*self.shared;
        let started = Instant::now();
        let opcode = request.opcode();
        debug_assert_eq!(opcode.kind(), Kind::Request, "only requests are answered");
        let sent = OnceLock::new();
        let work = async {
            let _permit = shared.in_flight.acquire().await;
            shared.outbox.wait_for_room().await;
            let left = deadline.saturating_duration_since(Instant::now());
            let (id, answer) = shared.begin(opcode)?;
            let _forget = Forget(shared, id);
            // A millisecond at least: 0 would mean that nobody waits.
            let envelope = Envelope {
                request: id,
                answer: false,
                deadline_ms: millis(left).max(1),
            };
            let _ = sent.set(shared.heard.mark());
            shared.send(envelope, request)?;
            answer.await.unwrap_or_else(|_| Err(shared.closed_error()))
        };
        tokio::pin!(work);
        let half = deadline.saturating_duration_since(started) / 2;
        if let Ok(answer) = tokio::time::timeout_at((started + half).into(), &mut work).await {
            return answer;
        }
        if sent.get().is_some_and(|then| shared.heard.is_to_ask(*then)) {
            // So that it is known by the deadline whether the other side lives.
            shared.ping();
        }
        let mut until = deadline;
        loop {
            if let Ok(answer) = tokio::time::timeout_at(until.into(), &mut work).await {
                return answer;
            }
            let then = sent.get().filter(|_| opcode == Opcode::Service);
            until = then.map_or(deadline, |then| shared.heard.grown(deadline, *then));
            if until <= Instant::now() {
                return Err(NetError::Deadline {
                    addr: shared.addr.clone(),
                    what: opcode.word(),
                    waited_ms: started.elapsed().as_millis() as u64,
                    sent: sent.get().is_some(),
                    heard: sent
                        .get()
                        .is_some_and(|then| shared.heard.mark().0 > then.0),
                });
            }
        }
    }
}

impl ConnectionShared {
    fn begin(&self, opcode: Opcode) -> Result<(u64, oneshot::Receiver<Answer>), NetError> {
        let (tell, answer) = oneshot::channel();
        let id = self.outbox.next_request();
        let mut waiting = self.waiting.lock();
        if let Some(error) = &waiting.over {
            return Err(error.clone());
        }
        waiting.requests.insert(id, (opcode, tell));
        Ok((id, answer))
    }

    fn send(&self, envelope: Envelope, message: &Message) -> Result<(), NetError> {
        let bytes_max = usize::try_from(self.welcome.message_bytes_max).unwrap_or(usize::MAX);
        self.outbox
            .put(envelope, message, bytes_max)
            .map_err(|not_put| match not_put {
                NotPut::Closed => self.closed_error(),
                NotPut::TooLarge(bytes) => NetError::TooLarge {
                    addr: self.addr.clone(),
                    what: message.opcode().word(),
                    bytes,
                    bytes_max,
                },
            })
    }

    fn closed_error(&self) -> NetError {
        let over = self.waiting.lock().over.clone();
        over.unwrap_or_else(|| closed(&self.addr, "it was closed on this side", None))
    }

    /// An answer goes to whoever waits for it; if nobody does any more, that is well too.
    fn answer(&self, incoming: Incoming) -> Result<(), NetError> {
        let raw = match incoming {
            Incoming::Message(raw) => raw,
            Incoming::GivenUp(_) => return Ok(()),
            Incoming::TooLarge { header, bytes_max } => {
                if let Some((opcode, tell)) = self.waiting.lock().requests.remove(&header.request) {
                    // Whoever answers has done what was asked.
                    let what = opcode.word();
                    let text = format!(
                        "it was done, but the answer to {what} has more than {bytes_max} bytes"
                    );
                    let _ = tell.send(Err(NetError::Refused {
                        addr: self.addr.clone(),
                        what,
                        packet: ErrorPacket::new(ErrorCode::AnswerGone, text),
                    }));
                }
                return Ok(());
            }
        };
        if !raw.is_answer() {
            let reason = "it sent a request, and only the connecting side asks";
            return Err(closed(&self.addr, reason, None));
        }
        let asked = self.waiting.lock().requests.remove(&raw.header.request);
        let Some((asked, tell)) = asked else {
            return self.unasked(&raw);
        };
        let _ = tell.send(self.look_into(raw, asked));
        Ok(())
    }

    /// Nobody asked: too late an answer, or an error about the connection as a whole (request 0).
    fn unasked(&self, raw: &Raw) -> Result<(), NetError> {
        if raw.header.request != 0 || raw.header.opcode != Opcode::Error as u8 {
            return Ok(());
        }
        match Message::decode(Opcode::Error, 0, raw.body.clone()) {
            Ok(Message::Error(packet)) => Err(closed(&self.addr, packet.to_string(), None)),
            _ => Err(closed(
                &self.addr,
                "it sent an error that does not decode",
                None,
            )),
        }
    }

    fn look_into(&self, raw: Raw, asked: Opcode) -> Answer {
        let (addr, what) = (self.addr.clone(), asked.word());
        let Some(opcode) = Opcode::from_number(raw.header.opcode) else {
            return Err(NetError::Unexpected {
                addr,
                what,
                got: "an opcode of a newer version",
            });
        };
        if opcode.kind() != Kind::Answer {
            return Err(NetError::Unexpected {
                addr,
                what,
                got: opcode.word(),
            });
        }
        match Message::decode(opcode, raw.header.epoch, raw.body) {
            Ok(Message::Error(packet)) => Err(NetError::Refused { addr, what, packet }),
            Ok(message) => Ok(message),
            Err(error) => {
                tracing::warn!(%addr, what, %error, "an answer does not decode");
                Err(NetError::Unexpected {
                    addr,
                    what,
                    got: "bytes that do not decode",
                })
            }
        }
    }

    /// Asks for a sign of life; nobody waits for the answer, its arrival is enough.
    fn ping(&self) {
        let envelope = Envelope {
            request: self.outbox.next_request(),
            ..Envelope::default()
        };
        let _ = self.send(envelope, &Message::Ping(Ping { clock: Time::ZERO }));
    }

    fn end(&self, error: NetError) {
        self.outbox.close();
        // The last holder closes it, whoever still holds the connection.
        *self.socket.lock() = None;
        let mut waiting = self.waiting.lock();
        waiting.over = Some(error.clone());
        let requests = std::mem::take(&mut waiting.requests);
        drop(waiting);
        for (_, (_, tell)) in requests {
            let _ = tell.send(Err(error.clone()));
        }
        self.in_flight.close();
        self.ended.notify_waiters();
    }
}

async fn run(
    shared: Arc<ConnectionShared>,
    socket: TcpStream,
    incoming: IncomingBytes,
    options: Options,
) {
    let (mut reading, writing) = socket.into_split();
    let writing = Arc::new(writing);
    *shared.socket.lock() = Some(writing.clone());
    let error = tokio::select! {
        // The reader first: answers that it hands out may bring new requests, which then leave in
        // the same turn.
        biased;
        () = shared.closing.notified() => closed(&shared.addr, "it was closed on this side", None),
        error = read(&shared, &mut reading, incoming, &options) => error,
        error = shared.outbox.run(&writing, options.stall_max) => {
            closed(&shared.addr, format!("writing failed: {error}"), Some(Sign::Failed))
        }
    };
    tracing::debug!(addr = %shared.addr, %error, "connection ended");
    shared.end(error);
}

/// Most bytes that a connection's task reads before others have a turn. As long as there is something to
/// read the runtime would let it go on for a hundred times that; with as many threads as such
/// connections, no heartbeat is heard meanwhile.
const TURN_BYTES: usize = 256 << 10;

/// The bytes that a task has read since others had their turn.
#[derive(Default)]
pub(crate) struct Turn {
    bytes: usize,
}

impl Turn {
    /// So many bytes were read: lets others go first if that was enough for one turn.
    pub(crate) async fn took(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes >= TURN_BYTES {
            self.bytes = 0;
            tokio::task::yield_now().await;
        }
    }
}

/// Bytes that have come, and are no message yet.
struct IncomingBytes {
    decoder: Decoder,
    buffer: BytesMut,
    /// Opens what comes, once a secret is proven.
    opener: Option<Opener>,
}

impl IncomingBytes {
    fn next(&mut self) -> Result<Option<Incoming>, String> {
        if let Some(opener) = &mut self.opener {
            let opened = opener.open(&mut self.buffer);
            opened.map_err(|error| error.to_string())?;
        }
        let next = self.decoder.next(&mut self.buffer);
        next.map_err(|error| error.to_string())
    }

    /// The buffer that more is read to.
    fn space(&mut self) -> &mut BytesMut {
        if let Some(opener) = &mut self.opener {
            opener.sealed.reserve(SEALED_READ_BYTES);
            return &mut opener.sealed;
        }
        let wanted = self.decoder.wanted().saturating_sub(self.buffer.len());
        self.buffer.reserve(wanted.max(READ_BYTES));
        &mut self.buffer
    }
}

async fn read(
    shared: &ConnectionShared,
    socket: &mut (impl AsyncRead + Unpin),
    mut incoming: IncomingBytes,
    options: &Options,
) -> NetError {
    let addr = &shared.addr;
    let ping_after = options.ping_after.min(options.silence_max / 2);
    let mut silent = Duration::ZERO;
    let mut turn = Turn::default();
    loop {
        loop {
            match incoming.next() {
                Ok(None) => break,
                Ok(Some(message)) => {
                    if let Err(error) = shared.answer(message) {
                        return error;
                    }
                }
                Err(error) => return closed(addr, error, None),
            }
        }
        match tokio::time::timeout(ping_after, socket.read_buf(incoming.space())).await {
            Ok(Ok(0)) => return closed(addr, "the other side closed it", Some(Sign::Failed)),
            Ok(Ok(bytes)) => {
                silent = Duration::ZERO;
                shared.heard.add(bytes, incoming.decoder.within_large());
                turn.took(bytes).await;
            }
            Ok(Err(error)) => {
                return closed(addr, format!("reading failed: {error}"), Some(Sign::Failed));
            }
            Err(_) => {
                silent += ping_after;
                if silent >= options.silence_max {
                    let text = format!("silent for {} ms", options.silence_max.as_millis());
                    return closed(addr, text, Some(Sign::Silent));
                }
                shared.ping();
            }
        }
    }
}

async fn connect(addr: &str, started: Instant) -> Result<TcpStream, NetError> {
    let failed = |error: io::Error| NetError::Connect {
        addr: addr.to_owned(),
        kind: error.kind(),
        reason: error.to_string(),
        waited_ms: millis(started.elapsed()),
    };
    let socket = TcpStream::connect(addr).await.map_err(failed)?;
    socket.set_nodelay(true).map_err(failed)?;
    Ok(socket)
}

async fn greet(
    addr: &str,
    socket: &mut TcpStream,
    identity: &Identity,
    options: &Options,
) -> Result<(IncomingBytes, Option<Sealer>, Welcome), NetError> {
    let mut greeting = Greeting {
        addr,
        socket,
        request: rand::random::<u64>().max(1),
        decoder: Decoder::new(options.limits),
        buffer: BytesMut::with_capacity(READ_BYTES),
    };
    let hello = Message::Hello(identity.hello());
    let answer = greeting.ask(&hello).await?;
    let (welcome, seals) = match (identity.secrets(), answer) {
        (None, Message::Welcome(welcome)) => (welcome, None),
        (Some(secrets), Message::Challenge(Challenge { nonce })) => {
            let proven = greeting.prove(&secrets.nodes, &hello, &nonce).await?;
            (proven.0, Some(proven.1))
        }
        (Some(_), Message::Welcome(_)) => {
            return Err(greeting.unproven("it asks for no secret, so it has none"));
        }
        (_, other) => {
            return Err(greeting.failed(format!("it answered with {}", other.opcode().word())));
        }
    };
    check_welcome(&welcome, identity).map_err(|reason| greeting.failed(reason))?;
    let (sealer, opener) = seals.map(|s| (s.sealer, s.opener)).unzip();
    let incoming = IncomingBytes {
        decoder: greeting.decoder,
        buffer: greeting.buffer,
        opener,
    };
    Ok((incoming, sealer, welcome))
}

/// A connection on which both sides still say who they are.
struct Greeting<'a> {
    addr: &'a str,
    socket: &'a mut TcpStream,
    request: u64,
    decoder: Decoder,
    buffer: BytesMut,
}

impl Greeting<'_> {
    fn failed(&self, reason: String) -> NetError {
        NetError::Hello {
            addr: self.addr.to_owned(),
            reason,
            code: None,
        }
    }

    /// It is there, but may be anybody.
    fn unproven(&self, what: &str) -> NetError {
        NetError::Hello {
            addr: self.addr.to_owned(),
            reason: format!(
                "{what}: it is not of this cluster, or was started without --secret-file"
            ),
            code: Some(ErrorCode::Denied),
        }
    }

    /// Proves the secret, and has it proven.
    async fn prove(
        &mut self,
        secret: &Secret,
        hello: &Message,
        nonce: &[u8],
    ) -> Result<(Welcome, Seals), NetError> {
        let mut said = BytesMut::new();
        hello.put_body(&mut said);
        let proof = secret.proof(Prover::Connects, &[&said, nonce]);
        let proof = Bytes::copy_from_slice(proof.as_bytes());
        let Message::Proven(Proven { proof, welcome }) =
            self.ask(&Message::Prove(Prove { proof })).await?
        else {
            return Err(self.unproven("it did not prove the secret"));
        };
        if !secret.is_proof(&proof, Prover::Accepts, &[&said, nonce, &welcome]) {
            return Err(self.unproven("its proof of the secret is wrong"));
        }
        match Message::decode(Opcode::Welcome, 0, welcome) {
            Ok(Message::Welcome(welcome)) => {
                let came = std::mem::take(&mut self.buffer);
                Ok((welcome, secret.seals(Prover::Connects, &said, nonce, came)))
            }
            other => Err(self.failed(format!("its welcome does not decode: {other:?}"))),
        }
    }

    /// Sends a message and waits for the answer.
    async fn ask(&mut self, message: &Message) -> Result<Message, NetError> {
        let mut bytes = BytesMut::new();
        let envelope = Envelope {
            request: self.request,
            ..Envelope::default()
        };
        self.request = self.request.wrapping_add(1).max(1);
        staves_wire::frame::encode(envelope, message, &mut bytes);
        let written = self.socket.write_all(&bytes).await;
        written.map_err(|error| self.failed(error.to_string()))?;
        let raw = loop {
            let next = self.decoder.next(&mut self.buffer);
            match next.map_err(|error| self.failed(error.to_string()))? {
                Some(Incoming::Message(raw)) => break raw,
                Some(Incoming::TooLarge { .. } | Incoming::GivenUp(_)) => {
                    return Err(self.failed("its answer is too large".into()));
                }
                None => {}
            }
            match self.socket.read_buf(&mut self.buffer).await {
                Ok(0) => return Err(self.failed("it closed the connection".into())),
                Ok(_) => {}
                Err(error) => return Err(self.failed(error.to_string())),
            }
        };
        let opcode = Opcode::from_number(raw.header.opcode);
        let opcode =
            opcode.ok_or_else(|| self.failed("its answer is of a newer version".into()))?;
        match Message::decode(opcode, raw.header.epoch, raw.body) {
            Ok(Message::Error(ErrorPacket { code, text })) => Err(NetError::Hello {
                addr: self.addr.to_owned(),
                reason: text,
                code: Some(code),
            }),
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.failed(format!("its answer does not decode: {error}"))),
        }
    }
}

fn check_welcome(welcome: &Welcome, identity: &Identity) -> Result<(), String> {
    if !(VERSION_MIN..=VERSION_MAX).contains(&welcome.version) {
        return Err(format!(
            "it chose version {}, which was not offered",
            welcome.version
        ));
    }
    let cluster = identity.who().cluster;
    if cluster.0 != 0 && welcome.cluster.0 != 0 && cluster != welcome.cluster {
        return Err(format!(
            "it belongs to cluster {:016x}, not {:016x}",
            welcome.cluster.0, cluster.0
        ));
    }
    Ok(())
}

fn closed(addr: &str, reason: impl Into<String>, sign: Option<Sign>) -> NetError {
    NetError::Closed {
        addr: addr.to_owned(),
        reason: reason.into(),
        sign,
    }
}

pub(crate) fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
