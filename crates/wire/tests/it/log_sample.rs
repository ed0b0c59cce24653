//! Samples of the messages of logs.

use staves_model::PoolId;
use staves_wire::log::{LogAppoint, LogAsk, LogSaid};
use staves_wire::{Message, Opcode};

use crate::sample::Rng;

/// One message of that opcode, if it is one of logs.
pub fn message(rng: &mut Rng, opcode: Opcode) -> Option<Message> {
    let message = match opcode {
        Opcode::LogAsk => Message::LogAsk(LogAsk {
            pool: PoolId(rng.u32()),
            node: rng.node(),
            incarnation: rng.incarnation(),
            body: rng.bytes(40),
        }),
        Opcode::LogSaid => Message::LogSaid(LogSaid {
            body: rng.bytes(40),
        }),
        Opcode::LogAppoint => Message::LogAppoint(LogAppoint {
            pool: PoolId(rng.u32()),
            name: rng.text(),
            take: rng.yes(),
            above: rng.next(),
        }),
        _ => return None,
    };
    Some(message)
}
