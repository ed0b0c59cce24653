//! Bytes that nobody of good will sent.

use bytes::{Bytes, BytesMut};
use staves_model::{
    ClusterMap, Epoch, Group, GroupId, Incarnation, LastOpen, Member, MemberId, MemberSlot, NodeId,
    PoolId, Revision, ServiceId,
};
use staves_wire::cache::Op;
use staves_wire::directory::MapAnswer;
use staves_wire::frame::{Decoder, FrameError, HEADER_BYTES, Incoming, Limits};
use staves_wire::memory::Action;
use staves_wire::service::{Body, NumberedOp};
use staves_wire::{DecodeError, Message, Opcode};

use crate::golden::{all, encoded};
use crate::sample::Rng;

#[test]
fn every_truncation_of_every_body_is_refused() {
    for (name, message) in all() {
        let body = encoded(&message).split_off(HEADER_BYTES).freeze();
        // A batch of group messages cut between two of them is a shorter batch, and sound.
        let step = (body.len() / 500).max(1);
        for len in (0..body.len()).step_by(step) {
            let cut = Message::decode(message.opcode(), 0, body.slice(..len));
            let sound = match (&message, &cut) {
                (Message::Group(_), Ok(Message::Group(_))) => true,
                // As versions 5 and 6 wrote it: without its last fields.
                (Message::Service(_), Ok(Message::Service(cut))) => {
                    let fifth = len + 5 == body.len() && cut.answer_bytes_max == 0;
                    (fifth || len + 1 == body.len()) && !cut.strict
                }
                (Message::ServiceAnswers(_), Ok(Message::ServiceAnswers(cut))) => {
                    len + 4 == body.len() && cut.needs_bytes == 0
                }
                _ => false,
            };
            assert!(
                cut.is_err() || sound,
                "{name} cut to {len} of {}",
                body.len()
            );
        }
    }
}

/// The bodies of operations are the services' own: a node passes them on unread, so each service checks them.
#[test]
fn a_body_that_is_no_operation_is_refused() {
    let from = |head: &[u8], payload: &'static [u8]| {
        let head = Bytes::copy_from_slice(head);
        let payload = Bytes::from_static(payload);
        Body { head, payload }
    };
    for (_, message) in all() {
        let Message::Service(request) = message else {
            continue;
        };
        for NumberedOp { body, .. } in request.ops {
            let decode = |body: &Body| match request.service {
                ServiceId::CACHE => Op::from_body(body).map(drop),
                _ => Action::from_body(body).map(drop),
            };
            assert_eq!(decode(&body), Ok(()));
            assert!(decode(&from(&[], b"")).is_err());
            assert!(decode(&from(&[99, 0, 0, 0, 0, 0, 0, 0, 0], b"")).is_err());
        }
    }
    // Bytes for an operation that takes none; a condition and a yes or no that there are not.
    for (head, payload) in [
        (&[0, b'k'][..], &b"v"[..]),
        (&[1, 3, 0, b'k'], b""),
        (&[1, 0, 2, b'k'], b""),
        (&[4, 1, 2, 3], b""),
    ] {
        assert!(Op::from_body(&from(head, payload)).is_err(), "{head:?}");
    }
    for (head, payload) in [
        (&[0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0][..], &b"v"[..]),
        (&[0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0], b""),
        (&[1, 0, 0, 0, 0, 0, 0, 0, 0, 1], b"v"),
        (&[3, 0, 0, 0, 0, 0, 0, 0], b""),
        (&[8, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], b"v"),
        (&[8, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0], b""),
    ] {
        assert!(Action::from_body(&from(head, payload)).is_err(), "{head:?}");
    }
}

#[test]
fn flipped_bits_never_panic_and_random_bytes_neither() {
    let mut rng = Rng::new(7);
    for (_, message) in all() {
        let body = encoded(&message).split_off(HEADER_BYTES);
        for _ in 0..400 {
            let mut bad = body.to_vec();
            for _ in 0..=rng.below(3) {
                if let Some(at) = (rng.next() as usize).checked_rem(bad.len()) {
                    bad[at] ^= 1 << rng.below(8);
                }
            }
            let _ = Message::decode(message.opcode(), rng.next(), bad.into());
        }
    }
    for _ in 0..20_000 {
        let len = rng.below(200);
        let body: Bytes = (0..len).map(|_| rng.next() as u8).collect();
        let opcode = Opcode::ALL[rng.below(Opcode::ALL.len() as u64) as usize];
        let _ = Message::decode(opcode, 0, body);
    }
}

