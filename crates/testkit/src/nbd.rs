//! A small blocking client of NBD: one request at a time, simple replies; and one that asks what is allocated.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

/// Error numbers of replies.
pub const EPERM: u32 = 1;
/// No space.
pub const ENOSPC: u32 = 28;
/// The server wants the client to go.
pub const ESHUTDOWN: u32 = 108;

/// Of the transmission flags: writes are refused.
const READ_ONLY: u16 = 1 << 1;
/// The same: a flush of one connection covers what the others were answered.
const CAN_MULTI_CONN: u16 = 1 << 8;
const GO: u32 = 7;
const STRUCTURED_REPLY: u32 = 8;
const SET_META_CONTEXT: u32 = 10;
const META_CONTEXT: u32 = 4;
/// The kind of a chunk with extents.
const BLOCK_STATUS: u64 = 5;
const REQ_ONE: u16 = 1 << 3;
const ACK: u32 = 1;
const INFO: u32 = 3;

/// The time that a reply may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection to an export.
pub struct NbdClient {
    socket: TcpStream,
    /// The export's size in bytes.
    pub size_bytes: u64,
    flags: u16,
    cookie: u64,
}

/// A request that was not done.
#[derive(Debug)]
pub enum NbdFailure {
    /// The server's error number.
    Refused(u32),
    /// The connection ended.
    Ended(io::Error),
}

impl NbdFailure {
    /// The server's number, if it gave one.
    pub fn number(&self) -> Option<u32> {
        match self {
            NbdFailure::Refused(number) => Some(*number),
            NbdFailure::Ended(_) => None,
        }
    }
}

impl From<io::Error> for NbdFailure {
    fn from(error: io::Error) -> NbdFailure {
        NbdFailure::Ended(error)
    }
}

impl NbdClient {
    /// Connects and chooses an export; the text of the server's error if it may not.
    pub fn connect(address: SocketAddr, export: &str) -> Result<NbdClient, String> {
        NbdClient::connect_from(Ipv4Addr::LOCALHOST, address, export)
    }

    /// The same from an address of this machine: another client, for the server.
    pub fn connect_from(
        from: Ipv4Addr,
        address: SocketAddr,
        export: &str,
    ) -> Result<NbdClient, String> {
        NbdClient::connect_within(from, address, export, PATIENCE)
    }

    /// The same; neither the connection nor any reply may take longer than that.
    pub fn connect_within(
        from: Ipv4Addr,
        address: SocketAddr,
        export: &str,
        patience: Duration,
    ) -> Result<NbdClient, String> {
        let connected = NbdClient::try_connect((from, patience), address, (export, false));
        connected.map_err(|error| error.to_string())
    }

