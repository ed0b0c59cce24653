//! The choice of an export at a node's NBD door, on a socket that the kernel then takes over.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::net::sockopt;
use staves_node::config::Endpoint;

/// Longest time for a door to take a connection, before the next one is tried.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Longest time for all of the negotiation: a door answers once its node is in its cluster.
const NEGOTIATION_MAX: Duration = Duration::from_secs(10);
/// A peer that says nothing for so long is asked whether it is there, and is gone when it has not answered for twice as long.
const SILENCE: Duration = Duration::from_secs(5);
/// Most answers to one option.
const ANSWERS_MAX: usize = 16;
/// Longest answer to an option.
const ANSWER_BYTES_MAX: usize = 4096;

const GREETING: &[u8; 16] = b"NBDMAGICIHAVEOPT";
const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
const ANSWER_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Fixed newstyle, and no zeroes behind the greeting.
const CLIENT_FLAGS: u32 = 0b11;
const GO: u32 = 7;
const ACK: u32 = 1;
const INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;
/// Of an answer: it is an error, with a text.
const IS_ERROR: u32 = 1 << 31;
/// Of an export's flags: nobody may write.
const READ_ONLY: u16 = 1 << 1;

/// An export that was chosen.
pub(super) struct Negotiated {
    /// The connection, on which requests may follow.
    pub(super) socket: TcpStream,
    /// The export's length in bytes.
    pub(super) size_bytes: u64,
    /// The server's flags of it.
    pub(super) flags: u16,
}

impl Negotiated {
    pub(super) fn is_read_only(&self) -> bool {
        self.flags & READ_ONLY != 0
    }

    /// Has the kernel let nobody write.
    pub(super) fn set_read_only(&mut self) {
        self.flags |= READ_ONLY;
    }
}

/// Chooses an export at a door.
///
/// # Errors
/// The door takes no connection, does not answer in time, or refuses.
pub(super) fn negotiate(door: &Endpoint, export: &str) -> anyhow::Result<Negotiated> {
    let mut negotiation = Negotiation {
        socket: connect(door)?,
        until: Instant::now() + NEGOTIATION_MAX,
    };
    let (size_bytes, flags) = negotiation.choose(export)?;
    let socket = negotiation.socket;
    // The kernel waits on it for as long as it likes; a peer that is gone without a word ends it.
    socket.set_read_timeout(None)?;
    socket.set_write_timeout(None)?;
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, SILENCE)?;
    sockopt::set_tcp_keepintvl(&socket, SILENCE)?;
    sockopt::set_tcp_keepcnt(&socket, 2)?;
    sockopt::set_tcp_user_timeout(&socket, 3 * SILENCE.as_millis() as u32)?;
    Ok(Negotiated {
        socket,
        size_bytes,
        flags,
    })
}

fn connect(door: &Endpoint) -> anyhow::Result<TcpStream> {
    let addresses = (door.host.as_str(), door.port).to_socket_addrs()?;
    let mut last = None;
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT_MAX) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = Some(error),
        }
    }
    Err(last.context("the host has no address")?.into())
}

struct Negotiation {
    socket: TcpStream,
    until: Instant,
}

impl Negotiation {
    fn choose(&mut self, export: &str) -> anyhow::Result<(u64, u16)> {
        let greeting: [u8; 18] = self.take().context("no greeting came")?;
        ensure!(greeting.starts_with(GREETING), "that is no NBD server");
        let name = export.as_bytes();
        ensure!(name.len() <= ANSWER_BYTES_MAX, "the name is too long");
        let mut out = CLIENT_FLAGS.to_be_bytes().to_vec();
        out.extend(OPTION_MAGIC);
        out.extend(GO.to_be_bytes());
        out.extend((name.len() as u32 + 6).to_be_bytes());
        out.extend((name.len() as u32).to_be_bytes());
        out.extend(name);
        out.extend([0, 0]); // no further information
        self.socket.set_write_timeout(Some(self.left()?))?;
        self.socket.write_all(&out)?;
        let mut chosen = None;
        for _ in 0..ANSWERS_MAX {
            let head: [u8; 20] = self.take().context("no answer came")?;
            let [kind, len] = [12, 16].map(|at| u32_at(&head, at));
            let magic = u64::from(u32_at(&head, 0)) << 32 | u64::from(u32_at(&head, 4));
            ensure!(magic == ANSWER_MAGIC, "an answer that is none of NBD's");
            ensure!(len as usize <= ANSWER_BYTES_MAX, "too long an answer");
            let mut data = vec![0; len as usize];
            self.fill(&mut data)?;
            match kind {
                ACK => return chosen.context("the server does not say how large it is"),
                INFO => chosen = export_of(&data).or(chosen),
                kind if kind & IS_ERROR != 0 => bail!("{}", refusal(kind, &data)),
                kind => bail!("answer {kind} to the choice of an export"),
            }
        }
        bail!("too many answers")
    }

