//! The native door's part of logs: requests to sequencers.

use std::sync::Arc;
use std::time::Instant;

use staves_client::log_calls::encoded;
use staves_log::{SequencerId, SequencerRequest, Term};
use staves_net::Reply;
use staves_wire::log::{LogAppoint, LogAsk, LogSaid};
use staves_wire::{ErrorCode, Message};

use super::time_left;
use crate::log::AppointDemand;
use crate::running::Running;

/// Requests to sequencers of this node.
pub(super) fn ask(running: &Arc<Running>, ask: LogAsk, reply: Reply) {
    let requests = match SequencerRequest::decode_several(ask.body) {
        Ok(requests) => requests,
        Err(error) => {
            let text = format!("the requests to a log's sequencer do not decode: {error}");
            return reply.error(ErrorCode::Malformed, text);
        }
    };
    let to = SequencerId {
        node: ask.node,
        incarnation: ask.incarnation,
    };
    let logs = running.host.logs.clone();
    tokio::spawn(async move {
        let until = Instant::now() + time_left(&reply);
        let said = logs.ask_several(ask.pool, to, requests);
        match tokio::time::timeout_at(until.into(), said).await {
            Ok(Some(said)) => {
                let body = encoded(|out| said.iter().for_each(|said| said.encode(out)));
                reply.send(&Message::LogSaid(LogSaid { body }));
            }
            Ok(None) => reply.error(
                ErrorCode::Busy,
                "the log's sequencer has as many requests as it takes: ask again",
            ),
            Err(_) => reply.error(ErrorCode::Deadline, "the log's sequencer did not answer"),
        }
    });
}

/// An appointment of a sequencer.
pub(super) fn appoint(running: &Arc<Running>, ask: LogAppoint, reply: Reply) {
    if running.is_stopping() {
        return reply.error(ErrorCode::Stopping, "this node is stopping: ask another");
    }
    let host = running.host.clone();
    tokio::spawn(async move {
        let deadline = Instant::now() + time_left(&reply);
        let logs = &host.logs;
        let demand = AppointDemand {
            take: ask.take,
            above: Term(ask.above),
        };
        let record = logs.appoint(host.router(), ask.pool, &ask.name, demand, deadline);
        match record.await {
            Ok(record) => {
                let body = encoded(|out| record.encode(out));
                reply.send(&Message::LogSaid(LogSaid { body }));
            }
            Err(error) => reply.error(error.code(), error.to_string()),
        }
    });
}
