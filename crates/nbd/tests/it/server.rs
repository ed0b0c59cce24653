//! A small server on real sockets, driven by the codec: disks in memory, a thread for each connection.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use staves_nbd::{
    Export, Exports, Handshake, HandshakeStep, Incoming, ListedExport, NbdCommand, NbdError,
    OpenError, ProtocolError, ReadRange, Replies, Request, Transmission,
};

/// Size of each disk.
pub const DISK_BYTES: usize = 8 << 20;
/// Longest read and write.
pub const BLOCK_MAX: u32 = 1 << 20;
/// Holes are looked for in blocks of this size.
const BLOCK_BYTES: u64 = 4096;
/// A client that is silent so long is gone.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// The disks and the traces of clients.
pub struct TestServer {
    port: u16,
    disks: BTreeMap<&'static str, Mutex<Vec<u8>>>,
    counts: Mutex<BTreeMap<&'static str, usize>>,
    errors: Mutex<Vec<ProtocolError>>,
}

impl Exports for TestServer {
    fn list(&self) -> Vec<ListedExport> {
        let names = self.disks.keys();
        names
            .map(|name| ListedExport {
                name: (*name).to_owned(),
                description: format!("the disk {name}"),
            })
            .collect()
    }

    fn open(&self, name: &str) -> Result<Export, OpenError> {
        if name == "locked" {
            return Err(OpenError::Policy("a key is needed".to_owned()));
        }
        if !self.disks.contains_key(name) {
            return Err(OpenError::Unknown);
        }
        Ok(Export {
            size_bytes: DISK_BYTES as u64,
            description: format!("the disk {name}"),
            read_only: name == "rom",
            multi_conn: true,
            block_preferred: BLOCK_BYTES as u32,
            block_max: BLOCK_MAX,
        })
    }
}

impl TestServer {
    /// A server with the disks `one`, `two` and `rom`, until the test process ends.
    pub fn start() -> Arc<TestServer> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let disks = ["one", "two", "rom"].map(|name| (name, Mutex::new(vec![0; DISK_BYTES])));
        let server = Arc::new(TestServer {
            port: listener.local_addr().expect("an address").port(),
            disks: disks.into(),
            counts: Mutex::default(),
            errors: Mutex::default(),
        });
        let serving = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, server) = (stream.expect("a connection"), serving.clone());
                std::thread::spawn(move || server.serve(stream));
            }
        });
        server
    }

    /// The address of an export.
    pub fn uri(&self, export: &str) -> String {
        format!("nbd://127.0.0.1:{}/{export}", self.port)
    }

    /// Fills a disk.
    pub fn fill(&self, disk: &str, bytes: &[u8]) {
        self.disks[disk].lock().expect("a disk")[..bytes.len()].copy_from_slice(bytes);
    }

    /// The bytes of a disk.
    pub fn content(&self, disk: &str) -> Vec<u8> {
        self.disks[disk].lock().expect("a disk").clone()
    }

    /// The number of requests with this mark.
    pub fn count(&self, mark: &str) -> usize {
        let counts = self.counts.lock().expect("counts");
        counts.get(mark).copied().unwrap_or(0)
    }

    /// The connections that ended with an error, and why.
    pub fn errors(&self) -> Vec<ProtocolError> {
        self.errors.lock().expect("errors").clone()
    }

    fn serve(&self, stream: TcpStream) {
        stream.set_nodelay(true).expect("a socket");
        stream
            .set_read_timeout(Some(SILENCE_MAX))
            .expect("a socket");
        let mut connection = Connection {
            server: self,
            stream,
            input: BytesMut::new(),
            out: BytesMut::new(),
            name: String::new(),
        };
        if let Err(Closed::Wrong(error)) = connection.run() {
            self.errors.lock().expect("errors").push(error);
        }
    }

    fn mark(&self, mark: &'static str) {
        *self.counts.lock().expect("counts").entry(mark).or_default() += 1;
    }
}

/// The end of a connection.
enum Closed {
    Gone,
    Wrong(ProtocolError),
}

impl From<std::io::Error> for Closed {
    fn from(_: std::io::Error) -> Closed {
        Closed::Gone
    }
}

impl From<ProtocolError> for Closed {
    fn from(error: ProtocolError) -> Closed {
        Closed::Wrong(error)
    }
}

struct Connection<'a> {
    server: &'a TestServer,
    stream: TcpStream,
    input: BytesMut,
    out: BytesMut,
    name: String,
}

