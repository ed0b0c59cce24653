//! What is asked of this node's blocks of files.

use std::sync::Arc;
use std::time::Instant;

use staves_net::Reply;
use staves_wire::files::{FileFetch, FileKeys, FilePut, FileRead};
use staves_wire::{ErrorPacket, Message};

use super::time_left;
use crate::node::Running;

fn answer(reply: Reply, answer: Result<Message, ErrorPacket>) {
    match answer {
        Ok(message) => reply.send(&message),
        Err(ErrorPacket { code, text }) => reply.error(code, text),
    }
}

pub(super) fn read(running: &Running, ask: &FileRead, reply: Reply) {
    answer(reply, running.files.read(ask).map(Message::FileBytes));
}

pub(super) fn fetch(running: &Arc<Running>, ask: FileFetch, reply: Reply) {
    let files = running.files.clone();
    tokio::spawn(async move {
        let deadline = Instant::now() + time_left(&reply);
        let fetched = files.fetch(ask, deadline).await;
        answer(reply, fetched.map(Message::FileBytes));
    });
}

pub(super) fn put(running: &Running, ask: FilePut, reply: Reply) {
    answer(reply, running.files.put(ask).map(|()| Message::Done));
}

pub(super) fn keys(running: &Running, ask: &FileKeys, reply: Reply) {
    answer(reply, running.files.keys(ask).map(Message::FileKeysAnswer));
}
