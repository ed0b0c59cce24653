//! Each request of the transmission, byte by byte.

use bytes::{Bytes, BytesMut};
use staves_nbd::{
    Handshake, HandshakeStep, Incoming, NbdCommand, NbdError, ProtocolError, Request, Transmission,
};

use crate::hex::hex;
use crate::shared::{Shelf, asked, contexts, option, request};

/// A transmission of an export, with structured replies and metadata or with neither.
pub fn begun(name: &str, structured: bool) -> Transmission {
    let name = name.as_bytes();
    let mut options = vec![0, 0, 0, 3];
    if structured {
        options.extend(option(8, b""));
        options.extend(option(10, &contexts(name, &[b"base:allocation"])));
    }
    options.extend(option(7, &asked(name, &[])));
    let (mut input, mut out) = (BytesMut::from(&options[..]), BytesMut::new());
    match Handshake::new().next(&mut input, &Shelf, &mut out) {
        Ok(HandshakeStep::Began(transmission, _)) => transmission,
        other => panic!("{other:?}"),
    }
}

/// All that comes of these bytes.
fn incoming(transmission: &mut Transmission, bytes: &[u8]) -> Vec<Incoming> {
    let mut input = BytesMut::from(bytes);
    let mut all = Vec::new();
    loop {
        match transmission.next(&mut input).expect("the stream holds") {
            Incoming::More => return all,
            incoming => all.push(incoming),
        }
    }
}

