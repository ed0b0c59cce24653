//! TLS as a step of the handshake: who may start it, what is done without it, and that nothing of before counts within it.

use bytes::BytesMut;
use staves_nbd::{
    Handshake, HandshakeStep, OPTION_BYTES_MAX, OPTIONS_MAX, ProtocolError, TlsPolicy,
};

use crate::hex::{hex, refusal};
use crate::shared::{Conversation, Shelf, asked, contexts, converse_by, option};

const POLICY: u32 = 2;
const INVALID: u32 = 3;
const TLS_REQUIRED: u32 = 5;
const STARTTLS: u32 = 5;
const REQUIRED_TEXT: &str = "this server requires TLS; connect with it";
const FLAGS: [u8; 4] = [0, 0, 0, 3];

/// An acknowledgement.
fn ack(option: u32) -> Vec<u8> {
    hex(&format!("0003e889045565a9 {option:08x} 00000001 00000000"))
}

/// The outcome of options of a client that waits for each answer.
fn seen(policy: TlsPolicy, options: &[Vec<u8>]) -> Conversation {
    let stream = [&FLAGS[..], &options.concat()].concat();
    converse_by(policy, &stream, || 1)
}

#[test]
fn tls_begins_where_it_is_offered_or_required() {
    for policy in [TlsPolicy::Offered, TlsPolicy::Required] {
        let options = [option(STARTTLS, b""), option(7, &asked(b"disk", &[]))];
        let seen = seen(policy, &options);
        assert!(seen.secured && seen.answers.starts_with(&ack(STARTTLS)));
        assert_eq!(seen.chosen, Some(("disk".to_owned(), false, false)));
    }
    let seen = seen(TlsPolicy::Offered, &[option(7, &asked(b"disk", &[]))]);
    assert!(seen.chosen.is_some(), "it is no must");
}

#[test]
fn a_second_start_and_one_with_data_are_invalid() {
    let twice = [option(STARTTLS, b""), option(STARTTLS, b"")];
    let text = "TLS has begun already; go on within it";
    let expected = [ack(STARTTLS), refusal(STARTTLS, INVALID, text)].concat();
    assert_eq!(seen(TlsPolicy::Offered, &twice).answers, expected);
    let text = "this option has no data; send none";
    let seen = seen(TlsPolicy::Required, &[option(STARTTLS, b"x")]);
    assert_eq!(seen.answers, refusal(STARTTLS, INVALID, text));
    assert!(!seen.secured);
}

#[test]
fn where_tls_is_required_nothing_else_is_done_before() {
    let all = [
        option(3, b""),
        option(6, &asked(b"disk", &[])),
        option(7, &asked(b"disk", &[])),
        option(8, b""),
        option(9, &contexts(b"disk", &[])),
        option(10, &contexts(b"disk", &[])),
        option(99, b"data"),
        option(99, &vec![0; OPTION_BYTES_MAX + 1]),
    ];
    for one in all {
        let number = u32::from_be_bytes([one[8], one[9], one[10], one[11]]);
        let seen = seen(TlsPolicy::Required, &[one]);
        let expected = refusal(number, TLS_REQUIRED, REQUIRED_TEXT);
        assert_eq!(seen.answers, expected, "option {number}");
        assert_eq!((seen.chosen, seen.error), (None, None));
    }
    let abort = seen(TlsPolicy::Required, &[option(2, b"")]);
    assert!(abort.aborted && abort.answers == ack(2));
    // This one has no answer that refuses it.
    let named = seen(TlsPolicy::Required, &[option(1, b"disk")]);
    assert_eq!(named.error, Some(ProtocolError::TlsRequired));
    assert!(named.answers.is_empty() && named.chosen.is_none());
    // Within TLS all is done.
    let within = [option(STARTTLS, b""), option(1, b"disk")];
    assert!(seen(TlsPolicy::Required, &within).chosen.is_some());
}

#[test]
fn a_client_of_the_old_style_has_no_tls() {
    let stream = [&[0, 0, 0, 0], &option(STARTTLS, b"")[..]].concat();
    let seen = converse_by(TlsPolicy::Offered, &stream, || 1);
    let text = "TLS needs a client of the fixed newstyle; use one";
    assert_eq!(seen.answers, refusal(STARTTLS, POLICY, text));
    let seen = converse_by(TlsPolicy::Required, &stream, || 1);
    assert_eq!(seen.error, Some(ProtocolError::TlsRequired));
}

/// Structured replies and a metadata context that were agreed on before TLS, perhaps by somebody else.
#[test]
fn what_was_agreed_on_before_tls_does_not_count_within_it() {
    let before = [
        option(8, b""),
        option(10, &contexts(b"disk", &[b"base:allocation"])),
        option(STARTTLS, b""),
    ];
    let go = option(7, &asked(b"disk", &[]));
    let goes = std::slice::from_ref(&go);
    let plain = seen(TlsPolicy::Offered, &[&before[..2], goes].concat());
    assert_eq!(plain.chosen, Some(("disk".to_owned(), true, true)));
    let within = seen(TlsPolicy::Offered, &[&before[..], goes].concat());
    assert_eq!(within.chosen, Some(("disk".to_owned(), false, false)));
    // A selection needs structured replies that were agreed on within TLS.
    let selects = [option(10, &contexts(b"disk", &[b"base:allocation"])), go];
    let text = "metadata contexts need structured replies; ask for those first";
    let refused = seen(TlsPolicy::Offered, &[&before[..], &selects[..]].concat());
    let refusal = refusal(10, INVALID, text);
    let is_refused = refused.answers.windows(refusal.len()).any(|w| w == refusal);
    assert!(is_refused, "{:?}", refused.answers);
}

/// Options that lie behind `STARTTLS` in the clear would count as if they had come within TLS.
#[test]
fn bytes_before_tls_end_the_connection_without_an_answer() {
    for policy in [TlsPolicy::Offered, TlsPolicy::Required] {
        for behind in [&b"x"[..], &option(7, &asked(b"disk", &[]))] {
            let (mut handshake, mut out) = (Handshake::with_tls(policy), BytesMut::new());
            let stream = [&FLAGS[..], &option(STARTTLS, b""), behind].concat();
            let mut input = BytesMut::from(&stream[..]);
            let step = handshake.next(&mut input, &Shelf, &mut out);
            let error = ProtocolError::BytesBeforeTls(behind.len());
            assert_eq!(step.expect_err("it ends"), error);
            assert!(out.is_empty(), "TLS is not granted");
            let after = handshake.next(&mut input, &Shelf, &mut out);
            assert!(matches!(after, Ok(HandshakeStep::Ended)), "{after:?}");
        }
    }
}

#[test]
fn options_before_tls_are_counted_with_those_within() {
    let before = option(8, b"").repeat(OPTIONS_MAX as usize - 1);
    let starts = [before, option(STARTTLS, b"")].concat();
    let within = seen(TlsPolicy::Offered, &[starts, option(8, b"")]);
    assert!(within.secured);
    let error = ProtocolError::TooManyOptions(OPTIONS_MAX);
    assert_eq!(within.error, Some(error));
}
