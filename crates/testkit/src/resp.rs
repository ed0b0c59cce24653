//! A small RESP client: blocking, strict, with a deadline on everything.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The longest that a reply takes: the node's own deadline is five seconds.
const ANSWER_MAX: Duration = Duration::from_secs(12);

/// A reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// `+OK`.
    Ok,
    /// Another simple string.
    Simple(String),
    /// An error's text, with its code.
    Error(String),
    /// An integer.
    Int(i64),
    /// A null bulk string or array.
    Nil,
    /// A bulk string.
    Bulk(Vec<u8>),
    /// An array.
    Array(Vec<Reply>),
}

impl Reply {
    /// A bulk string.
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
pub struct RespClient {
    reading: BufReader<TcpStream>,
}

impl RespClient {
    /// Connects.
    ///
    /// # Panics
    /// If the address refuses.
    pub fn connect(addr: SocketAddr) -> RespClient {
        RespClient::try_connect(addr).expect("the RESP door takes connections")
    }

    /// Connects.
    pub fn try_connect(addr: SocketAddr) -> std::io::Result<RespClient> {
        let socket = TcpStream::connect_timeout(&addr, Duration::from_secs(2))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(ANSWER_MAX))?;
        socket.set_write_timeout(Some(ANSWER_MAX))?;
        Ok(RespClient {
            reading: BufReader::new(socket),
        })
    }

    /// Sends one command, split at blanks, and returns its reply.
    pub fn ask(&mut self, line: &str) -> Reply {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.ask_args(&args)
    }

    /// Sends one command and returns its reply.
    pub fn ask_args(&mut self, args: &[&[u8]]) -> Reply {
        self.try_args(args).expect("the door answers")
    }

    /// The same, with an error if the connection breaks.
    pub fn try_args(&mut self, args: &[&[u8]]) -> std::io::Result<Reply> {
        self.send(args)?;
        self.receive()
    }

    /// Sends one command, split at blanks, with an error if the connection breaks.
    pub fn try_ask(&mut self, line: &str) -> std::io::Result<Reply> {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.try_args(&args)
    }

    /// Sends many commands in one write and returns all replies.
    pub fn pipeline(&mut self, lines: &[String]) -> Vec<Reply> {
        let mut bytes = Vec::new();
        for line in lines {
            let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            encode(&args, &mut bytes);
        }
        let socket = self.reading.get_mut();
        socket.write_all(&bytes).expect("the door takes commands");
        let answers = lines.iter().map(|_| self.receive().expect("an answer"));
        answers.collect()
    }

    /// Sends bytes as they are.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        let socket = self.reading.get_mut();
        socket.write_all(bytes).expect("the door takes bytes");
    }

    fn send(&mut self, args: &[&[u8]]) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        encode(args, &mut bytes);
        self.reading.get_mut().write_all(&bytes)
    }

    /// Reads one reply.
    pub fn receive(&mut self) -> std::io::Result<Reply> {
        let mut line = String::new();
        if self.reading.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        let (kind, rest) = line.split_at(1);
        let number = || rest.parse::<i64>().expect("a number");
        Ok(match kind {
            "+" if rest == "OK" => Reply::Ok,
            "+" => Reply::Simple(rest.into()),
            "-" => Reply::Error(rest.into()),
            ":" => Reply::Int(number()),
            "$" if number() < 0 => Reply::Nil,
            "$" => {
                let mut bytes = vec![0; number() as usize + 2];
                self.reading.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Reply::Bulk(bytes)
            }
            "*" if number() < 0 => Reply::Nil,
            "*" => {
                let items = (0..number()).map(|_| self.receive());
                Reply::Array(items.collect::<Result<_, _>>()?)
            }
            _ => panic!("no RESP: {line}"),
        })
    }
}

fn encode(args: &[&[u8]], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", args.len()).as_bytes());
    for arg in args {
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
}
