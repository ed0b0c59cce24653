//! Requests for this node's blocks of files.

use std::sync::Arc;
use std::time::{Duration, Instant};

use staves_net::Reply;
use staves_wire::files::{FileAway, FileCheck, FileFetch, FileLost, FilePut, FileRead, FileUse};
use staves_wire::{ErrorPacket, Message};

use super::time_left;
use crate::running::Running;
use staves_files_server::check_range;

fn answer(reply: Reply, answer: Result<Message, ErrorPacket>) {
    match answer {
        Ok(message) => reply.send(&message),
        Err(ErrorPacket { code, text }) => reply.error(code, text),
    }
}

// Lengths are looked at before room is asked for: what waits for more room than there is keeps it from all behind.

pub(super) fn read(running: &Arc<Running>, ask: FileRead, reply: Reply) {
    if let Err(wrong) = check_range(ask.from, ask.len.into()) {
        return answer(reply, Err(wrong));
    }
    if running.files.may_answer(&reply, ask.len) {
        return answer(reply, running.files.read(&ask).map(Message::FileBytes));
    }
    let files = running.files.clone();
    tokio::spawn(async move {
        let deadline = Instant::now() + time_left(&reply);
        match files.wait_to_answer(&reply, ask.len, deadline).await {
            Ok(()) => answer(reply, files.read(&ask).map(Message::FileBytes)),
            Err(busy) => answer(reply, Err(busy)),
        }
    });
}

pub(super) fn fetch(running: &Arc<Running>, ask: FileFetch, reply: Reply) {
    if let Err(wrong) = check_range(ask.read.from, ask.read.len.into()) {
        return answer(reply, Err(wrong));
    }
    let files = running.files.clone();
    tokio::spawn(async move {
        let deadline = Instant::now() + time_left(&reply);
        let room = match files.flight(ask.read.len, deadline).await {
            Ok(room) => room,
            Err(busy) => return answer(reply, Err(busy)),
        };
        let waited = files.wait_to_answer(&reply, ask.read.len, deadline);
        if let Err(busy) = waited.await {
            return answer(reply, Err(busy));
        }
        let fetched = files.fetch(ask, deadline).await;
        answer(reply, fetched.map(Message::FileBytes));
        drop(room);
    });
}

pub(super) fn put(running: &Running, ask: FilePut, reply: Reply) {
    answer(reply, running.files.put(ask).map(|()| Message::Done));
}

pub(super) fn lost(running: &Arc<Running>, ask: FileLost, reply: Reply) {
    let files = running.files.clone();
    tokio::spawn(async move {
        let deadline = Instant::now() + time_left(&reply);
        let lost = files.lost(ask, deadline).await;
        answer(reply, lost.map(Message::FileLostAnswer));
    });
}

/// On a thread of its own: it compares many bytes.
pub(super) async fn check(running: &Running, ask: FileCheck, reply: Reply) {
    let files = running.files.clone();
    let check = move || answer(reply, files.check(ask).map(Message::FileChecked));
    if let Err(error) = tokio::task::spawn_blocking(check).await {
        tracing::error!(%error, "blocks could not be checked");
    }
}

pub(super) fn used(running: &Running, told: FileUse, reply: Reply) {
    running.files.uses.told(told.dataset, told.by, None);
    reply.send(&Message::Done);
}

pub(super) fn away(running: &Running, told: FileAway, reply: Reply) {
    let away = (Duration::from_millis(told.for_ms), told.why);
    running.files.uses.told(told.dataset, told.by, Some(away));
    reply.send(&Message::Done);
}
