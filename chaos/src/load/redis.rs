//! Clients of Redis's protocol, with connections that they keep for a while.

use std::sync::Arc;
use std::time::Duration;

use staves_conformance::Begun;
use staves_conformance::cache::{self, KeyLoad, OnKey};
use staves_history::Operation;
use staves_history::record::Asked;
use staves_resp::client::{Reply, Resp};
use staves_testkit::load::{Door, Random};
use staves_wire::ErrorCode;
use staves_wire::service::Answer;

use super::{PATIENCE, Shared};

const CONNECT: Duration = Duration::from_millis(1000);
/// Operations before a client goes to another node.
const STAY: u32 = 40;

/// A client's connection to one node after the other, or to one alone.
pub struct Redis {
    shared: Arc<Shared>,
    random: Random,
    /// The node that it stays at, if it does.
    home: Option<usize>,
    patience: Duration,
    connection: Option<(usize, Resp)>,
    /// Operations on it so far.
    stayed: u32,
}

impl Redis {
    /// Not connected yet.
    pub fn new(
        shared: &Arc<Shared>,
        random: Random,
        home: Option<usize>,
        patience: Duration,
    ) -> Redis {
        Redis {
            shared: shared.clone(),
            random,
            home,
            patience,
            connection: None,
            stayed: 0,
        }
    }

    /// The connection at hand, or a new one to any node.
    fn connect(&mut self) -> Option<(usize, Resp)> {
        self.stayed += 1;
        if let Some(at_hand) = self.connection.take() {
            return Some(at_hand);
        }
        self.stayed = 0;
        let at = match self.home {
            Some(home) => home,
            None => self.random.below(self.shared.doors().max(1) as u64) as usize,
        };
        let mut resp = Resp::connect(self.shared.door(at)?, CONNECT, self.patience).ok()?;
        // Else nobody would know what became of a command that was sent to a node without a place for it.
        if self.shared.greets && resp.call(&[b"PING"]).ok()? != Reply::Simple("PONG".into()) {
            return None;
        }
        Some((at, resp))
    }
}

impl Door<KeyLoad> for Redis {
    async fn execute(&mut self, begun: &Begun<OnKey>) -> Answer {
        let answer = self.ask(begun);
        if self.home.is_some() && !begun.operation.is_read() {
            let refused = match &answer {
                Answer::Error(_, text) => Some(text.as_str()),
                _ => None,
            };
            let of = (begun.client, begun.object);
            self.shared.wrote(of, begun.called, refused);
        }
        answer
    }
}

impl Redis {
    fn ask(&mut self, begun: &Begun<OnKey>) -> Answer {
        let Some((at, mut resp)) = self.connect() else {
            return Answer::error(ErrorCode::NotServing, "no connection");
        };
        let args = words(cache::name(begun.object), cache::asked(&begun.operation));
        let args: Vec<&[u8]> = args.iter().map(String::as_bytes).collect();
        match resp.call(&args) {
            Ok(reply) => {
                self.connection = Some((at, resp)).filter(|_| self.stayed < STAY);
                answer(reply)
            }
            Err(error) => {
                if is_late(&error) && self.patience == PATIENCE {
                    self.shared.silent(at, begun);
                }
                Answer::error(ErrorCode::Unreachable, error.to_string())
            }
        }
    }
}

fn is_late(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    matches!(error.kind(), TimedOut | WouldBlock)
}

fn words(key: String, asked: Asked) -> Vec<String> {
    let (verb, value) = match asked {
        Asked::Get => ("GET", None),
        Asked::Set { value } => ("SET", Some(value)),
        Asked::SetNx { value } => return vec!["SET".into(), key, value, "NX".into()],
        Asked::Del => ("DEL", None),
        Asked::Incr { by } => ("INCRBY", Some(by.to_string())),
        Asked::Append { value } => ("APPEND", Some(value)),
        Asked::GetDel => ("GETDEL", None),
        Asked::Chunk(act) => unreachable!("{act:?} on a key"),
    };
    [verb.to_owned(), key].into_iter().chain(value).collect()
}

fn answer(reply: Reply) -> Answer {
    match reply {
        Reply::Ok => Answer::Ok,
        Reply::Nil => Answer::Nil,
        Reply::Bulk(value) => Answer::Value(value.into()),
        Reply::Int(n) => Answer::Int(n),
        Reply::Error(text) if nothing_done(&text) => Answer::error(ErrorCode::NotServing, text),
        Reply::Error(text) => Answer::error(ErrorCode::Unreachable, text),
        // Nothing that is asked for here is answered so; the check will say that nothing explains it.
        other => Answer::Value(format!("{other:?}").into()),
    }
}

/// True if an error certainly means that the command was not done.
fn nothing_done(error: &str) -> bool {
    ["TRYAGAIN", "OOM", "CLUSTERDOWN", "MOVED", "LOADING"]
        .iter()
        .any(|word| error.starts_with(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_certain_errors_are_taken_for_not_done() {
        assert!(nothing_done("TRYAGAIN the key's bucket ..."));
        assert!(!nothing_done("IOERR the deadline passed ..."));
        assert!(!nothing_done("ERR whatever"));
    }
}
