//! Large messages: cut into frames, put together again, refused beyond the limits.

use bytes::{Bytes, BytesMut};
use staves_model::{ClusterId, Incarnation, NodeId};
use staves_wire::admin::StatusAnswer;
use staves_wire::frame::{
    self, Decoder, Envelope, FLAG_MORE, FRAME_BODY_MAX, FrameError, HEADER_BYTES, Header, Incoming,
    Limits, VERSION_MAX, VERSION_MIN,
};
use staves_wire::hello::{Hello, Role};
use staves_wire::{Message, Opcode};

fn large(len: usize, fill: u8) -> Message {
    Message::StatusAnswer(StatusAnswer {
        json: Bytes::from(vec![fill; len]),
    })
}

fn frames(request: u64, message: &Message) -> Vec<BytesMut> {
    let mut out = BytesMut::new();
    frame::encode(
        Envelope {
            request,
            ..Default::default()
        },
        message,
        &mut out,
    );
    let mut all = Vec::new();
    while !out.is_empty() {
        let header = Header::decode(out.first_chunk().expect("a header")).expect("sound");
        all.push(out.split_to(HEADER_BYTES + header.body_len as usize));
    }
    all
}

fn message_of(incoming: Incoming) -> Message {
    let Incoming::Message(raw) = incoming else {
        panic!("{incoming:?}")
    };
    Message::decode(Opcode::StatusAnswer, 0, raw.body).expect("decodes")
}

fn feed(decoder: &mut Decoder, frames: impl IntoIterator<Item = BytesMut>) -> Vec<Incoming> {
    let mut all = Vec::new();
    for mut frame in frames {
        all.extend(decoder.next(&mut frame).expect("sound"));
        assert!(frame.is_empty());
    }
    all
}

#[test]
fn x1_large_messages_stream_in_frames_that_others_may_pass() {
    let (a, b) = (large(3 << 20, 1), large((2 << 20) + 17, 2));
    let (a_frames, b_frames) = (frames(1, &a), frames(2, &b));
    assert_eq!((a_frames.len(), b_frames.len()), (4, 3));
    let mut mixed = Vec::new();
    let (mut left, mut right) = (a_frames.into_iter(), b_frames.into_iter());
    for _ in 0..4 {
        mixed.extend(left.next());
        mixed.extend(right.next());
        mixed.extend(frames(3, &Message::Status));
    }
    let mut decoder = Decoder::new(Limits::default());
    let mut got = feed(&mut decoder, mixed);
    got.retain(
        |x| matches!(x, Incoming::Message(raw) if raw.header.opcode != Opcode::Status as u8),
    );
    let got: Vec<Message> = got.into_iter().map(message_of).collect();
    assert!(got == [b, a], "both came whole, the shorter first");
}

#[test]
fn an_edge_of_a_frame_is_not_an_edge_of_a_message() {
    // The body is the JSON and its 4-byte length.
    for len in [
        FRAME_BODY_MAX - 5,
        FRAME_BODY_MAX - 4,
        FRAME_BODY_MAX - 3,
        2 * FRAME_BODY_MAX - 4,
    ] {
        let message = large(len, 9);
        let cut = frames(1, &message);
        assert_eq!(cut.len(), (len + 4).div_ceil(FRAME_BODY_MAX));
        let got = feed(&mut Decoder::new(Limits::default()), cut);
        assert!(got.into_iter().map(message_of).eq([message]), "{len}");
    }
}

#[test]
fn a_message_beyond_the_limit_is_refused_once_and_harms_no_other() {
    let limits = Limits {
        message_bytes_max: 2 << 20,
        ..Limits::default()
    };
    let mut decoder = Decoder::new(limits);
    let got = feed(&mut decoder, frames(7, &large(5 << 20, 1)));
    assert_eq!(got.len(), 1, "refused once, its further frames thrown away");
    assert!(
        matches!(&got[0], Incoming::TooLarge { header, bytes_max: 2_097_152 } if header.request == 7)
    );
    let well = large(1 << 20, 2);
    let got = feed(&mut decoder, frames(8, &well));
    assert!(got.into_iter().map(message_of).eq([well]));
}

/// A message is given up once, at whatever byte; its rest is thrown away, and those beside it come whole.
#[test]
fn a_message_that_is_given_up_harms_no_other() {
    let (one, two) = (large(FRAME_BODY_MAX / 2, 1), large(5 << 19, 2));
    for message in [&one, &two] {
        let stream = [frames(7, message), frames(8, &one)].concat().concat();
        let len = stream.len() - frames(8, &one).concat().len();
        for at in [HEADER_BYTES, HEADER_BYTES + 1, len / 3, len / 2, len - 1] {
            let mut decoder = Decoder::new(Limits::default());
            let mut buffer = BytesMut::from(&stream[..at]);
            assert_eq!(decoder.next(&mut buffer), Ok(None));
            let Some(Incoming::GivenUp(header)) = decoder.give_up() else {
                panic!("a message has begun at {at}");
            };
            assert_eq!((header.request, decoder.unfinished_bytes()), (7, 0));
            buffer.extend_from_slice(&stream[at..]);
            let mut got = Vec::new();
            while let Some(incoming) = decoder.next(&mut buffer).expect("sound") {
                got.push(incoming);
            }
            assert!(got.into_iter().map(message_of).eq([one.clone()]), "{at}");
            assert_eq!(decoder.give_up(), None);
        }
    }
}