    fn try_connect(
        (from, patience): (Ipv4Addr, Duration),
        address: SocketAddr,
        (export, with_map): (&str, bool),
    ) -> io::Result<NbdClient> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((from, 0)).into())?;
        socket.connect_timeout(&address.into(), patience)?;
        let mut socket = TcpStream::from(socket);
        socket.set_read_timeout(Some(patience))?;
        socket.set_write_timeout(Some(patience))?;
        socket.set_nodelay(true)?;
        let mut greeting = [0; 18];
        socket.read_exact(&mut greeting)?;
        socket.write_all(&3u32.to_be_bytes())?; // fixed newstyle, no zeroes
        let mut client = NbdClient {
            socket,
            size_bytes: 0,
            flags: 0,
            cookie: 0,
        };
        let name = string(export);
        if with_map {
            client.option(STRUCTURED_REPLY, &[])?;
            client.option_reply()?;
            let query = string("base:allocation");
            client.option(
                SET_META_CONTEXT,
                &[&name[..], &[0, 0, 0, 1], &query].concat(),
            )?;
            if client.option_reply()?.0 == META_CONTEXT {
                client.option_reply()?;
            }
        }
        client.option(GO, &[&name[..], &[0, 0]].concat())?;
        loop {
            let (kind, data) = client.option_reply()?;
            match kind {
                ACK => return Ok(client),
                INFO if data.starts_with(&[0, 0]) && data.len() == 12 => {
                    client.size_bytes = number(&data[2..10]);
                    client.flags = number(&data[10..]) as u16;
                }
                INFO => {}
                error => {
                    let text = String::from_utf8_lossy(&data);
                    return Err(io::Error::other(format!("error {error:#x}: {text}")));
                }
            }
        }
    }

    fn option(&mut self, option: u32, data: &[u8]) -> io::Result<()> {
        let mut out = b"IHAVEOPT".to_vec();
        out.extend_from_slice(&option.to_be_bytes());
        out.extend_from_slice(&(data.len() as u32).to_be_bytes());
        out.extend_from_slice(data);
        self.socket.write_all(&out)
    }

    fn option_reply(&mut self) -> io::Result<(u32, Vec<u8>)> {
        let mut head = [0; 20];
        self.socket.read_exact(&mut head)?;
        let mut data = vec![0; number(&head[16..]) as usize];
        self.socket.read_exact(&mut data)?;
        Ok((number(&head[12..16]) as u32, data))
    }

    /// Sends a write, and does not wait for its answer.
    pub fn send_write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let head = self.head((0, 1), (offset, bytes.len() as u32));
        self.socket.write_all(&head)?;
        self.socket.write_all(bytes)
    }

    fn head(&mut self, (flags, command): (u16, u16), (offset, len): (u64, u32)) -> Vec<u8> {
        self.cookie += 1;
        let mut out = 0x2560_9513u32.to_be_bytes().to_vec();
        out.extend_from_slice(&flags.to_be_bytes());
        out.extend_from_slice(&command.to_be_bytes());
        out.extend_from_slice(&self.cookie.to_be_bytes());
        out.extend_from_slice(&offset.to_be_bytes());
        out.extend_from_slice(&len.to_be_bytes());
        out
    }

    /// True if a client may have several connections to the export.
    pub fn is_multi_conn(&self) -> bool {
        self.flags & CAN_MULTI_CONN != 0
    }

    /// True if writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.flags & READ_ONLY != 0
    }

    fn request(
        &mut self,
        (flags, command): (u16, u16),
        (offset, len): (u64, u32),
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<(), NbdFailure> {
        let mut out = self.head((flags, command), (offset, len));
        out.extend_from_slice(payload);
        self.socket.write_all(&out)?;
        let mut head = [0; 16];
        self.socket.read_exact(&mut head)?;
        if head[..4] != 0x6744_6698u32.to_be_bytes() || number(&head[8..]) != self.cookie {
            return Err(io::Error::other("no simple reply to this request").into());
        }
        match number(&head[4..8]) as u32 {
            0 => Ok(self.socket.read_exact(into)?),
            error => Err(NbdFailure::Refused(error)),
        }
    }

    /// Reads.
    pub fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, NbdFailure> {
        let mut bytes = vec![0; len];
        self.request((0, 0), (offset, len as u32), &[], &mut bytes)?;
        Ok(bytes)
    }

    /// Writes.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), NbdFailure> {
        self.request((0, 1), (offset, bytes.len() as u32), bytes, &mut [])
    }

    /// Flushes.
    pub fn flush(&mut self) -> Result<(), NbdFailure> {
        self.request((0, 3), (0, 0), &[], &mut [])
    }

    /// Lets bytes be forgotten.
    pub fn trim(&mut self, offset: u64, len: u32) -> Result<(), NbdFailure> {
        self.request((0, 4), (offset, len), &[], &mut [])
    }

    /// Writes zeroes.
    pub fn zero(&mut self, offset: u64, len: u32) -> Result<(), NbdFailure> {
        self.request((0, 6), (offset, len), &[], &mut [])
    }

    /// True once the server has closed the connection.
    pub fn has_ended(&mut self) -> bool {
        matches!(
            self.read(0, 1),
            Err(NbdFailure::Ended(_) | NbdFailure::Refused(ESHUTDOWN))
        )
    }
}

/// A connection to an export that is asked what is allocated, and nothing else.
pub struct NbdMap(NbdClient);

impl NbdMap {
    /// Connects and chooses an export; the text of the server's error if it may not.
    pub fn connect(address: SocketAddr, export: &str) -> Result<NbdMap, String> {
        let from = (Ipv4Addr::LOCALHOST, PATIENCE);
        let client = NbdClient::try_connect(from, address, (export, true));
        client.map(NbdMap).map_err(|error| error.to_string())
    }

    /// The extents of a range, or the first of them alone: lengths and states.
    pub fn extents(
        &mut self,
        offset: u64,
        len: u32,
        one: bool,
    ) -> Result<Vec<(u32, u32)>, NbdFailure> {
        let NbdMap(client) = self;
        let flags = if one { REQ_ONE } else { 0 };
        let request = client.head((flags, 7), (offset, len));
        client.socket.write_all(&request)?;
        let mut head = [0; 20];
        client.socket.read_exact(&mut head)?;
        assert_eq!(
            head[..4],
            0x668e_33efu32.to_be_bytes(),
            "a structured reply"
        );
        assert_eq!(number(&head[8..16]), client.cookie);
        let mut data = vec![0; number(&head[16..]) as usize];
        client.socket.read_exact(&mut data)?;
        if number(&head[6..8]) != BLOCK_STATUS {
            return Err(NbdFailure::Refused(number(&data[..4]) as u32));
        }
        let extents = data[4..].chunks_exact(8);
        let extent = |e: &[u8]| (number(&e[..4]) as u32, number(&e[4..]) as u32);
        Ok(extents.map(extent).collect())
    }
}

/// A text behind its length.
fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}
