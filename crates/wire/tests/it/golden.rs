//! Golden bytes: what is on the wire today is on it for good. A line of `golden.txt` changes only
//! with a new version; then run the test with `STAVES_BLESS=1` and look at the difference.

use bytes::BytesMut;
use staves_wire::frame::{self, Decoder, Envelope, Incoming, Limits};
use staves_wire::{Kind, Message, Opcode};

use crate::sample::{Rng, kinds, message};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/golden.txt");

/// Every message in every kind that it has, with a name.
pub fn all() -> Vec<(String, Message)> {
    let kinds_of = |opcode: Opcode| (0..kinds(opcode)).map(move |kind| (opcode, kind));
    let named = |(opcode, kind): (Opcode, u64)| {
        let mut rng = Rng::new(u64::from(opcode as u8) * 1000 + kind);
        (
            format!("{}.{kind}", opcode.word()),
            message(&mut rng, opcode, kind),
        )
    };
    Opcode::ALL
        .iter()
        .copied()
        .flat_map(kinds_of)
        .map(named)
        .collect()
}

/// As one frame.
pub fn encoded(message: &Message) -> BytesMut {
    let mut out = BytesMut::new();
    let answer = message.opcode().kind() == Kind::Answer;
    let deadline_ms = if answer { 0 } else { 5000 };
    let envelope = Envelope {
        request: 0x0807_0605_0403_0201,
        answer,
        deadline_ms,
    };
    frame::encode(envelope, message, &mut out);
    out
}

/// Back from a frame.
pub fn decoded(mut bytes: BytesMut) -> Message {
    let mut decoder = Decoder::new(Limits::default());
    let incoming = decoder.next(&mut bytes).expect("the frame is sound");
    assert!(bytes.is_empty(), "the frame was taken whole");
    let Some(Incoming::Message(raw)) = incoming else {
        panic!("a whole message, not {incoming:?}")
    };
    let opcode = Opcode::from_number(raw.header.opcode).expect("an opcode that is known");
    Message::decode(opcode, raw.header.epoch, raw.body).expect("the body decodes")
}

#[test]
fn every_message_keeps_its_bytes() {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let mut now = String::new();
    for (name, message) in all() {
        now.push_str(&format!("{name} {}\n", hex(&encoded(&message))));
    }
    if std::env::var_os("STAVES_BLESS").is_some() {
        std::fs::write(FILE, &now).expect("golden.txt can be written");
    }
    let golden = std::fs::read_to_string(FILE).expect("golden.txt can be read");
    for (was, is) in golden.lines().zip(now.lines()) {
        assert_eq!(
            was, is,
            "the wire changed: that needs a new version (see the top of golden.rs)"
        );
    }
    assert_eq!(
        golden.lines().count(),
        now.lines().count(),
        "a message came or went"
    );
}

#[test]
fn every_message_comes_back_as_it_went() {
    for (name, message) in all() {
        assert_eq!(decoded(encoded(&message)), message, "{name}");
    }
    for seed in 0..300 {
        for &opcode in Opcode::ALL {
            let mut rng = Rng::new(seed);
            let kind = rng.below(kinds(opcode));
            let message = message(&mut rng, opcode, kind);
            let bytes = encoded(&message);
            let back = decoded(bytes.clone());
            assert_eq!(back, message, "seed {seed}, {opcode:?}");
            assert_eq!(
                encoded(&back),
                bytes,
                "one value, one encoding: seed {seed}, {opcode:?}"
            );
        }
    }
}

#[test]
fn opcodes_and_codes_are_each_others_numbers() {
    for &opcode in Opcode::ALL {
        assert_eq!(Opcode::from_number(opcode as u8), Some(opcode));
        assert!((1..=frame::VERSION_MAX).contains(&opcode.since()));
    }
    for reserved in [54, 55, 56, 57, 58, 60, 61, 62] {
        assert_eq!(Opcode::from_number(reserved), None);
    }
    for &code in staves_wire::ErrorCode::ALL {
        assert_eq!(staves_wire::ErrorCode::from_number(code as u16), Some(code));
    }
}

#[test]
fn answers_are_kept_as_bytes() {
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let answer = crate::sample::answer(&mut rng, seed % 5);
        let bytes = answer.to_bytes();
        assert_eq!(staves_wire::service::Answer::from_bytes(bytes), Ok(answer));
    }
}

#[test]
fn a_map_is_sent_only_to_who_has_an_older_one_and_is_not_trusted() {
    use staves_model::{ClusterMap, Revision};
    use staves_wire::directory::MapAnswer;
    let map = ClusterMap {
        revision: Revision(7),
        ..ClusterMap::default()
    };
    let answer = MapAnswer::new(&map, Revision(6));
    assert_eq!(answer.read(), Ok(Some(map.clone())));
    assert_eq!(MapAnswer::new(&map, Revision(7)).read(), Ok(None));
    let bytes = answer.map.expect("it is newer");
    for len in 0..bytes.len() {
        let cut = MapAnswer {
            revision: Revision(7),
            map: Some(bytes.slice(..len)),
        };
        assert!(cut.read().is_err(), "cut to {len}");
    }
}
