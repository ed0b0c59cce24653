//! The invariants of NBD's protocol, whatever a client sends.

use bytes::{BufMut, BytesMut};
use staves_nbd::{
    ANSWERS_BYTES_MAX, Export, Exports, Handshake, HandshakeStep, Incoming, LIST_BYTES_MAX,
    ListedExport, NbdCommand, NbdError, OPTION_BYTES_MAX, OpenError, ProtocolError,
    REQUEST_HEAD_BYTES, TlsPolicy, Transmission,
};

/// Of the exports' reads and writes. The valid streams stay below it.
const BLOCK_MAX: u32 = 4096;
/// Bytes of the largest answer to one option beside a list: an export's name, description and sizes.
const DESCRIBED_BYTES_MAX: usize = 16 << 10;

/// Two exports, and one that nobody may have.
pub struct Shelf;

impl Exports for Shelf {
    fn list(&self) -> Vec<ListedExport> {
        let listed = [("disk", "a disk"), ("rom", "")].into_iter();
        listed
            .map(|(name, description)| ListedExport {
                name: name.to_owned(),
                description: description.to_owned(),
            })
            .collect()
    }

    fn open(&self, name: &str) -> Result<Export, OpenError> {
        if !["disk", "rom"].contains(&name) {
            return Err(match name {
                "locked" => OpenError::Policy("a key is needed".to_owned()),
                "over" => OpenError::Shutdown("the node stops".to_owned()),
                _ => OpenError::Unknown,
            });
        }
        Ok(Export {
            size_bytes: 10_000,
            description: if name == "disk" { "a disk" } else { "" }.to_owned(),
            read_only: name == "rom",
            multi_conn: name == "disk",
            block_preferred: 4096,
            block_max: BLOCK_MAX,
        })
    }
}

/// The outcome of a client's bytes.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Conversation {
    /// The answers to options.
    pub answers: Vec<u8>,
    /// The chosen export, with what was agreed: structured replies and metadata.
    pub chosen: Option<(String, bool, bool)>,
    /// True if TLS began.
    pub secured: bool,
    /// The requests.
    pub incoming: Vec<Incoming>,
    /// True if the client ended the handshake.
    pub aborted: bool,
    /// The reason to close the connection.
    pub error: Option<ProtocolError>,
}

/// Plays a client's bytes in reads of these lengths, as a driver without TLS would.
pub fn converse(bytes: &[u8], read_bytes: impl FnMut() -> usize) -> Conversation {
    converse_by(TlsPolicy::Off, bytes, read_bytes)
}

/// The same with a policy of TLS. All that follows the read in which TLS begins came within it.
pub fn converse_by(
    policy: TlsPolicy,
    bytes: &[u8],
    mut read_bytes: impl FnMut() -> usize,
) -> Conversation {
    let mut driver = Driver {
        policy,
        handshake: Handshake::with_tls(policy),
        transmission: None,
        input: BytesMut::new(),
        seen: Conversation::default(),
    };
    let mut rest = bytes;
    while !rest.is_empty() {
        let (read, left) = rest.split_at(read_bytes().clamp(1, rest.len()));
        rest = left;
        driver.input.put_slice(read);
        match driver.take(read.len()) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                driver.seen.error = Some(error);
                break;
            }
        }
    }
    driver.seen
}

struct Driver {
    policy: TlsPolicy,
    handshake: Handshake,
    transmission: Option<Transmission>,
    input: BytesMut,
    seen: Conversation,
}

