//! Calls and their answers (RFC 5531), as records of a stream.

use std::io::{self, Read};

use super::xdr::{Garbage, XdrReader, XdrWriter};

/// Most bytes of a call. A client that writes more than our stated maximum is cut off.
pub const CALL_BYTES_MAX: usize = 128 << 10;
/// Longest credentials, by the protocol.
const AUTH_BYTES_MAX: usize = 400;
const LAST: u32 = 1 << 31;

/// Reads a record, which may come in several fragments. False at the stream's end.
pub fn read_record(from: &mut impl Read, record: &mut Vec<u8>) -> io::Result<bool> {
    record.clear();
    loop {
        let mut mark = [0; 4];
        let first = from.read(&mut mark)?;
        if first == 0 && record.is_empty() {
            return Ok(false);
        }
        from.read_exact(&mut mark[first..])?;
        let mark = u32::from_be_bytes(mark);
        let len = (mark & !LAST) as usize;
        if record.len() + len > CALL_BYTES_MAX {
            let text = format!("a call of more than {CALL_BYTES_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let had = record.len();
        record.resize(had + len, 0);
        from.read_exact(&mut record[had..])?;
        if mark & LAST != 0 {
            return Ok(true);
        }
    }
}

/// A call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RpcCall {
    xid: u32,
    /// True if the caller speaks our version of the calls.
    understood: bool,
    /// The program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// The procedure.
    pub procedure: u32,
}

impl RpcCall {
    /// Takes it from the beginning of a record; the procedure's arguments are left.
    pub fn take(args: &mut XdrReader) -> Result<RpcCall, Garbage> {
        let xid = args.u32()?;
        if args.u32()? != 0 {
            return Err(Garbage);
        }
        let understood = args.u32()? == 2;
        let call = RpcCall {
            xid,
            understood,
            program: args.u32()?,
            version: args.u32()?,
            procedure: args.u32()?,
        };
        // The caller and its proof: any client that reaches the port may read.
        for _ in 0..2 {
            args.u32()?;
            args.bytes(AUTH_BYTES_MAX)?;
        }
        Ok(call)
    }
}

/// The outcome of a call that reached a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accepted {
    /// The procedure has answered.
    Success,
    /// There is no such program.
    NoProgram,
    /// There is another version of it.
    NoVersion {
        /// The version that there is.
        have: u32,
    },
    /// There is no such procedure.
    NoProcedure,
    /// The arguments are not its.
    Garbage,
}

/// Writes the record that answers a call.
pub fn answer(call: &RpcCall, reply: &mut XdrWriter, run: impl FnOnce(&mut XdrWriter) -> Accepted) {
    reply.truncate(0);
    reply.u32(0); // the record's mark
    reply.u32(call.xid);
    reply.u32(1);
    if call.understood {
        accepted(reply, run);
    } else {
        // Denied: other versions of calls than 2 are not understood.
        for word in [1, 0, 2, 2] {
            reply.u32(word);
        }
    }
    let len = (reply.len() - 4) as u32;
    reply.set_u32(0, len | LAST);
}

fn accepted(reply: &mut XdrWriter, run: impl FnOnce(&mut XdrWriter) -> Accepted) {
    for word in [0, 0, 0] {
        reply.u32(word);
    }
    let at = reply.len();
    reply.u32(0);
    let words: &[u32] = match run(reply) {
        Accepted::Success => return,
        Accepted::NoProgram => &[1],
        Accepted::NoVersion { have } => &[2, have, have],
        Accepted::NoProcedure => &[3],
        Accepted::Garbage => &[4],
    };
    reply.truncate(at);
    for word in words {
        reply.u32(*word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(parts: &[&[u8]]) -> Vec<u8> {
        let mut all = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            let last = if i + 1 == parts.len() { LAST } else { 0 };
            all.extend((part.len() as u32 | last).to_be_bytes());
            all.extend(*part);
        }
        all
    }

    #[test]
    fn fragments_are_put_together_and_an_end_amid_a_record_is_an_error() {
        let sent = record(&[b"ab", b"", b"cdef"]);
        let mut got = Vec::new();
        assert!(read_record(&mut &sent[..], &mut got).unwrap());
        assert_eq!(got, b"abcdef");
        assert!(!read_record(&mut &b""[..], &mut got).unwrap());
        for cut in 1..sent.len() {
            let ended = read_record(&mut &sent[..cut], &mut got);
            assert!(ended.is_err(), "{cut}");
        }
    }

    #[test]
    fn a_record_is_bounded_before_it_is_read() {
        let mut got = Vec::new();
        let long = (LAST | 0x7fff_ffff).to_be_bytes();
        assert!(read_record(&mut &long[..], &mut got).is_err());
        let half = vec![0; CALL_BYTES_MAX / 2 + 1];
        let sent = record(&[&half, &half]);
        assert!(read_record(&mut &sent[..], &mut got).is_err());
        assert!(got.capacity() <= CALL_BYTES_MAX);
    }
}
