//! Batches of reads that this node's buckets answer at once: each value goes from its page into the answer's frame.
//!
//! Whatever is more than that (a write, a bucket that is elsewhere or has to wait, an error, much memory) goes the longer way, which
//! begins anew: a read has done nothing.

use std::time::Instant;

use staves_net::Reply;
use staves_service::AnswerRef;
use staves_wire::encoded::EncodedAnswers;
use staves_wire::service::ServiceRequest;

use super::hand::cell_of;
use crate::host::Host;

/// Most bytes of the answers: so much is read in vain at most.
const ANSWERS_BYTES_MAX: usize = 256 << 10;
/// An answer takes so many bytes, likely.
const ANSWER_BYTES: usize = 600;

/// Answers the batch, or gives its reply back.
pub(super) fn serve(
    host: &Host,
    request: &ServiceRequest,
    deadline: Instant,
    reply: Reply,
) -> Result<(), Reply> {
    let free = match reply.is_of_client() {
        true => host.options().in_flight.free_bytes(),
        false => usize::MAX,
    };
    match read(host, request, deadline, free) {
        Some(answers) => {
            reply.send_encoded(answers, host.routes().map.revision);
            Ok(())
        }
        None => Err(reply),
    }
}

/// The answers, if they have no more than so many bytes.
pub(super) fn read(
    host: &Host,
    request: &ServiceRequest,
    deadline: Instant,
    bytes_max: usize,
) -> Option<EncodedAnswers> {
    if request.ops.iter().any(|op| op.number > 0) {
        return None;
    }
    let asked = match request.answer_bytes_max {
        0 => usize::MAX,
        asked => asked as usize,
    };
    let most = ANSWERS_BYTES_MAX.min(bytes_max).min(asked);
    let routes = host.routes();
    let pool = routes.pool(request.service, &request.pool)?;
    let (now, deadline) = (host.clock.now(), host.clock.at(deadline));
    let likely = (request.ops.len() * ANSWER_BYTES).min(most);
    let mut answers = EncodedAnswers::with_capacity(likely);
    for (index, op) in request.ops.iter().enumerate() {
        let cell = cell_of(&routes, pool, request, op).ok()?;
        let mut state = cell.lock();
        if !state.answers_for(op.to.slot()) {
            return None;
        }
        state.read_body(now, deadline, op, &mut |answer| match answer {
            AnswerRef::Value(value) if answers.bytes() + value.len() <= most => {
                answers.put_value(value);
            }
            AnswerRef::Value(_) | AnswerRef::Error(..) => {}
            answer => answers.put(&answer.to_owned()),
        });
        if answers.count() == index {
            return None;
        }
    }
    Some(answers)
}
