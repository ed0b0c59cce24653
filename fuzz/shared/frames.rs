//! The invariants of the native protocol's decoder, whatever comes.

use bytes::BytesMut;
use staves_wire::cache::Op;
use staves_wire::frame::{
    Decoder, FRAME_BODY_MAX, FRAME_FORMAT, FrameError, HEADER_BYTES, Incoming, Limits, MAGIC, Raw,
};
use staves_wire::memory::Action;
use staves_wire::service::Body;
use staves_wire::{Message, Opcode};

/// Small, so that they are met.
const LIMITS: Limits = Limits {
    message_bytes_max: 4096,
    unfinished_max: 3,
    unfinished_bytes_max: 6000,
};

/// Returns the number of decoded messages. The first byte chooses the mode: its lowest bit, whether checksums are put right
/// first (chance does not find them); the others, into reads of how many bytes the rest is cut.
pub fn frames(data: &[u8]) -> usize {
    let Some((how, rest)) = data.split_first() else {
        return 0;
    };
    let mut input = rest.to_vec();
    if how & 1 == 1 {
        repair(&mut input);
    }
    let whole = decode(&input, input.len().max(1));
    let pieces = decode(&input, usize::from(how >> 1) + 1);
    assert_eq!(whole, pieces, "the same, however it was cut into reads");
    let messages = whole.0.into_iter();
    messages.filter(look_into).count()
}

/// Makes sound frames of the bytes: magic, format, a length that fits, checksums.
fn repair(bytes: &mut [u8]) {
    let mut at = 0;
    while bytes.len() - at >= HEADER_BYTES {
        let (header, rest) = bytes[at..].split_at_mut(HEADER_BYTES);
        header[..4].copy_from_slice(&MAGIC);
        header[4] = FRAME_FORMAT;
        let len = u16::from_le_bytes([header[28], header[29]]);
        let len = usize::from(len).min(rest.len());
        header[28..32].copy_from_slice(&(len as u32).to_le_bytes());
        header[32..36].copy_from_slice(&crc32c::crc32c(&rest[..len]).to_le_bytes());
        let crc = crc32c::crc32c(&header[..36]);
        header[36..40].copy_from_slice(&crc.to_le_bytes());
        at += HEADER_BYTES + len;
    }
}

/// The decoder's output for reads of so many bytes, and the error that ended it.
fn decode(input: &[u8], read_bytes: usize) -> (Vec<Incoming>, Option<FrameError>) {
    let mut decoder = Decoder::new(LIMITS);
    let mut buffer = BytesMut::new();
    let mut all = Vec::new();
    for read in input.chunks(read_bytes) {
        buffer.extend_from_slice(read);
        loop {
            match decoder.next(&mut buffer) {
                Ok(Some(incoming)) => all.push(incoming),
                Ok(None) => break,
                Err(error) => return (all, Some(error)),
            }
        }
        assert!(
            decoder.wanted() <= FRAME_BODY_MAX,
            "no more than a frame is waited for"
        );
    }
    (all, None)
}

/// Looks into a message; whether it was one. One that decodes encodes to bytes that decode alike.
fn look_into(incoming: &Incoming) -> bool {
    let Incoming::Message(Raw { header, body }) = incoming else {
        return false;
    };
    assert!(body.len() <= LIMITS.message_bytes_max, "beyond the limit");
    let Some(opcode) = Opcode::from_number(header.opcode) else {
        return false;
    };
    let Ok(message) = Message::decode(opcode, header.epoch, body.clone()) else {
        return false;
    };
    assert_eq!(message.opcode(), opcode);
    let mut again = BytesMut::new();
    message.put_body(&mut again);
    // Behind what it is made of there may have been a newer version's fields.
    let back = Message::decode(opcode, header.epoch, again.freeze());
    assert_eq!(back.as_ref(), Ok(&message));
    if let Message::Service(request) = &message {
        request.ops.iter().for_each(|op| look_into_body(&op.body));
    }
    true
}

/// A body that is an operation of a service is the only one that is this operation.
fn look_into_body(body: &Body) {
    if let Ok(op) = Op::from_body(body) {
        assert_eq!(op.to_body(), *body);
    }
    if let Ok(action) = Action::from_body(body) {
        assert_eq!(action.into_body(&mut BytesMut::new()), *body);
    }
}