impl Driver {
    /// Takes all that can be taken; false at the connection's end.
    fn take(&mut self, read_bytes: usize) -> Result<bool, ProtocolError> {
        if self.transmission.is_none() {
            let mut out = BytesMut::new();
            let step = self.handshake.next(&mut self.input, &Shelf, &mut out);
            let most = ANSWERS_BYTES_MAX + LIST_BYTES_MAX + DESCRIBED_BYTES_MAX;
            assert!(out.len() <= most, "answers are bounded");
            self.seen.answers.extend_from_slice(&out);
            match step? {
                HandshakeStep::More => {
                    let most = OPTION_BYTES_MAX + read_bytes;
                    assert!(self.input.len() <= most, "input is bounded");
                    return Ok(true);
                }
                HandshakeStep::StartTls(within) => {
                    assert!(self.policy != TlsPolicy::Off && !self.seen.secured);
                    assert!(self.input.is_empty(), "nothing came before TLS");
                    self.handshake = within;
                    self.seen.secured = true;
                    return Ok(true);
                }
                HandshakeStep::Ended => {
                    self.seen.aborted = true;
                    return Ok(false);
                }
                HandshakeStep::Began(transmission, name) => {
                    let agreed = (transmission.is_structured(), transmission.has_allocation());
                    self.seen.chosen = Some((name, agreed.0, agreed.1));
                    self.transmission = Some(transmission);
                }
            }
        }
        let Some(transmission) = &mut self.transmission else {
            return Ok(true);
        };
        loop {
            let wanted = transmission.wanted(self.input.len());
            let incoming = transmission.next(&mut self.input)?;
            let more = incoming == Incoming::More;
            assert!(more || wanted == 0, "the hint is never too high");
            if more {
                let most = (BLOCK_MAX as usize).max(REQUEST_HEAD_BYTES) + read_bytes;
                assert!(self.input.len() <= most, "input is bounded");
                return Ok(true);
            }
            check(&incoming, transmission);
            let ended = is_disconnect(&incoming);
            self.seen.incoming.push(incoming);
            if ended {
                return Ok(false);
            }
        }
    }
}

fn is_disconnect(incoming: &Incoming) -> bool {
    match incoming {
        Incoming::Request(request) => request.command == NbdCommand::Disconnect,
        _ => false,
    }
}

/// A request that is let through lies within the export and its limits.
fn check(incoming: &Incoming, transmission: &Transmission) {
    let request = match incoming {
        Incoming::Request(request) => request,
        Incoming::Header(bytes) => {
            assert_eq!(transmission.pending_payload(), Some(*bytes));
            return;
        }
        Incoming::More | Incoming::Refused { .. } => return,
    };
    assert_eq!(transmission.pending_payload(), None);
    let (offset, len, writes) = match &request.command {
        NbdCommand::Flush | NbdCommand::Disconnect => return,
        NbdCommand::Read { offset, len, .. } => {
            assert!(*len <= BLOCK_MAX);
            (*offset, *len, false)
        }
        NbdCommand::Write { offset, bytes } => {
            assert!(bytes.len() <= BLOCK_MAX as usize);
            (*offset, bytes.len() as u32, true)
        }
        NbdCommand::Trim { offset, len } => (*offset, *len, true),
        NbdCommand::WriteZeroes { offset, len, .. } => (*offset, *len, true),
        NbdCommand::Cache { offset, len } => (*offset, *len, false),
        NbdCommand::BlockStatus { offset, len, .. } => {
            assert!(transmission.has_allocation() && transmission.is_structured());
            (*offset, *len, false)
        }
    };
    assert!(len > 0 && offset + u64::from(len) <= transmission.size_bytes());
    assert!(!writes || !transmission.is_read_only());
}

/// The same bytes for a server with TLS, whose client waits for the answer to each option, or for none.
fn with_tls(policy: TlsPolicy, input: &[u8]) {
    let waits = converse_by(policy, input, || 1);
    let pipelined = converse_by(policy, input, || usize::MAX);
    for seen in [&waits, &pipelined] {
        let plain = seen.chosen.is_some() && !seen.secured;
        assert!(
            !plain || policy != TlsPolicy::Required,
            "nothing without TLS"
        );
    }
    assert!(!matches!(
        waits.error,
        Some(ProtocolError::BytesBeforeTls(_))
    ));
    match pipelined.error {
        Some(ProtocolError::BytesBeforeTls(_)) => assert!(pipelined.chosen.is_none()),
        _ => assert_eq!(waits, pipelined, "the same, without bytes before TLS"),
    }
}

