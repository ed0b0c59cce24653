//! The messages of a newer node at one of this version. `newer.txt` holds bytes as the rules of
//! `docs/PROTOCOL.md` ("Compatibility") let a newer version write them: recorded, not made by this program,
//! so that they stay what they are. A line is never changed; a rule that is added brings lines.

use bytes::BytesMut;
use staves_model::{ClusterId, NodeId, Revision};
use staves_wire::frame::{Decoder, FrameError, HEADER_BYTES, Header, Incoming, Limits, Raw};
use staves_wire::memory::Action;
use staves_wire::service::Answer;
use staves_wire::{DecodeError, ErrorCode, Message, Opcode};

use crate::golden::{all, encoded};

const FILE: &str = include_str!("newer.txt");

/// The recorded bytes of that name, as one message that came whole.
fn raw(name: &str) -> Raw {
    let line = FILE.lines().find_map(|line| line.strip_prefix(name));
    let hex = line.and_then(|rest| rest.strip_prefix(' '));
    let hex = hex.unwrap_or_else(|| panic!("newer.txt has no line '{name}'"));
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("two hex digits");
    let mut bytes: BytesMut = (0..hex.len()).step_by(2).map(byte).collect();
    let incoming = Decoder::new(Limits::default()).next(&mut bytes);
    assert!(bytes.is_empty(), "{name}: the frame was taken whole");
    match incoming {
        Ok(Some(Incoming::Message(raw))) => raw,
        other => panic!("{name}: {other:?}"),
    }
}

fn decode(name: &str) -> Result<Message, DecodeError> {
    let raw = raw(name);
    let opcode = Opcode::from_number(raw.header.opcode).expect("an opcode of this version");
    Message::decode(opcode, raw.header.epoch, raw.body)
}

#[test]
fn a_hello_that_offers_more_is_read_whatever_it_offers() {
    for (name, min, max) in [("hello-of-1-to-2", 1, 2), ("hello-of-2-to-3", 2, 3)] {
        let Ok(Message::Hello(hello)) = decode(name) else {
            panic!("{name} is a hello")
        };
        assert_eq!((hello.version_min, hello.version_max), (min, max), "{name}");
        assert_eq!(hello.cluster, ClusterId(0x1122_3344_5566_7788));
        assert_eq!((hello.node, hello.features), (NodeId(4), 1));
    }
}

#[test]
fn fields_behind_the_last_one_are_skipped() {
    assert!(
        matches!(decode("welcome-with-a-field-more"), Ok(Message::Welcome(w)) if w.in_flight_max == 64)
    );
    assert!(
        matches!(decode("pong-with-a-field-more"), Ok(Message::Pong(p)) if p.node == NodeId(3))
    );
    assert_eq!(decode("done-with-a-field"), Ok(Message::Done));
    assert!(
        matches!(decode("service-with-a-field-more"), Ok(Message::Service(s)) if s.ops.len() == 1 && s.revision == Revision(6))
    );
    // The same of every message there is, but one: a batch of group messages ends where its bytes do.
    for (name, message) in all() {
        let mut body = encoded(&message).split_off(HEADER_BYTES);
        body.extend_from_slice(&[0xEE; 9]);
        let back = Message::decode(message.opcode(), message.epoch(), body.freeze());
        match message {
            Message::Group(_) => assert!(back.is_err(), "{name}"),
            _ => assert_eq!(back, Ok(message), "{name}"),
        }
    }
}

#[test]
fn an_unknown_error_code_promises_nothing_and_keeps_its_text() {
    let Ok(Message::Error(packet)) = decode("error-of-an-unknown-code") else {
        panic!("it is an error packet")
    };
    assert_eq!(packet.code, ErrorCode::Internal);
    assert!(!packet.code.nothing_done() && !packet.code.worth_retrying());
    assert_eq!(packet.text, "the lamp is out");
    let Ok(Message::ServiceAnswers(answers)) = decode("service-answers-with-an-unknown-code")
    else {
        panic!("it is answers")
    };
    let error = Answer::error(ErrorCode::Internal, "the lamp is out");
    assert_eq!(answers.answers, [Answer::Ok, error]);
    assert_eq!(answers.draw_above, 7);
}

#[test]
fn an_unknown_opcode_is_a_sound_frame_of_a_message_to_refuse() {
    for (name, number, answer) in [
        ("an-unknown-request", 200, false),
        ("an-unknown-answer", 201, true),
    ] {
        let raw = raw(name);
        assert_eq!((raw.header.opcode, raw.is_answer()), (number, answer));
        assert_eq!(Opcode::from_number(number), None);
    }
}

#[test]
fn an_unknown_kind_inside_a_message_refuses_that_message() {
    // The sender must not say it to a version that does not have it; if it does, no guess is made.
    assert_eq!(
        decode("a-group-message-of-an-unknown-kind"),
        Err(DecodeError::Tag {
            what: "GroupMessage",
            tag: 99
        })
    );
}

#[test]
fn an_unknown_operation_of_a_service_is_refused_by_itself() {
    let Ok(Message::Service(request)) = decode("service-with-an-unknown-memory-operation") else {
        panic!("it is a request")
    };
    let actions = request.ops.iter().map(|op| Action::from_body(&op.body));
    let actions: Vec<_> = actions.collect();
    let unknown = DecodeError::Tag {
        what: "a memory operation",
        tag: 99,
    };
    assert_eq!(
        actions,
        [
            Err(unknown),
            Ok(Action::Fence {
                image: 0,
                session: 5
            })
        ]
    );
}

#[test]
fn another_frame_format_and_unknown_flags_end_the_connection() {
    let sound = raw("done-with-a-field").header;
    let next = |header: Header| {
        let mut bytes = BytesMut::from(&header.encode()[..]);
        Decoder::new(Limits::default()).next(&mut bytes)
    };
    let format = Header { format: 2, ..sound };
    assert_eq!(next(format), Err(FrameError::Format(2)));
    let flags = Header { flags: 6, ..sound };
    assert_eq!(next(flags), Err(FrameError::Flags(6)));
}