#[test]
fn a_flipped_bit_of_a_frame_is_always_seen() {
    for (name, message) in all() {
        let whole = encoded(&message);
        let bits = whole.len() * 8;
        for bit in (0..bits).step_by((bits / 400).max(1)) {
            let mut bad = whole.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let result = Decoder::new(Limits::default()).next(&mut bad);
            assert!(
                result.is_err(),
                "{name}: bit {bit} flipped, and it was taken"
            );
        }
    }
}

#[test]
fn no_frame_is_made_of_anything_else() {
    let mut rng = Rng::new(11);
    for _ in 0..2000 {
        let len = HEADER_BYTES as u64 + rng.below(100);
        let mut bytes: BytesMut = (0..len)
            .map(|_| rng.next() as u8)
            .collect::<Vec<u8>>()
            .as_slice()
            .into();
        let result = Decoder::new(Limits::default()).next(&mut bytes);
        assert!(matches!(result, Err(FrameError::Magic(_))), "{result:?}");
    }
    let mut http =
        BytesMut::from(&b"GET / HTTP/1.1\r\nHost: 127.0.0.1:1600\r\nAccept: */*\r\n\r\n"[..]);
    let error = Decoder::new(Limits::default())
        .next(&mut http)
        .expect_err("not a frame");
    assert!(error.to_string().contains("native port"), "{error}");
    for (answer, port) in [
        (
            &b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"[..],
            "admin port",
        ),
        (
            b"-ERR unknown command, with a text as long as a header\r\n",
            "RESP port",
        ),
    ] {
        let mut answer = BytesMut::from(answer);
        let error = Decoder::new(Limits::default()).next(&mut answer);
        let error = error.expect_err("not a frame").to_string();
        assert!(error.contains(port), "{error}");
    }
}

#[test]
fn a_count_that_the_bytes_cannot_fill_reserves_nothing() {
    // A list of evidence that claims four thousand million entries, in 36 bytes.
    let mut body = vec![0; 16];
    body.extend_from_slice(&u32::MAX.to_le_bytes());
    body.extend_from_slice(&[0; 16]);
    let error = Message::decode(Opcode::Report, 0, body.into()).expect_err("too few bytes");
    assert!(matches!(error, DecodeError::Truncated { .. }), "{error}");
    // More operations than a batch may have.
    let mut body = vec![0; 1 + 5 + 8 + 8 + 2];
    body.extend_from_slice(&70_000_u32.to_le_bytes());
    body.extend_from_slice(&vec![0; 70_000 * 19]);
    let error = Message::decode(Opcode::Service, 0, body.into()).expect_err("too many operations");
    assert!(
        matches!(error, DecodeError::TooMany { len: 70_000, .. }),
        "{error}"
    );
}

#[test]
fn a_partial_frame_waits_for_the_rest() {
    for (name, message) in all().into_iter().step_by(3) {
        let whole = encoded(&message);
        let mut decoder = Decoder::new(Limits::default());
        let mut buffer = BytesMut::new();
        let mut got = None;
        for byte in whole.iter().take(3000) {
            assert!(got.is_none(), "{name}");
            buffer.extend_from_slice(&[*byte]);
            got = decoder.next(&mut buffer).expect("sound so far");
        }
        if whole.len() <= 3000 {
            assert!(matches!(got, Some(Incoming::Message(_))), "{name}");
        }
    }
}

/// An epoch that opened narrower than the one before it: the map was taken for broken by everybody who
/// read it, as soon as a bucket had moved to a slot beyond its new width.
#[test]
fn a_group_that_opened_narrower_than_before_is_sound() {
    let member = |node| {
        Some(Member {
            id: MemberId::new(NodeId(node), Incarnation(node)),
            complete: true,
        })
    };
    let mut group = Group {
        id: GroupId(1),
        pool: PoolId(1),
        bucket: 0,
        m: 1,
        epoch: Epoch(3),
        open: true,
        coordinator: MemberSlot(0),
        members: vec![member(4), member(2)],
        // Of four members, the last now comes first.
        kept: vec![Some(MemberSlot(3)), Some(MemberSlot(1))],
        fresh: false,
        last_open: LastOpen {
            epoch: Epoch(3),
            members: vec![member(4), member(2)],
        },
        lost: false,
        revision: Revision(9),
    };
    let read = |group: &Group| {
        let mut map = ClusterMap {
            revision: Revision(9),
            ..ClusterMap::default()
        };
        map.groups.insert(group.id, group.clone());
        MapAnswer::new(&map, Revision(0)).read()
    };
    assert!(read(&group).is_ok_and(|map| map.is_some()));
    group.open = false;
    let error = read(&group).expect_err("while it is not open, its sources are looked up there");
    assert!(error.to_string().contains("last open epoch"), "{error}");
}
