//! A small RESP client: blocking, strict, and with a deadline on everything.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// No answer of a door takes longer: the node's own deadline is five seconds.
const PATIENCE: Duration = Duration::from_secs(12);

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    Ok,
    Simple(String),
    Error(String),
    Int(i64),
    Nil,
    Bulk(Vec<u8>),
    Array(Vec<Reply>),
}

impl Reply {
    pub fn text(text: &str) -> Reply {
        Reply::Bulk(text.as_bytes().to_vec())
    }

    /// The error's text, if it is one.
    pub fn is_error(&self) -> Option<&str> {
        match self {
            Reply::Error(text) => Some(text),
            _ => None,
        }
    }
}

pub struct Client {
    reading: BufReader<TcpStream>,
}

impl Client {
    pub fn connect(addr: SocketAddr) -> Client {
        Client::try_connect(addr).expect("the RESP door takes connections")
    }

    pub fn try_connect(addr: SocketAddr) -> std::io::Result<Client> {
        let socket = TcpStream::connect_timeout(&addr, Duration::from_secs(2))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Client {
            reading: BufReader::new(socket),
        })
    }

    /// One command and its answer.
    pub fn ask(&mut self, line: &str) -> Reply {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.ask_args(&args)
    }

    pub fn ask_args(&mut self, args: &[&[u8]]) -> Reply {
        self.try_args(args).expect("the door answers")
    }

    pub fn try_args(&mut self, args: &[&[u8]]) -> std::io::Result<Reply> {
        self.send(args)?;
        self.receive()
    }

    pub fn try_ask(&mut self, line: &str) -> std::io::Result<Reply> {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.try_args(&args)
    }

    /// Many commands in one write, then all answers.
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

    pub fn send_raw(&mut self, bytes: &[u8]) {
        let socket = self.reading.get_mut();
        socket.write_all(bytes).expect("the door takes bytes");
    }

    fn send(&mut self, args: &[&[u8]]) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        encode(args, &mut bytes);
        self.reading.get_mut().write_all(&bytes)
    }

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
