//! Each option of the handshake, byte by byte.

use bytes::BytesMut;
use staves_nbd::{Handshake, ProtocolError};

use crate::hex::{hex, refusal};
use crate::shared::{Conversation, asked, contexts, converse, option};

const ACK_8: &str = "0003e889045565a9 00000008 00000001 00000000";
const UNSUP: u32 = 1;
const POLICY: u32 = 2;
const INVALID: u32 = 3;
const UNKNOWN: u32 = 6;
const SHUTDOWN: u32 = 7;

/// The outcome of options behind a client's flags of 3.
fn after_flags(options: &[u8]) -> Conversation {
    converse(&[&[0, 0, 0, 3], options].concat(), || usize::MAX)
}

/// The answers to options that neither choose an export nor end anything.
fn answers(options: &[u8]) -> Vec<u8> {
    let seen = after_flags(options);
    assert_eq!(
        (seen.chosen, seen.aborted, seen.error),
        (None, false, None),
        "the handshake goes on"
    );
    seen.answers
}

/// The choice that was made: the export, whether replies are structured, whether metadata was agreed on.
fn chosen(name: &str, structured: bool, allocation: bool) -> Option<(String, bool, bool)> {
    Some((name.to_owned(), structured, allocation))
}

#[test]
fn the_greeting_offers_the_fixed_newstyle_without_zeroes() {
    let mut out = BytesMut::new();
    Handshake::new().greeting(&mut out);
    assert_eq!(out, hex("'NBDMAGICIHAVEOPT' 0003"));
}

#[test]
fn flags_that_were_not_offered_end_the_connection() {
    for flags in [[0, 0, 0, 4], [0x80, 0, 0, 3]] {
        let error = ProtocolError::ClientFlags(u32::from_be_bytes(flags));
        assert_eq!(converse(&flags, || 1).error, Some(error));
    }
    assert_eq!(converse(&[0; 4], || 1), Conversation::default());
}

#[test]
fn export_name_is_answered_by_size_and_flags() {
    let asks = hex("49484156454f5054 00000001 00000004 'disk'");
    let seen = after_flags(&asks);
    // HAS_FLAGS, FLUSH, FUA, TRIM, WRITE_ZEROES, MULTI_CONN, CACHE, FAST_ZERO.
    assert_eq!(seen.answers, hex("0000000000002710 0d6d"));
    assert_eq!(seen.chosen, chosen("disk", false, false));

    let seen = converse(&[&[0, 0, 0, 1], &asks[..]].concat(), || usize::MAX);
    let mut with_zeroes = hex("0000000000002710 0d6d");
    with_zeroes.extend([0; 124]);
    assert_eq!(seen.answers, with_zeroes);

    let structured = [option(8, b""), option(1, b"rom")].concat();
    let seen = after_flags(&structured);
    // HAS_FLAGS, READ_ONLY, FLUSH, FUA, DF, CACHE.
    let expected = [hex(ACK_8), hex("0000000000002710 048f")].concat();
    assert_eq!(seen.answers, expected);
    assert_eq!(seen.chosen, chosen("rom", true, false));
}

#[test]
fn export_name_has_no_answer_for_an_export_that_is_not_there() {
    for (name, text) in [
        (
            &b"none"[..],
            "there is no export \"none\"; list the exports",
        ),
        (b"locked", "a key is needed"),
        (b"\xff", "an export's name is UTF-8 without zero bytes"),
        (&[b'x'; 4097], "an export's name has 4096 bytes at most"),
    ] {
        let seen = after_flags(&option(1, name));
        assert_eq!(seen.error, Some(ProtocolError::ExportName(text.to_owned())));
        assert!(seen.answers.is_empty() && seen.chosen.is_none());
    }
}

#[test]
fn abort_is_acknowledged_and_ends_the_handshake() {
    for data in [&b""[..], b"bye"] {
        let seen = after_flags(&[option(2, data), option(3, b"")].concat());
        let ack = hex("0003e889045565a9 00000002 00000001 00000000");
        assert_eq!((seen.answers, seen.aborted), (ack, true));
    }
}

#[test]
fn list_names_the_exports() {
    let expected = hex(
        "0003e889045565a9 00000003 00000002 0000000e 00000004 'diska disk'
        0003e889045565a9 00000003 00000002 00000007 00000003 'rom'
        0003e889045565a9 00000003 00000001 00000000",
    );
    assert_eq!(
        answers(&hex("49484156454f5054 00000003 00000000")),
        expected
    );
    let text = "this option has no data; send none";
    assert_eq!(answers(&option(3, b"x")), refusal(3, INVALID, text));
}

