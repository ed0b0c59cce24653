//! One connection: its requests beside each other.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use staves_nbd::{Incoming, NbdCommand, NbdError, Replies, Request, Transmission};
use staves_net::InFlightPart;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::NbdDoor;
use super::counted::{TimedRequest, limited_bytes};
use super::negotiation::negotiate;
use super::replies::{NbdReply, WRITE_MAX, nbd_error, write};
use crate::door::Phase;
use crate::running::Running;
use crate::tls::{DoorReader, DoorStream};
use crate::volumes::ServedVolume;
use crate::volumes::allocation::{EXTENTS_BYTES, EXTENTS_MAX};
use crate::volumes::attachment::Attachment;
use crate::volumes::attachments::WhenTaken;
use crate::volumes::blocks::{PATIENCE, VolumeBytes};
use crate::volumes::error::{BlockError, VolumeFault};
use crate::volumes::memory::request_memory;
use crate::volumes::places::{VolumeDoorState, keep_alive};

/// The time for a client's whole negotiation.
const NEGOTIATION_MAX: Duration = Duration::from_secs(30);
/// Most requests of a connection under way; further ones are not read.
const REQUESTS_MAX: usize = 128;
/// The pause between two looks whether a client is still there while its requests wait.
const LOOK: Duration = Duration::from_millis(250);
/// Room for input beyond what is awaited, so that several requests come in one read.
const READ_BYTES: usize = 16 << 10;

/// Serves a client until it leaves, or must.
pub(super) async fn serve(
    socket: TcpStream,
    address: SocketAddr,
    door: &Arc<NbdDoor>,
    mut phase: watch::Receiver<Phase>,
) -> io::Result<()> {
    let _ = socket.set_nodelay(true);
    keep_alive(&socket)?;
    let joined = timeout(NEGOTIATION_MAX, phase.wait_for(|p| *p >= Phase::Open)).await;
    let (Ok(Ok(_)), Some(running)) = (joined, door.entry.get()) else {
        return Ok(()); // not in its cluster yet
    };
    let client = SocketAddr::new(address.ip().to_canonical(), address.port());
    let mut input = BytesMut::with_capacity(READ_BYTES);
    let socket = DoorStream::Plain(socket);
    let negotiated = negotiate(socket, &door.tls, &mut input, running, client);
    let negotiated = timeout(NEGOTIATION_MAX, negotiated).await;
    let Some(chosen) = negotiated.map_err(io::Error::from)?? else {
        return Ok(());
    };
    let (transmission, id) = (chosen.transmission, chosen.id);
    let taken = WhenTaken::WaitForSameMachine;
    let attachment = door.attachments.join(id, client.to_string(), taken);
    let volume = running.volumes.open(&running.host.routes().map, id);
    let connection = NbdConnection {
        running: running.clone(),
        state: door.places.state.clone(),
        attachment: attachment.clone(),
        volume,
        replies: transmission.replies(),
        blocks: VolumeBytes::new(running.clone(), id),
    };
    let ended = connection
        .run(chosen.stream, input, transmission, phase)
        .await;
    door.attachments.leave(running, &attachment).await;
    ended
}

/// A connection after its negotiation. Clones serve its requests.
#[derive(Clone)]
struct NbdConnection {
    running: Arc<Running>,
    state: Arc<VolumeDoorState>,
    attachment: Arc<Attachment>,
    volume: Arc<ServedVolume>,
    replies: Replies,
    blocks: VolumeBytes,
}

/// The ends of a wait: the client's, and the node's.
type WaitEnds<'a> = (&'a DoorReader, &'a mut watch::Receiver<Phase>);

/// A write whose payload is awaited: its place, and the memory for it.
type BegunWrite = (OwnedSemaphorePermit, InFlightPart);

/// The end of the stream of requests.
enum End {
    /// The client has no more.
    Goodbye,
    /// The client is gone, the session over, or the node stops.
    Broken,
}

impl NbdConnection {
    async fn run(
        &self,
        stream: DoorStream,
        input: BytesMut,
        transmission: Transmission,
        phase: watch::Receiver<Phase>,
    ) -> io::Result<()> {
        let (reading, writing) = stream.into_split();
        let (replies, to_write) = mpsc::channel(REQUESTS_MAX);
        let mut writer = tokio::spawn(write(writing, to_write, self.running.clone()));
        let mut tasks = JoinSet::new();
        let read = self.read(reading, input, transmission, (&replies, &mut tasks), phase);
        let ended = tokio::select! {
            ended = read => ended,
            // Nobody takes replies any more.
            ended = &mut writer => ended.map_err(io::Error::other).flatten().map(|()| End::Broken),
        };
        // What a client has no answer to it sends again by another connection, and goes on: nothing of this one may take effect after
        // that. One that has said goodbye has all that it asked for before.
        if !matches!(ended, Ok(End::Goodbye)) {
            self.attachment.set_over();
            tasks.abort_all();
        }
        let all = async { while tasks.join_next().await.is_some() {} };
        let _ = timeout(2 * PATIENCE, all).await;
        drop(replies);
        if !writer.is_finished() {
            let _ = timeout(WRITE_MAX, &mut writer).await;
            writer.abort();
        }
        ended.map(drop)
    }