    fn left(&self) -> anyhow::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        ensure!(
            !left.is_zero(),
            "no answer within {} s",
            NEGOTIATION_MAX.as_secs()
        );
        Ok(left)
    }

    fn take<const LEN: usize>(&mut self) -> anyhow::Result<[u8; LEN]> {
        let mut bytes = [0; LEN];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, mut room: &mut [u8]) -> anyhow::Result<()> {
        while !room.is_empty() {
            self.socket.set_read_timeout(Some(self.left()?))?;
            let count = self.socket.read(room)?;
            ensure!(count > 0, "the connection ended");
            room = room.get_mut(count..).unwrap_or_default();
        }
        Ok(())
    }
}

fn u32_at(head: &[u8; 20], at: usize) -> u32 {
    let bytes = head.get(at..at + 4).unwrap_or_default();
    bytes
        .iter()
        .fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}

/// The length and the flags in an answer with information on an export.
fn export_of(data: &[u8]) -> Option<(u64, u16)> {
    let [k0, k1, size @ .., f0, f1] = <[u8; 12]>::try_from(data).ok()?;
    let kind = u16::from_be_bytes([k0, k1]);
    let size = u64::from_be_bytes(size);
    (kind == INFO_EXPORT).then_some((size, u16::from_be_bytes([f0, f1])))
}

fn refusal(kind: u32, data: &[u8]) -> String {
    match String::from_utf8_lossy(data).trim() {
        "" => format!("refused (error {} of NBD)", kind & !IS_ERROR),
        text => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    use super::*;

    /// A door that greets, takes a choice and answers with these bytes.
    fn door(answers: Vec<u8>) -> (Endpoint, JoinHandle<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("an address").to_string();
        let served = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().expect("a client");
            socket.write_all(GREETING).expect("it reads");
            socket.write_all(&[0, 3]).expect("it reads");
            let mut asked = vec![0; 4 + 8 + 4 + 4 + 4 + 4 + 2];
            socket.read_exact(&mut asked).expect("it asks");
            socket.write_all(&answers).expect("it reads");
            asked
        });
        (at.parse().expect("an address"), served)
    }

    fn answer(kind: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = ANSWER_MAGIC.to_be_bytes().to_vec();
        bytes.extend(GO.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        bytes
    }

    #[test]
    fn an_export_is_chosen_by_its_name() {
        let export = [0, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0b11];
        let block_size = [0, 3, 0, 0, 0, 1, 0, 0, 0x10, 0, 2, 0, 0, 0];
        let answers = [
            answer(INFO, &export),
            answer(INFO, &block_size),
            answer(ACK, &[]),
        ];
        let (at, served) = door(answers.concat());
        let chosen = negotiate(&at, "disk").expect("it is chosen");
        assert_eq!((chosen.size_bytes, chosen.flags), (0x40_0000, 3));
        assert!(chosen.is_read_only());
        let asked = served.join().expect("it was served");
        assert_eq!(
            asked,
            b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x0a\0\0\0\x04disk\0\0"
        );
    }

    #[test]
    fn whatever_a_door_answers_ends_in_one_error() {
        let cases: [(Vec<u8>, &str); 5] = [
            (
                answer(IS_ERROR | 6, b"there is no such volume"),
                "no such volume",
            ),
            (answer(IS_ERROR | 2, b""), "error 2 of NBD"),
            (answer(ACK, &[]), "how large"),
            (vec![7; 20], "none of NBD's"),
            (answer(INFO, &[])[..9].to_vec(), "the connection ended"),
        ];
        for (answers, text) in cases {
            let (at, served) = door(answers);
            let error = negotiate(&at, "disk").err().expect("it fails");
            assert!(format!("{error:#}").contains(text), "{text}: {error:#}");
            served.join().expect("it was served");
        }
        let mut long = answer(INFO, &[]);
        long[16..].copy_from_slice(&u32::MAX.to_be_bytes());
        let (at, served) = door(long);
        let error = negotiate(&at, "disk").err().expect("it fails");
        assert!(format!("{error:#}").contains("too long"), "{error:#}");
        served.join().expect("it was served");
    }
}
