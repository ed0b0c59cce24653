//! A connection to a server that is still starting: every command is answered `LOADING`.

use bytes::{Buf, BytesMut};

use crate::output::Output;
use crate::parse::{Limits, Parser};
use crate::transaction::{Mark, Transaction};

/// Bytes of answers in one write.
const OUTPUT_BYTES_MAX: usize = 64 << 10;

/// The state of a connection to a server that is still starting.
#[derive(Debug)]
pub struct LoadingConnection {
    /// The bytes that are read and not answered yet.
    pub input: BytesMut,
    /// The answers to be written.
    pub output: Output,
    /// The connection is to be closed once the answers are written.
    pub closing: bool,
    /// The transaction that the client has begun, if any.
    pub transaction: Transaction,
    parser: Parser,
    refusal: String,
}

impl LoadingConnection {
    /// A new connection. `reason` follows `LOADING` in each answer.
    pub fn new(limits: Limits, reason: &str) -> LoadingConnection {
        LoadingConnection {
            input: BytesMut::new(),
            output: Output::new(),
            closing: false,
            transaction: Transaction::default(),
            parser: Parser::new(limits),
            refusal: format!("LOADING {reason}"),
        }
    }

    /// Refuses what has begun and not come whole, and ends the connection.
    pub fn refuse(&mut self) {
        self.output.error(&self.refusal);
        self.closing = true;
    }

    /// Answers the input, up to the bound of one write. Returns whether that was all.
    pub fn answer(&mut self) -> bool {
        let mut at = 0;
        let mut all = false;
        while !all && self.output.len() < OUTPUT_BYTES_MAX {
            match self.parser.next(&self.input[at..]) {
                Ok(Some(frame)) if frame.args.are_http() => {
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
