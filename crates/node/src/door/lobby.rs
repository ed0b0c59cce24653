//! Clients that come before the node has joined its cluster.
//!
//! A door that took connections and said nothing would leave every client hanging for as long as the join
//! takes. Here each command is answered at once, PING included, with the word that Redis has for a server
//! that starts: clients know LOADING as "ask again, or ask another". The connection stays: once the node has
//! joined, what comes on it is done.

use std::io;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::Phase;
use super::connection::{READ_BYTES, speaks_http};
use crate::entry::Entry;
use staves_resp::{Limits, Mark, Output, Parser, Transaction};

/// Answers in one write, so many bytes of them.
const OUTPUT_BYTES_MAX: usize = 64 << 10;
/// How long a client may take to read them.
const WRITE: Duration = Duration::from_secs(5);

/// Answers until the node has joined: what is left is the beginning of a command that has not come whole.
/// `None` if the connection ends here. A transaction that began here ends where its connection goes on.
pub(super) async fn wait(
    socket: &mut TcpStream,
    entry: &Entry,
    limits: Limits,
    phase: &mut watch::Receiver<Phase>,
) -> io::Result<Option<(BytesMut, Transaction)>> {
    let mut lobby = Lobby {
        input: BytesMut::new(),
        output: Output::new(),
        parser: Parser::new(limits),
        refusal: format!("LOADING {}", entry.not_yet()),
        closing: false,
        transaction: Transaction::default(),
    };
    loop {
        let all_answered = lobby.answer();
        let written = socket.write_all_buf(&mut lobby.output);
        match tokio::time::timeout(WRITE, written).await {
            Ok(written) => written?,
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        }
        if lobby.closing {
            return Ok(None);
        }
        if !all_answered {
            continue;
        }
        lobby.input.reserve(READ_BYTES);
        tokio::select! {
            biased;
            joined = phase.wait_for(|p| *p > Phase::Joining) => {
                // The sender is gone if the node could not start.
                return Ok(joined.is_ok().then_some((lobby.input, lobby.transaction)));
            }
            count = socket.read_buf(&mut lobby.input) => lobby.closing = count? == 0,
        }
    }
}

struct Lobby {
    input: BytesMut,
    output: Output,
    parser: Parser,
    refusal: String,
    closing: bool,
    transaction: Transaction,
}

impl Lobby {
    /// Answers what has come, up to the bound of one write; whether that was all.
    fn answer(&mut self) -> bool {
        let mut at = 0;
        let mut all = false;
        while !all && self.output.len() < OUTPUT_BYTES_MAX {
            match self.parser.next(&self.input[at..]) {
                Ok(Some(frame)) if speaks_http(frame.args) => {
                    (self.closing, all) = (true, true);
                }
                Ok(Some(frame)) => {
                    at += frame.used;
                    match Mark::of(frame.args).map(|mark| self.transaction.step(mark)) {
                        Some(Ok(())) => self.output.ok(),
                        Some(Err(text)) => self.output.error(text),
                        None if frame.args.is_empty() => {}
                        None => self.output.error(&self.refusal),
                    }
                }
                Ok(None) => all = true,
                Err(error) => {
                    self.output.error(&format!("ERR {error}"));
                    (self.closing, all) = (true, true);
                }
            }
        }
        self.input.advance(at);
        all
    }
}
