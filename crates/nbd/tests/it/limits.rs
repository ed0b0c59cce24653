//! Each limit of the handshake, reached.

use bytes::{BufMut, BytesMut};
use staves_nbd::{
    ANSWERS_BYTES_MAX, Export, Exports, Handshake, HandshakeStep, LIST_BYTES_MAX, ListedExport,
    OPTION_BYTES_MAX, OPTION_SKIP_BYTES_MAX, OPTIONS_MAX, OpenError, ProtocolError,
    STRING_BYTES_MAX,
};

use crate::hex::refusal;
use crate::shared::{Shelf, asked, converse, option};

const TOO_BIG: u32 = 9;

/// The head of an option with data of this length.
fn head(number: u32, bytes: usize) -> Vec<u8> {
    let mut head = b"IHAVEOPT".to_vec();
    head.put_u32(number);
    head.put_u32(bytes as u32);
    head
}

#[test]
fn the_longest_option_is_read_and_a_longer_one_skipped() {
    let flags = vec![0, 0, 0, 3];
    let list = option(3, b"x");
    let longest = option(77, &vec![0; OPTION_BYTES_MAX]);
    let longer = option(77, &vec![0; OPTION_BYTES_MAX + 1]);
    let stream = [flags, longest, longer, list].concat();
    let expected = [
        refusal(77, 1, "this server does not know the option 77"),
        refusal(77, TOO_BIG, "the option's data is too long; send less"),
        refusal(3, 3, "this option has no data; send none"),
    ];
    for read_bytes in [1, 1000, usize::MAX] {
        let seen = converse(&stream, || read_bytes);
        assert_eq!((seen.answers, seen.error), (expected.concat(), None));
    }
}

#[test]
fn an_abort_with_much_data_is_an_abort() {
    let abort = option(2, &vec![0; OPTION_SKIP_BYTES_MAX]);
    let seen = converse(&[&[0, 0, 0, 3], &abort[..]].concat(), || 10_000);
    assert!(seen.aborted && seen.error.is_none());
}

#[test]
fn data_that_is_not_even_skipped_ends_the_connection() {
    for (number, bytes) in [
        (1, OPTION_BYTES_MAX + 1),
        (7, OPTION_SKIP_BYTES_MAX + 1),
        (2, u32::MAX as usize),
    ] {
        let seen = converse(&[vec![0, 0, 0, 3], head(number, bytes)].concat(), || 1);
        let error = ProtocolError::OptionTooLarge {
            option: number,
            bytes: bytes as u32,
        };
        assert_eq!(seen.error, Some(error));
    }
}

#[test]
fn options_are_counted() {
    let options = option(8, b"").repeat(OPTIONS_MAX as usize);
    let stream = [&[0, 0, 0, 3], &options[..]].concat();
    assert_eq!(converse(&stream, || 16).error, None);
    let seen = converse(&[stream, option(8, b"")].concat(), || 16);
    assert_eq!(seen.error, Some(ProtocolError::TooManyOptions(OPTIONS_MAX)));
}

#[test]
fn an_option_without_its_magic_number_ends_the_connection() {
    let seen = converse(b"\0\0\0\x03GET / HTTP/1.1\r\n", || 1);
    let magic = u64::from_be_bytes(*b"GET / HT");
    assert_eq!(seen.error, Some(ProtocolError::OptionMagic(magic)));
}

#[test]
fn names_of_4096_bytes_are_asked_for() {
    for (bytes, kind) in [(STRING_BYTES_MAX, 6), (STRING_BYTES_MAX + 1, 3)] {
        let info = option(6, &asked(&vec![b'x'; bytes], &[]));
        let seen = converse(&[&[0, 0, 0, 3], &info[..]].concat(), || usize::MAX);
        assert_eq!(seen.answers[12..16], [0x80, 0, 0, kind]);
        assert!(seen.answers.len() <= 20 + STRING_BYTES_MAX);
    }
}

