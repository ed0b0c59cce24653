//! The client of Redis's protocol, for tests: a command is a line, and what fails ends the test.

use std::net::SocketAddr;
use std::time::Duration;

pub use staves_resp::client::Reply;
use staves_resp::client::{Resp, encode};

/// The longest that a connection takes.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// The longest that a reply takes: the node's own deadline is five seconds.
const ANSWER_MAX: Duration = Duration::from_secs(12);

/// A connection.
pub struct RespClient(Resp);

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
        Resp::connect(addr, CONNECT_MAX, ANSWER_MAX).map(RespClient)
    }

    /// Sends one command, split at blanks, and returns its reply.
    pub fn ask(&mut self, line: &str) -> Reply {
        self.try_ask(line).expect("the door answers")
    }

    /// Sends one command and returns its reply.
    pub fn ask_args(&mut self, args: &[&[u8]]) -> Reply {
        self.try_args(args).expect("the door answers")
    }

    /// The same, with an error if the connection breaks.
    pub fn try_args(&mut self, args: &[&[u8]]) -> std::io::Result<Reply> {
        self.0.call(args)
    }

    /// Sends one command, split at blanks, with an error if the connection breaks.
    pub fn try_ask(&mut self, line: &str) -> std::io::Result<Reply> {
        self.try_args(&split(line))
    }

    /// Sends many commands in one write and returns all replies.
    pub fn pipeline(&mut self, lines: &[String]) -> Vec<Reply> {
        let mut bytes = Vec::new();
        lines
            .iter()
            .for_each(|line| encode(&split(line), &mut bytes));
        self.send_raw(&bytes);
        let answers = lines.iter().map(|_| self.receive().expect("an answer"));
        answers.collect()
    }

    /// Sends bytes as they are.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.0.send(bytes).expect("the door takes bytes");
    }

    /// Reads one reply.
    pub fn receive(&mut self) -> std::io::Result<Reply> {
        self.0.receive()
    }
}

fn split(line: &str) -> Vec<&[u8]> {
    line.split(' ').map(str::as_bytes).collect()
}