/// Regression: further frames of a message that was given up were awaited whole, for which there was no memory either, and it was given
/// up again with each.
#[test]
fn frames_of_what_was_given_up_are_not_awaited_whole() {
    let (one, two) = (large(1000, 1), large(9 << 19, 2));
    let stream = frames(7, &two).concat();
    let mut buffer = BytesMut::from(&stream[..HEADER_BYTES + 1]);
    let mut decoder = Decoder::new(Limits::default());
    assert_eq!(decoder.next(&mut buffer), Ok(None));
    assert!(matches!(decoder.give_up(), Some(Incoming::GivenUp(_))));
    for piece in stream[HEADER_BYTES + 1..].chunks(1000) {
        buffer.extend_from_slice(piece);
        assert_eq!(decoder.next(&mut buffer), Ok(None));
        assert_eq!(decoder.wanted(), HEADER_BYTES);
        assert!(buffer.len() < HEADER_BYTES);
    }
    let got = feed(&mut decoder, frames(7, &one));
    assert!(
        got.into_iter().map(message_of).eq([one]),
        "the number is free"
    );
}

#[test]
fn messages_that_fit_a_frame_by_their_kind_are_not_put_together_from_more() {
    let piece = vec![0; FRAME_BODY_MAX];
    let header = |flags| Header {
        format: 1,
        opcode: Opcode::GetMap as u8,
        flags,
        request: 1,
        epoch: 0,
        deadline_ms: 0,
        body_len: piece.len() as u32,
        body_crc: crc32c::crc32c(&piece),
    };
    let frame = |flags| BytesMut::from(&[&header(flags).encode()[..], &piece].concat()[..]);
    let got = feed(
        &mut Decoder::new(Limits::default()),
        [frame(FLAG_MORE), frame(0)],
    );
    assert!(
        matches!(got[..], [Incoming::TooLarge { .. }]),
        "{}",
        got.len()
    );
}

#[test]
fn what_is_unfinished_is_bounded_in_number_and_bytes() {
    let limits = Limits {
        message_bytes_max: 8 << 20,
        unfinished_max: 3,
        unfinished_bytes_max: 3 << 20,
    };
    let first = |request| frames(request, &large(5 << 20, 1)).remove(0);
    let mut decoder = Decoder::new(limits);
    assert!(feed(&mut decoder, (0..3).map(first)).is_empty());
    let error = decoder
        .next(&mut first(3))
        .expect_err("a fourth is too many");
    assert_eq!(error, FrameError::Unfinished(3));

    // Each would fit by itself; together they do not, and the one that reaches the bound gives way.
    let mut decoder = Decoder::new(limits);
    let (mut a, mut b) = (frames(1, &large(5 << 19, 1)), frames(2, &large(5 << 19, 2)));
    assert!(feed(&mut decoder, a.drain(..2).chain(b.drain(..1))).is_empty());
    let got = feed(&mut decoder, b);
    assert!(matches!(&got[..], [Incoming::TooLarge { header, .. }] if header.request == 2));
    assert_eq!(feed(&mut decoder, a).len(), 1, "the other comes through");
}

#[test]
fn frames_of_different_messages_do_not_mix() {
    let mut decoder = Decoder::new(Limits::default());
    assert!(feed(&mut decoder, [frames(1, &large(2 << 20, 1)).remove(0)]).is_empty());
    let mut other = BytesMut::new();
    frame::encode(
        Envelope {
            request: 1,
            ..Default::default()
        },
        &Message::Status,
        &mut other,
    );
    let error = decoder
        .next(&mut other)
        .expect_err("another opcode under the same id");
    assert_eq!(error, FrameError::Continuation { request: 1 });
}

#[test]
fn errors_say_what_to_do() {
    let mut frame = frames(1, &Message::Status).remove(0);
    let mut header = Header::decode(frame.first_chunk().expect("a header")).expect("sound");
    header.format = 9;
    frame[..HEADER_BYTES].copy_from_slice(&header.encode());
    let error = Decoder::new(Limits::default())
        .next(&mut frame)
        .expect_err("format 9");
    assert_eq!(
        error.to_string(),
        "the other side's frames have the format 9, this one's 1: update the older one"
    );
}

/// Regression: the hello's empty credentials, its last field, held on to all that the hello had come in: 16 KiB of each connection.
#[test]
fn a_field_without_bytes_holds_on_to_no_frame() {
    let hello = Hello {
        cluster: ClusterId(1),
        node: NodeId(0),
        incarnation: Incarnation(0),
        role: Role::Client,
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        features: 0,
        credentials: Bytes::new(),
    };
    let mut body = BytesMut::new();
    Message::Hello(hello).put_body(&mut body);
    let body = body.freeze();
    let hello = Message::decode(Opcode::Hello, 0, body.clone());
    assert!(body.is_unique(), "{hello:?}");
}
