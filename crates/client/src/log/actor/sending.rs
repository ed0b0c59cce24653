//! Requests of the task on their way: those of a round's appends together, those of reads each by itself.

use staves_log::{
    ASK_REQUESTS_MAX, AppendId, SequencerId, SequencerReply, SequencerRequest, UnitId, UnitOp,
    UnitReply, UnitRequest,
};
use staves_wire::log::LogAsk;
use staves_wire::{ErrorCode, Message};
use tokio::sync::mpsc;

use super::super::calls::{self, soon};
use super::{Actor, Heard};
use crate::client::senseless;
use crate::error::ClientError;

impl Actor {
    /// Sends what the appends of this round ask, a message for each unit and each sequencer.
    pub(super) fn send_appends(&mut self) {
        for (unit, batch) in self.to_units.take() {
            let (client, pool, heard) = (self.client.clone(), self.pool, self.heard.0.clone());
            tokio::spawn(async move {
                let asked = calls::ask_batch(client.router(), pool, unit, batch, soon()).await;
                tell_appends(&heard, unit, asked);
            });
        }
        let mut asks: Vec<(SequencerId, Vec<SequencerRequest>)> = Vec::new();
        for (to, request) in self.to_sequencers.drain(..) {
            match asks.last_mut() {
                Some((last, asks)) if *last == to && asks.len() < ASK_REQUESTS_MAX => {
                    asks.push(request);
                }
                _ => asks.push((to, vec![request])),
            }
        }
        for (to, requests) in asks {
            let ask = self.log_ask(to, &requests);
            self.ask_sequencer(to, ask, Heard::Placed);
        }
    }

    /// Asks a unit for a read. Each goes alone: its answer is many bytes.
    pub(super) fn read_unit(&self, read: u64, unit: UnitId, request: UnitRequest) {
        let (client, pool, heard) = (self.client.clone(), self.pool, self.heard.0.clone());
        tokio::spawn(async move {
            let reply = calls::ask_unit(client.router(), pool, unit, request, soon()).await;
            let said = reply.map_or_else(Heard::Trouble, |reply| Heard::Unit(read, reply));
            let _gone = heard.send(said);
        });
    }

    pub(super) fn ask_sequencer(
        &self,
        to: SequencerId,
        ask: LogAsk,
        heard_as: impl FnOnce(Vec<SequencerReply>) -> Heard + Send + 'static,
    ) {
        let (client, heard) = (self.client.clone(), self.heard.0.clone());
        tokio::spawn(async move {
            let said = match client.ask(to.node, Message::LogAsk(ask), soon()).await {
                Ok(Message::LogSaid(said)) => SequencerReply::decode_several(said.body)
                    .map_err(|error| senseless("a request to a sequencer", &error.to_string())),
                Ok(other) => Err(senseless("a request to a sequencer", other.opcode().word())),
                Err(error) => Err(error),
            };
            let _gone = heard.send(said.map_or_else(Heard::Trouble, heard_as));
        });
    }

    pub(super) fn log_ask(&self, to: SequencerId, requests: &[SequencerRequest]) -> LogAsk {
        LogAsk {
            pool: self.pool,
            node: to.node,
            incarnation: to.incarnation,
            body: calls::encoded(|out| requests.iter().for_each(|request| request.encode(out))),
        }
    }
}

/// Brings the answers to the appends of a batch: those of the unit together, trouble by itself.
fn tell_appends(
    heard: &mpsc::UnboundedSender<Heard>,
    unit: UnitId,
    asked: Vec<(Option<AppendId>, Result<UnitReply, ClientError>)>,
) {
    let mut replies = Vec::with_capacity(asked.len());
    for (append, reply) in asked {
        match (reply, append) {
            (Ok(reply), _) => replies.push(reply),
            (Err(error), Some(id)) if error.code() == ErrorCode::OutOfMemory => {
                let _gone = heard.send(Heard::NoRoom(id, unit, error));
            }
            (Err(error), _) => {
                let _gone = heard.send(Heard::Trouble(error));
            }
        }
    }
    let _gone = heard.send(Heard::Appended(replies));
}

/// The append whose data a request brings.
pub(super) fn append_of(request: &UnitRequest) -> Option<AppendId> {
    match &request.op {
        UnitOp::Park(park) => Some(park.id),
        UnitOp::Write { binding, .. } => binding.id,
        _ => None,
    }
}