/// The one thing that comes of these bytes.
fn only(transmission: &mut Transmission, bytes: &[u8]) -> Incoming {
    let mut all = incoming(transmission, bytes);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

fn permitted(cookie: u64, command: NbdCommand, fua: bool) -> Incoming {
    Incoming::Request(Request {
        cookie,
        command,
        fua,
    })
}

/// Each of these requests comes out as this, with its flag for durability.
fn understood<const N: usize>(cases: [(&str, bool, NbdCommand); N]) {
    let mut transmission = begun("disk", true);
    for (bytes, fua, command) in cases {
        let expected = permitted(0x0102_0304_0506_0708, command, fua);
        assert_eq!(only(&mut transmission, &hex(bytes)), expected, "{bytes}");
    }
}

#[test]
fn reads_flushes_and_trims_are_understood() {
    let cases = [
        (
            "25609513 0000 0000 0102030405060708 0000000000000200 00001000",
            false,
            NbdCommand::Read {
                offset: 512,
                len: 4096,
                dont_fragment: false,
            },
        ),
        (
            "25609513 0005 0000 0102030405060708 000000000000270f 00000001",
            true,
            NbdCommand::Read {
                offset: 9999,
                len: 1,
                dont_fragment: true,
            },
        ),
        (
            "25609513 0000 0003 0102030405060708 0000000000000000 00000000",
            false,
            NbdCommand::Flush,
        ),
        (
            "25609513 0001 0004 0102030405060708 0000000000000000 00002710",
            true,
            NbdCommand::Trim {
                offset: 0,
                len: 10_000,
            },
        ),
    ];
    understood(cases);
}

#[test]
fn other_requests_without_payload_are_understood() {
    let cases = [
        (
            "25609513 0000 0005 0102030405060708 0000000000000001 00000002",
            false,
            NbdCommand::Cache { offset: 1, len: 2 },
        ),
        (
            "25609513 0013 0006 0102030405060708 0000000000000001 00000002",
            true,
            NbdCommand::WriteZeroes {
                offset: 1,
                len: 2,
                no_hole: true,
                fast: true,
            },
        ),
        (
            "25609513 0000 0006 0102030405060708 0000000000000000 00002710",
            false,
            NbdCommand::WriteZeroes {
                offset: 0,
                len: 10_000,
                no_hole: false,
                fast: false,
            },
        ),
        (
            "25609513 0008 0007 0102030405060708 0000000000000001 00000002",
            false,
            NbdCommand::BlockStatus {
                offset: 1,
                len: 2,
                one: true,
            },
        ),
        (
            "25609513 ffff 0002 0102030405060708 0000000000000000 00000000",
            true,
            NbdCommand::Disconnect,
        ),
    ];
    understood(cases);
}

#[test]
fn a_write_is_announced_before_its_payload_is_taken() {
    let mut transmission = begun("disk", false);
    let head = hex("25609513 0001 0001 0000000000000007 0000000000000064 00000005");
    let mut input = BytesMut::from(&head[..]);
    assert_eq!(transmission.next(&mut input), Ok(Incoming::Header(5)));
    assert_eq!(
        (transmission.pending_payload(), transmission.wanted(0)),
        (Some(5), 5)
    );
    input.extend_from_slice(b"hell");
    assert_eq!(transmission.next(&mut input), Ok(Incoming::More));
    assert_eq!((input.len(), transmission.wanted(4)), (4, 1));
    input.extend_from_slice(b"o and more");
    let place = input.as_ptr();
    let Ok(Incoming::Request(request)) = transmission.next(&mut input) else {
        panic!("the write is whole");
    };
    assert_eq!((request.cookie, request.fua), (7, true));
    let NbdCommand::Write { offset, bytes } = request.command else {
        panic!("it is a write");
    };
    assert_eq!((offset, &bytes[..]), (100, &b"hello"[..]));
    assert_eq!(bytes.as_ptr(), place, "nothing was copied");
    assert_eq!(transmission.pending_payload(), None);
    assert_eq!(input, " and more");
}

/// The refusal of a request, behind which the stream goes on.
fn refused(export: &str, structured: bool, bytes: &[u8]) -> (NbdError, String) {
    let mut transmission = begun(export, structured);
    let next = request((0, 3), 99, (0, 0), b"");
    let mut all = incoming(&mut transmission, &[bytes, &next].concat());
    assert_eq!(all.pop(), Some(permitted(99, NbdCommand::Flush, false)));
    match all.pop() {
        Some(Incoming::Refused {
            cookie: 5,
            error,
            text,
        }) if all.is_empty() => (error, text),
        other => panic!("{other:?}"),
    }
}

#[test]
fn ranges_beyond_the_end_are_refused() {
    let beyond = [(9_999, 2), (10_000, 1), (u64::MAX, 1), (u64::MAX - 1, 4096)];
    for (offset, len) in beyond {
        for (kind, error) in [
            (0, NbdError::Einval),
            (1, NbdError::Enospc),
            (4, NbdError::Einval),
            (5, NbdError::Einval),
            (6, NbdError::Enospc),
            (7, NbdError::Einval),
        ] {
            let payload = vec![7; if kind == 1 { len as usize } else { 0 }];
            let bytes = request((0, kind), 5, (offset, len), &payload);
            let text = format!("{len} bytes at {offset} end beyond the export's 10000");
            assert_eq!(refused("disk", true, &bytes), (error, text));
        }
    }
}

#[test]
fn wrong_types_flags_and_lengths_are_refused() {
    for kind in [0, 1, 4, 5, 6, 7] {
        let bytes = request((0, kind), 5, (0, 0), b"");
        let expected = (NbdError::Einval, "the length is 0".to_owned());
        assert_eq!(refused("disk", true, &bytes), expected);
    }
    for (kind, allowed) in [(0, 4), (1, 0), (3, 0), (4, 0), (5, 0), (6, 0x12), (7, 8)] {
        for bit in 1..16 {
            let flags: u16 = 1 << bit;
            if flags & allowed != 0 {
                continue;
            }
            let range = if kind == 3 { (0, 0) } else { (0, 3) };
            let payload: &[u8] = if kind == 1 { b"abc" } else { b"" };
            let bytes = request((flags, kind), 5, range, payload);
            let text = format!("the request type {kind} has no flags {flags:#x}");
            assert_eq!(refused("disk", true, &bytes), (NbdError::Einval, text));
        }
    }
    for kind in [8, 9, u16::MAX] {
        let bytes = request((0, kind), 5, (0, 1), b"");
        let text = format!("the request type {kind} is unknown");
        assert_eq!(refused("disk", true, &bytes), (NbdError::Einval, text));
    }
    for range in [(1, 0), (0, 1)] {
        let bytes = request((0, 3), 5, range, b"");
        let text = "a flush has neither offset nor length".to_owned();
        assert_eq!(refused("disk", true, &bytes), (NbdError::Einval, text));
    }
}

#[test]
fn features_that_were_not_agreed_on_are_refused() {
    let fragment = request((4, 0), 5, (0, 1), b"");
    let text = "the request type 0 has no flags 0x4".to_owned();
    assert_eq!(refused("disk", false, &fragment), (NbdError::Einval, text));
    let status = request((0, 7), 5, (0, 1), b"");
    let text = "block status without a metadata context; select base:allocation first";
    let expected = (NbdError::Einval, text.to_owned());
    assert_eq!(refused("disk", false, &status), expected);
}

#[test]
fn a_long_read_is_refused_and_other_long_requests_are_not() {
    let read = request((0, 0), 5, (0, 4097), b"");
    let text = "a read of 4097 bytes is longer than 4096; read less at once".to_owned();
    let expected = (NbdError::Eoverflow, text.clone());
    assert_eq!(refused("disk", true, &read), expected);
    assert_eq!(refused("disk", false, &read), (NbdError::Einval, text));
    for kind in [4, 5, 6, 7] {
        let bytes = request((0, kind), 5, (0, 10_000), b"");
        let came = only(&mut begun("disk", true), &bytes);
        assert!(matches!(came, Incoming::Request(_)), "{came:?}");
    }
}

#[test]
fn a_read_only_export_is_only_read() {
    for kind in [1, 4, 6] {
        let payload: &[u8] = if kind == 1 { b"abc" } else { b"" };
        let bytes = request((0, kind), 5, (20_000, 3), payload);
        let expected = (NbdError::Eperm, "the export is read-only".to_owned());
        assert_eq!(refused("rom", true, &bytes), expected);
    }
    for kind in [0, 5, 7] {
        let bytes = request((0, kind), 5, (0, 3), b"");
        let came = only(&mut begun("rom", true), &bytes);
        assert!(matches!(came, Incoming::Request(_)), "{came:?}");
    }
}

#[test]
fn a_stream_out_of_step_ends_the_connection() {
    let mut bytes = request((0, 0), 5, (0, 1), b"");
    bytes[3] = 0x14;
    let mut input = BytesMut::from(&bytes[..]);
    let error = begun("disk", true).next(&mut input);
    assert_eq!(error, Err(ProtocolError::RequestMagic(0x2560_9514)));
}

#[test]
fn a_payload_as_long_as_may_be_is_taken_and_a_longer_one_ends_the_connection() {
    let payload = vec![9; 4096];
    let bytes = request((0, 1), 5, (0, 4096), &payload);
    let write = NbdCommand::Write {
        offset: 0,
        bytes: Bytes::from(payload),
    };
    let came = incoming(&mut begun("disk", true), &bytes);
    assert_eq!(came, [Incoming::Header(4096), permitted(5, write, false)]);
    for (export, kind) in [("disk", 1), ("rom", 1)] {
        let bytes = request((0, kind), 5, (0, 4097), b"");
        let error = begun(export, true).next(&mut BytesMut::from(&bytes[..]));
        let expected = ProtocolError::PayloadTooLarge {
            bytes: 4097,
            max: 4096,
        };
        assert_eq!(error, Err(expected));
    }
}