    async fn read(
        &self,
        mut reading: DoorReader,
        mut input: BytesMut,
        mut transmission: Transmission,
        (replies, tasks): (&mpsc::Sender<NbdReply>, &mut JoinSet<()>),
        mut phase: watch::Receiver<Phase>,
    ) -> io::Result<End> {
        let places = Arc::new(Semaphore::new(REQUESTS_MAX));
        let mut map = self.running.directory.map();
        let mut begun: Option<BegunWrite> = None;
        loop {
            while tasks.try_join_next().is_some() {}
            match transmission.next(&mut input).map_err(io::Error::other)? {
                Incoming::More => {}
                Incoming::Header(bytes) => {
                    begun = Some(self.room(bytes, &places, (&reading, &mut phase)).await?);
                    continue;
                }
                incoming => {
                    let place = self.place(limited_bytes(&incoming), &places);
                    let begun = match begun.take() {
                        Some((place, part)) => Some((place, Some(part))),
                        None => {
                            let place = self.unless_over(place, (&reading, &mut phase)).await;
                            place.map(|place| (place, None))
                        }
                    };
                    let Some(begun) = begun else {
                        return Ok(End::Broken);
                    };
                    match self.begin(incoming, begun, replies, tasks).await {
                        true => continue,
                        false => return Ok(End::Goodbye),
                    }
                }
            }
            // The payload of a refused write is dropped as it comes.
            let wanted = transmission
                .pending_payload()
                .map_or(0, |_| transmission.wanted(input.len()));
            input.reserve(wanted.max(READ_BYTES));
            let came = self.more(&mut reading, &mut input, &mut begun);
            tokio::select! {
                came = came => if let Some(end) = came? {
                    return Ok(end);
                },
                () = self.attachment.over() => return Ok(End::Broken),
                changed = map.changed() => {
                    let newest = map.borrow_and_update().clone();
                    self.attachment.follow(&newest, &self.running);
                    if changed.is_err() {
                        return Ok(End::Broken);
                    }
                }
                _ = phase.wait_for(|p| *p >= Phase::Closing) => return Ok(End::Broken),
            }
        }
    }

    /// A place for a request, once the volume's limit lets it go: before it takes memory.
    async fn place(
        &self,
        bytes: Option<u64>,
        places: &Arc<Semaphore>,
    ) -> Option<OwnedSemaphorePermit> {
        if let Some(bytes) = bytes {
            self.volume.throttle.pass(bytes).await;
        }
        places.clone().acquire_owned().await.ok()
    }

    /// A place and memory for a write.
    async fn room(
        &self,
        bytes: u32,
        places: &Arc<Semaphore>,
        until: WaitEnds<'_>,
    ) -> io::Result<BegunWrite> {
        let room = async {
            let place = self.place(Some(u64::from(bytes)), places).await?;
            Some((place, request_memory(&self.running, bytes as usize).await?))
        };
        let text = "a write found no memory in time, or the session is over";
        let room = self.unless_over(room, until).await;
        room.ok_or_else(|| io::Error::other(text))
    }

    /// Reads further bytes, of a payload that has its memory most often.
    async fn more(
        &self,
        reading: &mut DoorReader,
        input: &mut BytesMut,
        begun: &mut Option<BegunWrite>,
    ) -> io::Result<Option<End>> {
        let count = match begun {
            None => reading.read_buf(input).await?,
            Some((_, part)) => {
                let count = tokio::select! {
                    count = reading.read_buf(input) => count?,
                    () = part.stuck() => {
                        let text = "a write that does not come, for whose memory others wait";
                        return Err(io::Error::other(text));
                    }
                };
                part.moved(count);
                count
            }
        };
        Ok((count == 0).then_some(End::Broken))
    }

