//! Transactions, which are not supported: none of one is done.
//!
//! Clients send MULTI, commands and EXEC in one go, or one after the other on a connection that others use later. MULTI is answered
//! as by Redis, so that every client knows that it is in a transaction and how it leaves it. The commands in between are refused,
//! and so is EXEC, as if a command of the transaction could not be queued.

use super::parse::Args;

/// A command that begins or ends a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // Redis's own words
pub enum Mark {
    Multi,
    Exec,
    Discard,
}

impl Mark {
    /// `None` if the command is none of these.
    pub fn of(args: Args<'_>) -> Option<Mark> {
        let name = args.get(0)?;
        let is = |text: &str| name.eq_ignore_ascii_case(text.as_bytes());
        let all = [
            ("MULTI", Mark::Multi),
            ("EXEC", Mark::Exec),
            ("DISCARD", Mark::Discard),
        ];
        all.into_iter()
            .find_map(|(text, mark)| is(text).then_some(mark))
    }
}

/// The answer to a command within a transaction.
pub const NOT_DONE: &str = "ERR transactions are not supported: nothing between MULTI and EXEC is done; send the commands without MULTI";

/// The state of a connection: within a transaction or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Transaction {
    /// A MULTI came, and no EXEC or DISCARD after it.
    pub is_open: bool,
}

impl Transaction {
    /// The answer to a mark: OK, or an error.
    pub fn step(&mut self, mark: Mark) -> Result<(), &'static str> {
        let was_open = std::mem::replace(&mut self.is_open, mark == Mark::Multi);
        match (mark, was_open) {
            (Mark::Multi, false) | (Mark::Discard, true) => Ok(()),
            (Mark::Multi, true) => Err("ERR MULTI calls can not be nested"),
            (Mark::Exec, true) => Err(
                "EXECABORT Transaction discarded: transactions are not supported, nothing of it was done",
            ),
            (Mark::Exec, false) => Err("ERR EXEC without MULTI"),
            (Mark::Discard, false) => Err("ERR DISCARD without MULTI"),
        }
    }
}
