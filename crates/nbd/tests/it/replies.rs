//! Each reply, byte by byte.

use bytes::{BufMut, BytesMut};
use staves_nbd::{EXTENTS_MAX, NbdError, ReadRange, Replies};

use crate::hex::hex;
use crate::transmission::begun;

const COOKIE: u64 = 0x0102_0304_0506_0708;

fn written(structured: bool, put: impl Fn(Replies, &mut BytesMut)) -> BytesMut {
    let mut out = BytesMut::new();
    let replies = begun("disk", structured).replies();
    assert_eq!(replies.is_structured(), structured);
    put(replies, &mut out);
    out
}

#[test]
fn a_read_is_answered_by_a_head_before_its_bytes() {
    let put = |replies: Replies, out: &mut BytesMut| replies.read_head(COOKIE, 512, 3, out);
    let simple = hex("67446698 00000000 0102030405060708");
    assert_eq!(written(false, put), simple);
    let chunk = hex("668e33ef 0001 0001 0102030405060708 0000000b 0000000000000200");
    assert_eq!(written(true, put), chunk);
}

#[test]
fn success_is_answered() {
    let put = |replies: Replies, out: &mut BytesMut| replies.done(COOKIE, out);
    let simple = hex("67446698 00000000 0102030405060708");
    assert_eq!(written(false, put), simple);
    let chunk = hex("668e33ef 0001 0000 0102030405060708 00000000");
    assert_eq!(written(true, put), chunk);
}

#[test]
fn errors_have_the_numbers_of_the_specification() {
    let numbers = [
        (NbdError::Eperm, "00000001"),
        (NbdError::Eio, "00000005"),
        (NbdError::Enomem, "0000000c"),
        (NbdError::Einval, "00000016"),
        (NbdError::Enospc, "0000001c"),
        (NbdError::Eoverflow, "0000004b"),
        (NbdError::Enotsup, "0000005f"),
        (NbdError::Eshutdown, "0000006c"),
    ];
    for (error, number) in numbers {
        let put = |replies: Replies, out: &mut BytesMut| replies.error(COOKIE, error, "why", out);
        let simple = hex(&format!("67446698 {number} 0102030405060708"));
        assert_eq!(written(false, put), simple);
        let chunk = format!("668e33ef 0001 8001 0102030405060708 00000009 {number} 0003 'why'");
        assert_eq!(written(true, put), hex(&chunk));
    }
}

#[test]
fn a_long_text_is_cut_between_two_characters() {
    let text = format!("x{}", "é".repeat(3000));
    let out = written(true, |replies, out| {
        replies.error(COOKIE, NbdError::Eio, &text, out);
    });
    let head = hex("668e33ef 0001 8001 0102030405060708 00001005 00000005 0fff");
    assert_eq!(out[..head.len()], head);
    assert_eq!(out[head.len()..], text.as_bytes()[..4095]);
}

/// A reply of 2 bytes, a hole of 4096, nothing and 3 bytes.
fn ranges(structured: bool, dont_fragment: bool) -> BytesMut {
    let ranges = [(2, false), (4096, true), (0, false), (3, false)];
    let ranges = ranges.map(|(len, hole)| ReadRange { len, hole });
    written(structured, |replies, out| {
        replies.read_ranges(
            COOKIE,
            510,
            &ranges,
            dont_fragment,
            out,
            |out, at, range| {
                let byte = if range.hole { 0 } else { at as u8 };
                out.put_bytes(byte, range.len as usize);
            },
        );
    })
}

#[test]
fn holes_are_not_sent_where_replies_are_structured() {
    let chunks = hex(
        "668e33ef 0000 0001 0102030405060708 0000000a 00000000000001fe fefe
        668e33ef 0000 0002 0102030405060708 0000000c 0000000000000200 00001000
        668e33ef 0001 0001 0102030405060708 0000000b 0000000000001200 000000",
    );
    assert_eq!(ranges(true, false), chunks);

    let bytes = [hex("fefe"), vec![0; 4099]].concat();
    let simple = hex("67446698 00000000 0102030405060708");
    assert_eq!(ranges(false, false), [simple, bytes.clone()].concat());

    let chunk = hex("668e33ef 0001 0001 0102030405060708 0000100d 00000000000001fe");
    assert_eq!(ranges(true, true), [chunk, bytes].concat());
}

#[test]
fn one_hole_is_one_chunk() {
    let hole = |dont_fragment: bool| {
        written(true, |replies, out| {
            let range = ReadRange {
                len: 4096,
                hole: true,
            };
            replies.read_ranges(COOKIE, 0, &[range], dont_fragment, out, |_, _, _| {
                panic!("nothing is to be sent");
            });
        })
    };
    let chunk = hex("668e33ef 0001 0002 0102030405060708 0000000c 0000000000000000 00001000");
    assert_eq!(
        (hole(false), hole(true)),
        (chunk[..].into(), chunk[..].into())
    );
}

#[test]
fn extents_are_joined_and_none_is_empty() {
    let put = |extents: &'static [(u32, bool)]| {
        move |replies: Replies, out: &mut BytesMut| replies.block_status(COOKIE, extents, out)
    };
    let extents = &[
        (1000, false),
        (24, false),
        (4096, true),
        (0, false),
        (4096, true),
        (u32::MAX, true),
        (7, false),
    ];
    let chunk = hex("668e33ef 0001 0005 0102030405060708 00000024 00000001
        00000400 00000000 00002000 00000003 ffffffff 00000003 00000007 00000000");
    assert_eq!(written(true, put(extents)), chunk);

    let text = "'no extents are known here'";
    let error = format!("668e33ef 0001 8001 0102030405060708 0000001f 00000005 0019 {text}");
    assert_eq!(written(true, put(&[])), hex(&error));
    assert_eq!(written(true, put(&[(0, true)])), hex(&error));
    let simple = hex("67446698 00000005 0102030405060708");
    assert_eq!(written(false, put(&[(1, true)])), simple);
}

#[test]
fn extents_are_bounded() {
    let extents: Vec<(u32, bool)> = (0..EXTENTS_MAX + 5).map(|n| (512, n % 2 == 0)).collect();
    let out = written(true, |replies, out| {
        replies.block_status(COOKIE, &extents, out);
    });
    assert_eq!(out.len(), 20 + 4 + 8 * EXTENTS_MAX);
    assert_eq!(out[16..20], (4 + 8 * EXTENTS_MAX as u32).to_be_bytes());
}