    /// Begins a request that has a place, and perhaps memory; false if the client has no more.
    async fn begin(
        &self,
        incoming: Incoming,
        (place, part): (OwnedSemaphorePermit, Option<InFlightPart>),
        replies: &mpsc::Sender<NbdReply>,
        tasks: &mut JoinSet<()>,
    ) -> bool {
        let mut reply = NbdReply {
            head: BytesMut::new(),
            payload: Vec::new(),
            part,
            _place: place,
        };
        match incoming {
            Incoming::Request(Request {
                command: NbdCommand::Disconnect,
                ..
            }) => return false,
            Incoming::Request(request) => {
                let (me, replies) = (self.clone(), replies.clone());
                tasks.spawn(async move { me.answer(request, reply, &replies).await });
            }
            Incoming::Refused {
                cookie,
                error,
                text,
            } => {
                self.replies.error(cookie, error, &text, &mut reply.head);
                let _ = replies.send(reply).await;
            }
            Incoming::More | Incoming::Header(_) => {}
        }
        true
    }

    /// Waits for something, unless the client goes, the session is over or the node closes; `None` then.
    async fn unless_over<T>(
        &self,
        wait: impl Future<Output = Option<T>>,
        (reading, phase): WaitEnds<'_>,
    ) -> Option<T> {
        let gone = async {
            loop {
                tokio::time::sleep(LOOK).await;
                if reading.is_closed() {
                    return;
                }
            }
        };
        tokio::select! {
            () = gone => None,
            done = wait => done,
            () = self.attachment.over() => None,
            _ = phase.wait_for(|p| *p >= Phase::Closing) => None,
        }
    }

    async fn answer(
        &self,
        request: Request,
        mut reply: NbdReply,
        replies: &mpsc::Sender<NbdReply>,
    ) {
        let cookie = request.cookie;
        let timed = TimedRequest::begin(&request.command);
        let done = self.execute(request, &mut reply).await;
        timed.end(&self.volume, done.is_ok());
        if let Err(error) = done {
            let text = &error.text;
            tracing::debug!(fault = ?error.fault, text, "an NBD request was not done");
            // Before the client hears of it: what it writes next belongs to another session.
            if error.ends_session {
                self.attachment.set_over();
            }
            // Not done, and the connection ends: its client sends it again by another, and must not take it for failed.
            let number = nbd_error(error.fault);
            if number == NbdError::Eshutdown {
                return;
            }
            reply.payload.clear();
            reply.head.clear();
            self.replies.error(cookie, number, text, &mut reply.head);
        }
        let _ = replies.send(reply).await;
    }

    async fn execute(&self, request: Request, reply: &mut NbdReply) -> Result<(), BlockError> {
        let cookie = request.cookie;
        let (state, running, attachment) = (&self.state, &self.running, &self.attachment);
        let mut written = None;
        match request.command {
            NbdCommand::Read { offset, len, .. } => {
                let part = request_memory(&self.running, len as usize).await;
                reply.part = Some(part.ok_or_else(BlockError::no_memory)?);
                reply.payload = self.blocks.read(offset, len).await?;
                state.count_read(u64::from(len));
                self.replies.read_head(cookie, offset, len, &mut reply.head);
                return Ok(());
            }
            NbdCommand::Write { offset, bytes } => {
                let range = *written.insert((offset, bytes.len() as u64));
                let write = |session| self.blocks.write(session, offset, bytes.clone());
                attachment.change(running, range, write).await?;
                reply.part = None;
                state.count_write(range.1);
            }
            NbdCommand::WriteZeroes {
                no_hole: true,
                fast: true,
                ..
            } => {
                let text = "not faster than a write";
                return Err(BlockError::new(VolumeFault::Unsupported, text));
            }
            NbdCommand::WriteZeroes {
                offset,
                len,
                no_hole,
                ..
            } => {
                let range = *written.insert((offset, u64::from(len)));
                let zero = |session| self.blocks.zero(session, range, no_hole);
                attachment.change(running, range, zero).await?;
                state.count_write(0);
            }
            NbdCommand::Trim { offset, len } => {
                let range = *written.insert((offset, u64::from(len)));
                let trim = |session| self.blocks.trim(session, range.0, range.1);
                attachment.change(running, range, trim).await?;
            }
            NbdCommand::Flush => attachment.flush(&self.blocks).await?,
            NbdCommand::Cache { .. } | NbdCommand::Disconnect => {}
            NbdCommand::BlockStatus { offset, len, one } => {
                let part = request_memory(&self.running, EXTENTS_BYTES).await;
                reply.part = Some(part.ok_or_else(BlockError::no_memory)?);
                let extents_max = if one { 1 } else { EXTENTS_MAX };
                let extents = self.blocks.extents(offset, len, extents_max).await?;
                self.replies.block_status(cookie, &extents, &mut reply.head);
                return Ok(());
            }
        }
        let written = written.filter(|_| request.fua);
        attachment.flush_written(&self.blocks, written).await?;
        self.replies.done(cookie, &mut reply.head);
        Ok(())
    }
}
