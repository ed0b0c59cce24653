//! One connection of the RESP door.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Buf, BytesMut};
use staves_cache::{AnswerRef, Refused};
use staves_model::Time;
use staves_wire::ErrorCode;
use staves_wire::cache::{Answer, Op};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch;

use super::detour::{Detour, Wanted};
use super::mailbox::{Letter, Mailbox};
use super::places::{Part, Places};
use crate::host::{Cell, Naming, Routes, Submitted, Waiter};
use crate::node::Running;
use crate::resp::{After, Command, Join, Limits, Name, Ops, Output, Parser, Protocol, Session};

/// Most commands of one connection that wait. Beyond, nothing more is read.
const PLACES_MAX: usize = 1024;
/// Most bytes of answers that wait to be written, of one connection. Beyond, nothing more is read.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// Room for one read.
const READ_BYTES: usize = 16 << 10;
/// A buffer that has grown beyond this is given back when nothing lies in it.
const INPUT_KEPT_MAX: usize = 64 << 10;

/// One connection: what has been read and not taken apart, and the rest.
pub(super) struct Connection {
    input: BytesMut,
    parser: Parser,
    desk: Desk,
}

/// What commands are done at.
struct Desk {
    running: Arc<Running>,
    session: Session,
    output: Output,
    places: Places,
    mailbox: Arc<Mailbox>,
    detour: Detour,
    routes: Arc<Routes>,
    version: u64,
    /// Cells that want a flush after this batch.
    touched: Vec<Arc<Cell>>,
    /// When this batch was read, and until when it may take.
    now: Time,
    deadline: Time,
    commands: u64,
    /// The connection is to be closed once everything is answered.
    closing: bool,
}

impl Connection {
    pub(super) fn new(running: Arc<Running>, id: u64, addr: String, local: String) -> Connection {
        let limits = Limits {
            // So that a value which is too large is refused by its name, not by the protocol's.
            bulk_bytes_max: (running.value_bytes_max + (1 << 20)).min(512 << 20),
            ..Limits::default()
        };
        let host = &running.host;
        let session = Session::new(id, addr, local, host.clock.uptime());
        running
            .door
            .clients
            .lock()
            .insert(id, session.client().clone());
        let (version, routes) = (host.version(), host.routes());
        Connection {
            input: BytesMut::new(),
            parser: Parser::new(limits),
            desk: Desk {
                session,
                output: Output::new(),
                places: Places::default(),
                mailbox: Arc::default(),
                detour: Detour::default(),
                routes,
                version,
                touched: Vec::new(),
                now: Time::ZERO,
                deadline: Time::ZERO,
                commands: 0,
                closing: false,
                running,
            },
        }
    }

    /// Serves it until it ends.
    pub(super) async fn run(
        mut self,
        mut socket: TcpStream,
        mut stopping: watch::Receiver<bool>,
    ) -> io::Result<()> {
        let (mut reading, writing) = socket.split();
        loop {
            self.work();
            self.desk.write(&writing)?;
            let desk = &mut self.desk;
            let idle = desk.places.len() == 0 && desk.output.is_empty();
            if desk.closing && idle {
                return Ok(());
            }
            // A whole command may lie here that was not begun for want of room.
            if !desk.closing && desk.has_room() && self.parser_may_go_on() {
                continue;
            }
            let may_read = !self.desk.closing && self.desk.has_room();
            tokio::select! {
                biased;
                () = self.desk.mailbox.notified(), if self.desk.places.len() > 0 => {}
                read = read(&mut reading, &mut self.input, &self.parser), if may_read => {
                    let count = read?;
                    if count == 0 {
                        return Ok(());
                    }
                    let door = &self.desk.running.door;
                    door.read_bytes_total.fetch_add(count as u64, Ordering::Relaxed);
                    self.stalled = false;
                }
                ready = writing.writable(), if !self.desk.output.is_empty() => ready?,
                _ = stopping.wait_for(|stop| *stop), if !self.desk.closing => {
                    self.desk.closing = true;
                }
            }
        }
    }
}
