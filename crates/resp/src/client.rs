//! A small client of Redis's protocol: blocking, one connection.

use std::fmt::Display;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// The answer to a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// `+OK`.
    Ok,
    /// Another simple string.
    Simple(String),
    /// An error's text, with its code.
    Error(String),
    /// A number.
    Int(i64),
    /// No value, or no list.
    Nil,
    /// A value.
    Bulk(Vec<u8>),
    /// A list.
    Array(Vec<Reply>),
}

impl Reply {
    /// A value.
    pub fn text(text: &str) -> Reply {
        Reply::Bulk(text.as_bytes().to_vec())
    }

    /// The text of an error.
    pub fn is_error(&self) -> Option<&str> {
        match self {
            Reply::Error(text) => Some(text),
            _ => None,
        }
    }
}

/// A connection.
pub struct Resp {
    stream: BufReader<TcpStream>,
}

/// Bounds on what is taken from the other side.
const LINE_BYTES_MAX: u64 = 64 << 10;
const BULK_BYTES_MAX: usize = 512 << 20;
const ITEMS_MAX: usize = 1 << 20;
/// Lists within lists.
const DEPTH_MAX: usize = 16;

impl Resp {
    /// Connects within `timeout`; each later step may take as long as `patience`.
    pub fn connect(
        address: impl ToSocketAddrs + Display,
        timeout: Duration,
        patience: Duration,
    ) -> io::Result<Resp> {
        let addresses = address.to_socket_addrs()?;
        let mut last = io::Error::new(ErrorKind::NotFound, format!("{address} has no address"));
        for address in addresses {
            match TcpStream::connect_timeout(&address, timeout) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(patience))?;
                    stream.set_write_timeout(Some(patience))?;
                    return Ok(Resp {
                        stream: BufReader::new(stream),
                    });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Sends one command and waits for its answer. After an error the connection is of no more use, for
    /// an answer may still be under way, and nobody knows what became of the command.
    pub fn call(&mut self, args: &[&[u8]]) -> io::Result<Reply> {
        let mut command = Vec::new();
        encode(args, &mut command);
        self.send(&command)?;
        self.receive()
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Waits for an answer.
    pub fn receive(&mut self) -> io::Result<Reply> {
        reply(&mut self.stream, 0)
    }
}

/// Appends a command.
pub fn encode(args: &[&[u8]], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", args.len()).as_bytes());
    for arg in args {
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
}

fn reply(from: &mut impl BufRead, depth: usize) -> io::Result<Reply> {
    let mut line = Vec::new();
    from.by_ref()
        .take(LINE_BYTES_MAX)
        .read_until(b'\n', &mut line)?;
    let Some(line) = line.strip_suffix(b"\r\n") else {
        return Err(io::Error::new(
            ErrorKind::UnexpectedEof,
            "the connection ended",
        ));
    };
    let (kind, text) = line.split_first().ok_or_else(|| malformed(line))?;
    let text = std::str::from_utf8(text).map_err(|_| malformed(line))?;
    let number = || text.parse::<i64>().map_err(|_| malformed(line));
    let length = |max: usize| match number()? {
        -1 => Ok(None),
        len => match usize::try_from(len) {
            Ok(len) if len <= max => Ok(Some(len)),
            _ => Err(malformed(line)),
        },
    };
    match kind {
        b'+' if text == "OK" => Ok(Reply::Ok),
        b'+' => Ok(Reply::Simple(text.to_owned())),
        b'-' => Ok(Reply::Error(text.to_owned())),
        b':' => Ok(Reply::Int(number()?)),
        b'$' => match length(BULK_BYTES_MAX)? {
            None => Ok(Reply::Nil),
            Some(len) => bulk(from, len),
        },
        b'*' if depth < DEPTH_MAX => match length(ITEMS_MAX)? {
            None => Ok(Reply::Nil),
            Some(len) => {
                let items = (0..len).map(|_| reply(from, depth + 1));
                items.collect::<io::Result<_>>().map(Reply::Array)
            }
        },
        _ => Err(malformed(line)),
    }
}

fn bulk(from: &mut impl Read, len: usize) -> io::Result<Reply> {
    let mut value = Vec::new();
    from.take(len as u64 + 2).read_to_end(&mut value)?;
    match value.strip_suffix(b"\r\n") {
        Some(whole) if whole.len() == len => Ok(Reply::Bulk(whole.to_vec())),
        _ => Err(io::Error::new(
            ErrorKind::UnexpectedEof,
            "the connection ended",
        )),
    }
}

fn malformed(line: &[u8]) -> io::Error {
    let line = line[..line.len().min(60)].escape_ascii();
    io::Error::new(
        ErrorKind::InvalidData,
        format!("'{line}' is no answer in Redis's protocol"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> io::Result<Reply> {
        reply(&mut text.as_bytes(), 0)
    }

    #[test]
    fn answers_are_read() {
        let cases = [
            ("+OK\r\n", Reply::Ok),
            ("+PONG\r\n", Reply::Simple("PONG".into())),
            ("-ERR no\r\n", Reply::Error("ERR no".into())),
            (":-7\r\n", Reply::Int(-7)),
            ("$-1\r\n", Reply::Nil),
            ("$4\r\na\r\nb\r\n", Reply::text("a\r\nb")),
            (
                "*2\r\n:1\r\n$0\r\n\r\n",
                Reply::Array(vec![Reply::Int(1), Reply::text("")]),
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(read(text).expect(text), expected);
            for cut in 0..text.len() {
                assert!(read(&text[..cut]).is_err(), "{text:?} cut at {cut}");
            }
        }
        for text in [
            "\r\n",
            "?\r\n",
            "$-2\r\n",
            "$99999999999\r\n",
            ":x\r\n",
            &"*1\r\n".repeat(DEPTH_MAX + 1),
            "$1\r\nabc",
        ] {
            assert!(read(text).is_err(), "{text:?}");
        }
    }
}