/// A client's bytes. Returns the number of requests that may be done. The first byte chooses the length of the reads
/// that the rest is cut into.
pub fn nbd(data: &[u8]) -> usize {
    let Some((read_bytes, input)) = data.split_first() else {
        return 0;
    };
    let whole = converse(input, || usize::MAX);
    let pieces = converse(input, || usize::from(*read_bytes) + 1);
    assert_eq!(whole, pieces, "the same, however it was cut into reads");
    with_tls(TlsPolicy::Offered, input);
    with_tls(TlsPolicy::Required, input);
    let texts = whole.incoming.iter().filter_map(|incoming| match incoming {
        Incoming::Refused { error, text, .. } => Some((error, text)),
        _ => None,
    });
    for (error, text) in texts {
        assert!(!text.is_empty() && *error != NbdError::Eio);
    }
    let done = |incoming: &&Incoming| matches!(incoming, Incoming::Request(_));
    whole.incoming.iter().filter(done).count()
}

/// An option's bytes.
pub fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.put_u32(option);
    bytes.put_u32(data.len() as u32);
    bytes.put_slice(data);
    bytes
}

/// The data of `INFO` and `GO`.
pub fn asked(name: &[u8], infos: &[u16]) -> Vec<u8> {
    let mut data = Vec::new();
    data.put_u32(name.len() as u32);
    data.put_slice(name);
    data.put_u16(infos.len() as u16);
    infos.iter().for_each(|info| data.put_u16(*info));
    data
}

/// The data of the options about metadata contexts.
pub fn contexts(name: &[u8], queries: &[&[u8]]) -> Vec<u8> {
    let mut data = Vec::new();
    data.put_u32(name.len() as u32);
    data.put_slice(name);
    data.put_u32(queries.len() as u32);
    for query in queries {
        data.put_u32(query.len() as u32);
        data.put_slice(query);
    }
    data
}

/// A request's bytes: flags, type, cookie, offset, length, payload.
pub fn request(
    (flags, kind): (u16, u16),
    cookie: u64,
    (offset, len): (u64, u32),
    payload: &[u8],
) -> Vec<u8> {
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.put_u16(flags);
    bytes.put_u16(kind);
    bytes.put_u64(cookie);
    bytes.put_u64(offset);
    bytes.put_u32(len);
    bytes.put_slice(payload);
    bytes
}

/// Handshakes that lead to an export, each with what was agreed.
fn handshakes() -> Vec<Vec<u8>> {
    let flags = [0, 0, 0, 3];
    let all = [
        vec![option(1, b"disk")],
        vec![option(3, b""), option(7, &asked(b"rom", &[]))],
        vec![option(8, b""), option(7, &asked(b"disk", &[0, 1, 2, 3]))],
        vec![
            option(5, b""),
            option(11, b""),
            option(8, b""),
            option(9, &contexts(b"disk", &[b"base:"])),
            option(6, &asked(b"locked", &[])),
            option(10, &contexts(b"disk", &[b"qemu:x", b"base:allocation"])),
            option(7, &asked(b"disk", &[3])),
        ],
    ];
    let all = all.into_iter();
    all.map(|options| [&flags[..], &options.concat()].concat())
        .collect()
}

/// Requests of every type, some of them wrong.
fn requests() -> Vec<u8> {
    let all = [
        request((0, 0), 1, (0, 512), b""),
        request((4, 0), 2, (512, 4096), b""),
        request((1, 1), 3, (100, 5), b"hello"),
        request((0, 1), 4, (9_998, 5), b"hello"),
        request((0, 3), 5, (0, 0), b""),
        request((0, 4), 6, (0, 10_000), b""),
        request((0, 5), 7, (0, 10_000), b""),
        request((0x12, 6), 8, (0, 10_000), b""),
        request((8, 7), 9, (0, 10_000), b""),
        request((0, 99), 10, (0, 1), b""),
        request((0, 0), 11, (0, 0), b""),
        request((0, 2), 12, (0, 0), b""),
    ];
    all.concat()
}

/// Whole conversations of clients.
pub fn seeds() -> Vec<Vec<u8>> {
    let all = handshakes().into_iter();
    let mut all: Vec<Vec<u8>> = all
        .map(|handshake| [&[6], &handshake[..], &requests()].concat())
        .collect();
    let abort = [option(3, b""), option(2, b"bye")].concat();
    all.push([&[200, 0, 0, 0, 1], &abort[..]].concat());
    all
}
