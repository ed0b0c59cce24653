//! A log's open term, anew: its record, and an appointment where its sequencer is gone.

use std::time::Instant;

use staves_log::{LogRecord, LogView, RecordReply, RecordRequest, Term};
use staves_model::{MemberSlot, NodeId, PoolId};
use staves_wire::log::LogAppoint;
use staves_wire::{ErrorCode, Message};

use super::calls::{self, record_of, soon};
use crate::client::{Client, senseless};
use crate::error::ClientError;

/// The log's view: one of a newer term than `known` if there is one; if not, a node is asked to see that the log has a sequencer. The one of the record
/// is asked if it lives, and the head of the log's home if it does not.
pub(super) async fn view(
    client: &Client,
    pool: PoolId,
    name: &str,
    known: Term,
) -> Result<LogView, ClientError> {
    let map = client.map();
    let home = calls::home_of(&map, pool, name)?;
    let view = RecordRequest::View {
        name: name.to_owned(),
    };
    let reply = calls::ask_home(client.router(), pool, home, view, soon()).await?;
    let record = record_of(name, reply)?;
    let newer = record.view.term > known;
    let living = living(client, &record);
    if newer && living.is_some() {
        return Ok(record.view);
    }
    let head = map
        .groups
        .get(&home)
        .and_then(|home| home.member(MemberSlot(0)));
    let head = head.map(|head| head.id.node);
    // A node that is drained would only give it away again.
    let stays = |node: &NodeId| map.nodes.get(node).is_some_and(|node| node.is_home());
    let home = head
        .filter(stays)
        .or(map.homes().next().map(|node| node.id));
    let to = living.or(home).or(head);
    let Some(to) = to else {
        return Ok(record.view);
    };
    let request = LogAppoint {
        pool,
        name: name.to_owned(),
        take: false,
        above: 0,
    };
    let asked = ask(client, to, request, soon()).await;
    if asked.is_err() {
        // The node may be gone, and the map know it by now.
        client.refresh().await?;
    }
    Ok(asked?.view)
}

/// Asks a node to see to a log's sequencer. The record as it then is.
pub(super) async fn ask(
    client: &Client,
    to: NodeId,
    request: LogAppoint,
    deadline: Instant,
) -> Result<LogRecord, ClientError> {
    let name = request.name.clone();
    let asked = client.ask(to, Message::LogAppoint(request), deadline).await;
    // A node that the map has no more is no log that was deleted.
    let asked = asked.map_err(|error| match error.code() {
        ErrorCode::NotFound => ClientError::of(ErrorCode::Unreachable, error.to_string()),
        _ => error,
    });
    match asked? {
        Message::LogSaid(said) => {
            let reply = RecordReply::decode(said.body);
            let reply = reply.map_err(|error| senseless("an appointment", &error.to_string()))?;
            record_of(&name, reply)
        }
        other => Err(senseless("an appointment", other.opcode().word())),
    }
}

/// The node of the newest term's sequencer, if it is in that life.
fn living(client: &Client, record: &LogRecord) -> Option<NodeId> {
    let map = client.map();
    let lead = record.lead.as_ref().map(|lead| lead.sequencer);
    let newest = lead.or(record.view.sequencer)?;
    map.is_up(newest.node, newest.incarnation)
        .then_some(newest.node)
}