/// Exports with long names and descriptions.
struct Many {
    count: usize,
    name_bytes: usize,
}

impl Exports for Many {
    fn list(&self) -> Vec<ListedExport> {
        let listed = (0..self.count).map(|n| ListedExport {
            name: format!("{n:0>width$}", width = self.name_bytes),
            description: "é".repeat(5_000),
        });
        listed.collect()
    }

    fn open(&self, _name: &str) -> Result<Export, OpenError> {
        Ok(Export {
            size_bytes: u64::MAX,
            description: "é".repeat(5_000),
            read_only: false,
            multi_conn: false,
            block_preferred: 3_000,
            block_max: 1,
        })
    }
}

/// The outcome of one option, and its answer.
fn asked_of(exports: &Many, option: &[u8]) -> (HandshakeStep, BytesMut) {
    let (mut handshake, mut out) = (Handshake::new(), BytesMut::new());
    let mut input = BytesMut::from(&[&[0, 0, 0, 3], option].concat()[..]);
    let step = handshake.next(&mut input, exports, &mut out);
    (step.expect("no error"), out)
}

#[test]
fn lists_are_bounded() {
    // An entry is a head of 20 bytes, a length, a name and 4,096 bytes of description.
    let entry_bytes = 20 + 4 + 4_000 + STRING_BYTES_MAX;
    let count = LIST_BYTES_MAX / entry_bytes;
    let name_bytes = 4_000;
    let (_, out) = asked_of(&Many { count, name_bytes }, &option(3, b""));
    assert_eq!(out.len(), count * entry_bytes + 20);
    let count = count + 1;
    let (_, out) = asked_of(&Many { count, name_bytes }, &option(3, b""));
    let text = "there are more exports than a list can hold; open one by its name";
    assert_eq!(out, refusal(3, TOO_BIG, text));
    let name_bytes = STRING_BYTES_MAX + 1;
    let (_, out) = asked_of(&Many { count, name_bytes }, &option(3, b""));
    assert_eq!(out.len(), 20, "no client can ask for them");
}

#[test]
fn block_sizes_are_made_valid() {
    let exports = Many {
        count: 0,
        name_bytes: 0,
    };
    let (step, out) = asked_of(&exports, &option(7, &asked(b"", &[2, 3])));
    let sizes = [1u32, 4096, 4096].map(u32::to_be_bytes).concat();
    assert!(out.windows(12).any(|bytes| bytes == sizes));
    assert!(out.len() < 5_000, "a description is cut");
    let HandshakeStep::Began(transmission, name) = step else {
        panic!("{step:?}");
    };
    assert_eq!((transmission.block_max(), &name[..]), (4096, ""));
}

#[test]
fn answers_that_are_not_read_end_the_connection() {
    let exports = Many {
        count: 120,
        name_bytes: 4_000,
    };
    let (mut handshake, mut out) = (Handshake::new(), BytesMut::new());
    let lists = option(3, b"").repeat(100);
    let mut input = BytesMut::from(&[&[0, 0, 0, 3], &lists[..]].concat()[..]);
    let step = handshake.next(&mut input, &exports, &mut out);
    assert_eq!(step.expect_err("it ends"), ProtocolError::AnswersUnread);
    assert!(out.len() <= ANSWERS_BYTES_MAX + LIST_BYTES_MAX + 20);
}

#[test]
fn after_the_end_nothing_is_read() {
    let (mut handshake, mut out) = (Handshake::new(), BytesMut::new());
    let mut input = BytesMut::from(&[&[0, 0, 0, 3], &option(2, b"")[..]].concat()[..]);
    for _ in 0..2 {
        let step = handshake.next(&mut input, &Shelf, &mut out);
        assert!(matches!(step, Ok(HandshakeStep::Ended)), "{step:?}");
        input.extend_from_slice(&option(3, b""));
    }
    assert_eq!(out.len(), 20, "one answer");
}