impl Connection<'_> {
    fn run(&mut self) -> Result<(), Closed> {
        let Some(mut transmission) = self.shake_hands()? else {
            return Ok(());
        };
        let replies = transmission.replies();
        loop {
            match transmission.next(&mut self.input)? {
                Incoming::More => self.read(transmission.wanted(self.input.len()))?,
                Incoming::Header(bytes) => {
                    assert_eq!(transmission.pending_payload(), Some(bytes));
                    assert!(bytes <= BLOCK_MAX, "it fits the budget");
                }
                Incoming::Request(request) if request.command == NbdCommand::Disconnect => {
                    return Ok(());
                }
                Incoming::Request(request) => {
                    self.answer(replies, request);
                    self.send()?;
                }
                Incoming::Refused {
                    cookie,
                    error,
                    text,
                } => {
                    self.server.mark("refused");
                    replies.error(cookie, error, &text, &mut self.out);
                    self.send()?;
                }
            }
        }
    }

    fn shake_hands(&mut self) -> Result<Option<Transmission>, Closed> {
        let mut handshake = Handshake::new();
        handshake.greeting(&mut self.out);
        loop {
            let step = handshake.next(&mut self.input, self.server, &mut self.out);
            self.send()?;
            match step? {
                HandshakeStep::More => self.read(1)?,
                HandshakeStep::Ended | HandshakeStep::StartTls(_) => return Ok(None),
                HandshakeStep::Began(transmission, name) => {
                    self.name = name;
                    return Ok(Some(transmission));
                }
            }
        }
    }

    fn read(&mut self, wanted: usize) -> Result<(), Closed> {
        let mut chunk = vec![0; wanted.max(16 << 10)];
        let read = self.stream.read(&mut chunk)?;
        if read == 0 {
            return Err(Closed::Gone);
        }
        self.input.extend_from_slice(&chunk[..read]);
        Ok(())
    }

    fn send(&mut self) -> Result<(), Closed> {
        self.stream.write_all(&self.out)?;
        self.out.advance(self.out.len());
        Ok(())
    }

    fn answer(&mut self, replies: Replies, request: Request) {
        let (server, cookie) = (self.server, request.cookie);
        let mut disk = server.disks[&self.name[..]].lock().expect("a disk");
        let at = |offset: u64, len: u32| offset as usize..offset as usize + len as usize;
        if request.fua {
            server.mark("fua");
        }
        match request.command {
            NbdCommand::Read {
                offset,
                len,
                dont_fragment,
            } => {
                server.mark(if dont_fragment { "whole read" } else { "read" });
                let ranges: Vec<ReadRange> = extents(&disk, offset, len);
                let out = &mut self.out;
                replies.read_ranges(
                    cookie,
                    offset,
                    &ranges,
                    dont_fragment,
                    out,
                    |out, offset, range| {
                        out.extend_from_slice(&disk[at(offset, range.len)]);
                    },
                );
                return;
            }
            NbdCommand::BlockStatus { offset, len, one } => {
                server.mark(if one { "one extent" } else { "extents" });
                let ranges = extents(&disk, offset, len).into_iter();
                let ranges = ranges.map(|range| (range.len, range.hole));
                let extents: Vec<(u32, bool)> = ranges.take(if one { 1 } else { 1000 }).collect();
                replies.block_status(cookie, &extents, &mut self.out);
                return;
            }
            NbdCommand::Write { offset, bytes } => {
                server.mark("write");
                disk[at(offset, bytes.len() as u32)].copy_from_slice(&bytes);
            }
            NbdCommand::WriteZeroes {
                offset, len, fast, ..
            } => {
                server.mark(if fast { "fast zeroes" } else { "zeroes" });
                if fast && self.name == "two" {
                    let text = "zeroes are as slow as writes here";
                    return replies.error(cookie, NbdError::Enotsup, text, &mut self.out);
                }
                disk[at(offset, len)].fill(0);
            }
            NbdCommand::Trim { offset, len } => {
                server.mark("trim");
                disk[at(offset, len)].fill(0);
            }
            NbdCommand::Flush => server.mark("flush"),
            NbdCommand::Cache { .. } => server.mark("cache"),
            NbdCommand::Disconnect => {}
        }
        replies.done(cookie, &mut self.out);
    }
}

/// The extents of a range: blocks of zeroes are holes.
fn extents(disk: &[u8], offset: u64, len: u32) -> Vec<ReadRange> {
    let (mut at, end) = (offset, offset + u64::from(len));
    let mut all: Vec<ReadRange> = Vec::new();
    while at < end {
        let next = (at + 1).next_multiple_of(BLOCK_BYTES).min(end);
        let hole = disk[at as usize..next as usize]
            .iter()
            .all(|byte| *byte == 0);
        let len = (next - at) as u32;
        match all.last_mut() {
            Some(last) if last.hole == hole => last.len += len,
            _ => all.push(ReadRange { len, hole }),
        }
        at = next;
    }
    all
}

/// Bytes that are neither zero nor like their neighbours, with two holes.
pub fn pattern() -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..DISK_BYTES as u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8 | 1)
        .collect();
    bytes[1 << 20..3 << 20].fill(0);
    bytes[DISK_BYTES - 10_000..].fill(0);
    bytes
}

/// The output of a program that succeeds.
pub fn output(program: &str, args: &[&str]) -> String {
    let (succeeded, text) = outcome(program, args);
    assert!(succeeded, "{program} {args:?}: {text}");
    text
}

/// Returns whether a program succeeds, and all that it prints.
pub fn outcome(program: &str, args: &[&str]) -> (bool, String) {
    let ran = Command::new(program).args(args).output();
    let ran = ran.expect("the program runs");
    let printed = [ran.stdout, ran.stderr].concat();
    let text = String::from_utf8_lossy(&printed).into_owned();
    (ran.status.success(), text)
}