#[test]
fn tls_that_is_off_is_refused_and_unknown_options_are() {
    let text = "this server has no TLS; connect without it";
    assert_eq!(answers(&option(5, b"")), refusal(5, POLICY, text));
    let text = "this option has no data; send none";
    assert_eq!(answers(&option(5, b"x")), refusal(5, INVALID, text));
    for number in [0, 4, 11, 12, u32::MAX] {
        let text = format!("this server does not know the option {number}");
        let expected = refusal(number, UNSUP, &text);
        assert_eq!(answers(&option(number, b"some data")), expected);
    }
}

#[test]
fn info_answers_what_was_asked_for_and_go_begins() {
    let sizes = "0003e889045565a9 0000000# 00000003 0000000c 0000 0000000000002710 0d6d";
    let all = "0003e889045565a9 0000000# 00000003 0000000c 0000 0000000000002710 0d6d
        0003e889045565a9 0000000# 00000003 00000006 0001 'disk'
        0003e889045565a9 0000000# 00000003 00000008 0002 'a disk'
        0003e889045565a9 0000000# 00000003 0000000e 0003 00000001 00001000 00001000";
    let ack = "0003e889045565a9 0000000# 00000001 00000000";
    for (infos, sent) in [
        (&[][..], sizes),
        (&[0], sizes),
        (&[99], sizes),
        (&[3, 2, 1, 0, 99], all),
    ] {
        for number in [6, 7] {
            let seen = after_flags(&option(number, &asked(b"disk", infos)));
            let expected = format!("{sent} {ack}").replace('#', &number.to_string());
            assert_eq!(seen.answers, hex(&expected));
            let begun = chosen("disk", false, false).filter(|_| number == 7);
            assert_eq!(seen.chosen, begun);
        }
    }
    let raw = hex("49484156454f5054 00000007 0000000a 00000004 'disk' 0000");
    assert_eq!(raw, option(7, &asked(b"disk", &[])));
    let raw = hex("49484156454f5054 00000006 0000000b 00000003 'rom' 0001 0002");
    let expected = "0003e889045565a9 00000006 00000003 0000000c 0000 0000000000002710 040f
        0003e889045565a9 00000006 00000001 00000000";
    assert_eq!(answers(&raw), hex(expected), "it has no description");
}

#[test]
fn info_and_go_report_why_an_export_cannot_be_had() {
    let lengths = "the lengths within the option do not add up to its own";
    let utf8 = "an export's name is UTF-8 without zero bytes";
    let none = "there is no export \"no\\nne\"; list the exports";
    let long = "an export's name has 4096 bytes at most";
    let cases: [(Vec<u8>, u32, &str); 11] = [
        (asked(b"no\nne", &[]), UNKNOWN, none),
        (asked(b"locked", &[0, 3]), POLICY, "a key is needed"),
        (asked(b"over", &[]), SHUTDOWN, "the node stops"),
        (asked(b"\xc3", &[]), INVALID, utf8),
        (asked(b"di\0sk", &[]), INVALID, utf8),
        (asked(&[b'x'; 4097], &[]), INVALID, long),
        (hex(""), INVALID, lengths),
        (hex("00000004 'disk'"), INVALID, lengths),
        (hex("00000004 'disk' 0001"), INVALID, lengths),
        (hex("00000004 'disk' 0000 00"), INVALID, lengths),
        (hex("ffffffff 'disk' 0000"), INVALID, lengths),
    ];
    for (data, kind, text) in cases {
        for number in [6, 7] {
            let refused = refusal(number, kind, text);
            let text = String::from_utf8_lossy(&data).into_owned();
            assert_eq!(answers(&option(number, &data)), refused, "{text:?}");
        }
    }
}

#[test]
fn structured_replies_are_agreed_on() {
    let asks = hex("49484156454f5054 00000008 00000000");
    assert_eq!(answers(&asks), hex(ACK_8));
    let go = option(7, &asked(b"disk", &[]));
    let seen = after_flags(&[asks, go].concat());
    let expected = [
        hex(ACK_8),
        hex("0003e889045565a9 00000007 00000003 0000000c 0000 0000000000002710 0ded"),
        hex("0003e889045565a9 00000007 00000001 00000000"),
    ];
    assert_eq!(seen.answers, expected.concat());
    assert_eq!(seen.chosen, chosen("disk", true, false));
    let text = "this option has no data; send none";
    assert_eq!(answers(&option(8, b"x")), refusal(8, INVALID, text));
}

#[test]
fn metadata_contexts_are_listed() {
    let listed = "0003e889045565a9 00000009 00000004 00000013 00000000 'base:allocation'";
    let ack = "0003e889045565a9 00000009 00000001 00000000";
    let queries: [(&[&[u8]], bool); 8] = [
        (&[], true),
        (&[b""], true),
        (&[b"base:"], true),
        (&[b"base:allocation"], true),
        (&[b"qemu:", b"base:allocation", b"base:"], true),
        (&[b"qemu:dirty-bitmap:x"], false),
        (&[b"base:else"], false),
        (&[b"\xff"], false),
    ];
    for (queries, found) in queries {
        let asks = [option(8, b""), option(9, &contexts(b"disk", queries))].concat();
        let sent = if found { listed } else { "" };
        assert_eq!(answers(&asks), hex(&format!("{ACK_8} {sent} {ack}")));
    }
    let raw = hex("49484156454f5054 00000009 00000015 00000004 'disk' 00000001 00000005 'base:'");
    assert_eq!(raw, option(9, &contexts(b"disk", &[b"base:"])));
}

#[test]
fn metadata_contexts_are_selected_for_one_export() {
    let selected = "0003e889045565a9 0000000a 00000004 00000013 00000001 'base:allocation'";
    let ack = "0003e889045565a9 0000000a 00000001 00000000";
    let select = |name: &[u8], queries: &[&[u8]]| option(10, &contexts(name, queries));
    let go = option(7, &asked(b"disk", &[]));
    let none: &[&[u8]] = &[];
    let cases: [(Vec<u8>, String, bool); 5] = [
        (
            select(b"disk", &[b"base:allocation", b"base:allocation"]),
            format!("{selected} {ack}"),
            true,
        ),
        (
            select(b"rom", &[b"base:allocation"]),
            format!("{selected} {ack}"),
            false,
        ),
        (
            select(b"disk", &[b"", b"base:", b"qemu:x"]),
            ack.to_owned(),
            false,
        ),
        (select(b"disk", none), ack.to_owned(), false),
        (
            [
                select(b"disk", &[b"base:allocation"]),
                select(b"disk", none),
            ]
            .concat(),
            format!("{selected} {ack} {ack}"),
            false,
        ),
    ];
    for (select, answered, agreed) in cases {
        let seen = after_flags(&[option(8, b""), select, go.clone()].concat());
        let expected = hex(&format!("{ACK_8} {answered}"));
        assert_eq!(seen.answers[..expected.len()], expected);
        assert_eq!(seen.chosen, chosen("disk", true, agreed));
    }
}

#[test]
fn wrong_questions_about_metadata_are_refused() {
    let first = "metadata contexts need structured replies; ask for those first";
    let lengths = "the lengths within the option do not add up to its own";
    let none = "there is no export \"none\"; list the exports";
    let good = contexts(b"disk", &[b"base:allocation"]);
    for number in [9, 10] {
        let refused = refusal(number, INVALID, first);
        assert_eq!(answers(&option(number, &good)), refused);
        let unfinished = &good[..good.len() - 1];
        let longer = [&good[..], b"x"].concat();
        let many = hex("00000004 'disk' ffffffff 00000000");
        let cases = [
            (&contexts(b"none", &[])[..], UNKNOWN, none),
            (&contexts(b"locked", &[]), POLICY, "a key is needed"),
            (unfinished, INVALID, lengths),
            (&longer, INVALID, lengths),
            (&many, INVALID, lengths),
            (b"", INVALID, lengths),
        ];
        for (data, kind, text) in cases {
            // The earlier selection does not outlive the failure.
            let asks = [option(8, b""), option(10, &good), option(number, data)].concat();
            let seen = after_flags(&[asks, option(7, &asked(b"disk", &[]))].concat());
            let refused = refusal(number, kind, text);
            assert!(seen.answers.windows(refused.len()).any(|w| w == refused));
            assert_eq!(seen.chosen, chosen("disk", true, number == 9));
        }
    }
}
