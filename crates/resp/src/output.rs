//! From answers to bytes, in RESP2 or RESP3.
//!
//! [`Output`] is what waits to be written to one connection. Small answers are put one behind another
//! into one buffer, so that a pipeline of commands is answered by one write; a large value is not copied
//! but stands between such buffers as it is. It is a [`Buf`], so that tokio's `write_buf` sends all of it
//! in vectored writes.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use staves_wire::error::ErrorCode;
use staves_wire::service::Answer;

/// The version of RESP that a connection uses (`HELLO`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Protocol {
    /// The version that every connection begins with.
    #[default]
    Resp2,
    /// With maps, sets, booleans and a null of its own.
    Resp3,
}

/// The rule that makes one answer to a command of the answers to its operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Join {
    /// One operation: its answer as it is.
    Plain,
    /// One conditional `Set`: 1 if it was done, 0 if not (SETNX).
    Done,
    /// An array of all values (MGET).
    Each,
    /// The sum of all numbers (EXISTS).
    Sum,
    /// The number of keys that were deleted (DEL).
    Deleted,
    /// OK when all are done (MSET).
    AllDone,
}

/// A value from this length on is passed on instead of copied.
const COPY_BYTES_MAX: usize = 16 << 10;

/// A value beyond this is copied in pieces of so many bytes, each of which goes when it has been written.
const PIECE_BYTES: usize = 256 << 10;
/// A buffer that has grown beyond this is given back when all of it has been written.
const KEPT_BYTES_MAX: usize = 32 << 10;

/// Bytes that wait to be written to one connection.
#[derive(Debug, Default)]
pub struct Output {
    /// Whole pieces, to be written before `tail`.
    ready: VecDeque<Bytes>,
    ready_len: usize,
    /// Bytes of the first piece that have been written.
    piece_gone: usize,
    tail: BytesMut,
    /// Bytes at the beginning of `tail` that have been written, and are its memory still.
    tail_gone: usize,
}

impl Output {
    /// Nothing to write yet.
    pub fn new() -> Output {
        Output::default()
    }

    /// The number of bytes that wait: beyond its bound the driver reads no more commands.
    pub fn len(&self) -> usize {
        self.ready_len + self.tail.len()
    }

    /// Bytes of memory: what was written of a piece goes with the rest of it.
    pub fn held_bytes(&self) -> usize {
        self.len() + self.piece_gone + self.tail_gone
    }

    /// Returns whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts all that waits in `other` behind what waits here.
    pub fn append(&mut self, other: &mut Output) {
        while let Some(piece) = other.ready.pop_front() {
            self.push(piece);
        }
        other.ready_len = 0;
        self.tail.extend_from_slice(&other.tail);
        other.tail.clear();
    }

    /// `+text`. The text must not hold a line end.
    pub fn simple(&mut self, text: &str) {
        debug_assert!(
            !text.contains(['\r', '\n']),
            "a simple string is one line: {text:?}"
        );
        self.tail.reserve(text.len() + 3);
        self.tail.put_u8(b'+');
        self.tail.put_slice(text.as_bytes());
        self.tail.put_slice(b"\r\n");
    }

    /// `+OK`.
    #[inline]
    pub fn ok(&mut self) {
        self.tail.put_slice(b"+OK\r\n");
    }

    /// `-text`, where the text begins with a code such as `ERR`. Line ends become blanks, as Redis has it.
    pub fn error(&mut self, text: &str) {
        self.tail.reserve(text.len() + 3);
        self.tail.put_u8(b'-');
        for byte in text.bytes() {
            self.tail.put_u8(if matches!(byte, b'\r' | b'\n') {
                b' '
            } else {
                byte
            });
        }
        self.tail.put_slice(b"\r\n");
    }

    /// `:number`.
    pub fn integer(&mut self, number: i64) {
        self.prefixed(b':', number);
    }

    /// A bulk string, copied.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        if bytes.len() > PIECE_BYTES {
            return self.bulk_in_pieces(bytes);
        }
        self.tail.reserve(bytes.len() + 25);
        self.prefixed(b'$', bytes.len() as i64);
        self.tail.put_slice(bytes);
        self.tail.put_slice(b"\r\n");
    }

    #[cold]
    fn bulk_in_pieces(&mut self, bytes: &[u8]) {
        self.prefixed(b'$', bytes.len() as i64);
        let pieces = bytes.chunks(PIECE_BYTES);
        pieces.for_each(|piece| self.push(Bytes::copy_from_slice(piece)));
        self.tail.put_slice(b"\r\n");
    }

    /// A bulk string, passed on without a copy if it is long.
    pub fn value(&mut self, bytes: &Bytes) {
        if bytes.len() < COPY_BYTES_MAX {
            return self.bulk(bytes);
        }
        self.prefixed(b'$', bytes.len() as i64);
        self.push(bytes.clone());
        self.tail.put_slice(b"\r\n");
    }

    /// Text with line ends: a verbatim string in RESP3, a bulk string in RESP2 (INFO, CLIENT LIST).
    pub fn text(&mut self, protocol: Protocol, text: &str) {
        match protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => {
                self.prefixed(b'=', text.len() as i64 + 4);
                self.tail.put_slice(b"txt:");
                self.tail.put_slice(text.as_bytes());
                self.tail.put_slice(b"\r\n");
            }
        }
    }

    /// No value.
    #[inline]
    pub fn nil(&mut self, protocol: Protocol) {
        self.tail.put_slice(match protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// No array (`COMMAND INFO` of an unknown command).
    pub fn nil_array(&mut self, protocol: Protocol) {
        self.tail.put_slice(match protocol {
            Protocol::Resp2 => b"*-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// The head of an array of `len` items.
    pub fn array(&mut self, len: usize) {
        self.prefixed(b'*', len as i64);
    }

    /// The head of a map of `len` pairs: in RESP2 an array of twice as many items.
    pub fn map(&mut self, protocol: Protocol, len: usize) {
        match protocol {
            Protocol::Resp2 => self.array(2 * len),
            Protocol::Resp3 => self.prefixed(b'%', len as i64),
        }
    }

    /// The head of a set: in RESP2 an array.
    pub fn set(&mut self, protocol: Protocol, len: usize) {
        match protocol {
            Protocol::Resp2 => self.array(len),
            Protocol::Resp3 => self.prefixed(b'~', len as i64),
        }
    }

    /// The answer to a command from the answers to its operations, in their order.
    pub fn join(&mut self, protocol: Protocol, join: Join, answers: &[Answer]) {
        if let Some((code, text)) = failed(join, answers) {
            return self.failure(code, &text);
        }
        match join {
            Join::Plain => self.answer(protocol, &answers[0]),
            Join::Done => self.integer(i64::from(answers[0] != Answer::Nil)),
            Join::Each => {
                self.array(answers.len());
                answers.iter().for_each(|a| self.answer(protocol, a));
            }
            Join::Sum | Join::Deleted => self.integer(answers.iter().map(number).sum()),
            Join::AllDone => self.ok(),
        }
    }

    /// The answer to one operation as it is.
    #[inline]
    pub fn answer(&mut self, protocol: Protocol, answer: &Answer) {
        match answer {
            Answer::Nil => self.nil(protocol),
            Answer::Ok => self.ok(),
            Answer::Int(number) => self.integer(*number),
            Answer::Value(bytes) => self.value(bytes),
            Answer::Error(code, text) => self.failure(*code, text),
        }
    }

    /// An operation's error in Redis's form: a word that clients act on, then the text. Where Redis has
    /// words of its own for the case they are used, because programs compare them.
    pub fn failure(&mut self, code: ErrorCode, text: &str) {
        let whole = text;
        match code {
            ErrorCode::NotAnInteger => self.error("ERR value is not an integer or out of range"),
            ErrorCode::Overflow => self.error("ERR increment or decrement would overflow"),
            _ => {
                // A bucket's text begins with Redis's word already, "ERR ..." or "OOM ..."; the code would repeat it.
                let word = error_word(code);
                let text = text.strip_prefix(word).or(text.strip_prefix("ERR"));
                let text = text
                    .filter(|t| t.starts_with(' '))
                    .map_or(whole, str::trim_start);
                self.error(&format!("{word} {text}"));
            }
        }
    }

    fn prefixed(&mut self, prefix: u8, number: i64) {
        self.tail.reserve(23);
        self.tail.put_u8(prefix);
        self.tail
            .put_slice(itoa::Buffer::new().format(number).as_bytes());
        self.tail.put_slice(b"\r\n");
    }

    /// Gives its memory back, if nothing waits.
    pub fn let_go(&mut self) {
        if self.is_empty() && self.tail.capacity() > 0 {
            self.tail = BytesMut::new();
        }
    }

    fn advance_tail(&mut self, count: usize) {
        let ends = count == self.tail.len();
        if ends && self.tail_gone + self.tail.capacity() > KEPT_BYTES_MAX {
            self.tail = BytesMut::new();
        } else {
            self.tail.advance(count);
        }
        self.tail_gone = if ends { 0 } else { self.tail_gone + count };
    }

    fn push(&mut self, piece: Bytes) {
        if !self.tail.is_empty() {
            let before = self.tail.split().freeze();
            self.ready_len += before.len();
            self.ready.push_back(before);
        }
        self.ready_len += piece.len();
        self.ready.push_back(piece);
    }
}

/// The error of a command of which some operations failed.
///
/// An error that stands for "nothing was done" is returned only if no key was written: otherwise the outcome is unknown.
fn failed(join: Join, answers: &[Answer]) -> Option<(ErrorCode, Cow<'_, str>)> {
    let mut errors = answers.iter().filter_map(|answer| match answer {
        Answer::Error(code, text) => Some((*code, text)),
        _ => None,
    });
    let (code, text) = errors
        .clone()
        .find(|(code, _)| !code.nothing_done())
        .or_else(|| errors.next())?;
    let writes = matches!(join, Join::Deleted | Join::AllDone);
    let failed = errors.count() + 1;
    Some(
        match writes && code.nothing_done() && failed < answers.len() {
            false => (code, text.as_str().into()),
            true => {
                let done = answers.len() - failed;
                let text = format!(
                    "{done} of {} keys were done, the others not: {text}",
                    answers.len()
                );
                (ErrorCode::Deadline, text.into())
            }
        },
    )
}

fn number(answer: &Answer) -> i64 {
    if let Answer::Int(number) = answer {
        *number
    } else {
        0
    }
}

/// The first word of the error on the wire. Clients of Redis know what to do about these.
pub fn error_word(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::NotServing | ErrorCode::Busy | ErrorCode::Stopping => "TRYAGAIN",
        ErrorCode::Deadline
        | ErrorCode::Unreachable
        | ErrorCode::Forgotten
        | ErrorCode::AnswerGone
        | ErrorCode::LogFull
        | ErrorCode::Internal => "IOERR",
        ErrorCode::OutOfMemory => "OOM",
        ErrorCode::Lost | ErrorCode::NoQuorum => "CLUSTERDOWN",
        ErrorCode::Denied | ErrorCode::WrongCluster => "NOPERM",
        _ => "ERR",
    }
}

impl Buf for Output {
    fn remaining(&self) -> usize {
        self.len()
    }

    fn chunk(&self) -> &[u8] {
        self.ready
            .front()
            .map_or(&self.tail[..], |piece| &piece[..])
    }

    fn chunks_vectored<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        let pieces = self.ready.iter().map(|p| &p[..]).chain([&self.tail[..]]);
        let mut filled = 0;
        for (place, piece) in out.iter_mut().zip(pieces.filter(|p| !p.is_empty())) {
            *place = IoSlice::new(piece);
            filled += 1;
        }
        filled
    }

    fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let Some(front) = self.ready.front_mut() else {
                return self.advance_tail(count);
            };
            let step = count.min(front.len());
            front.advance(step);
            self.piece_gone += step;
            if front.is_empty() {
                self.ready.pop_front();
                self.piece_gone = 0;
            }
            self.ready_len -= step;
            count -= step;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Output)) -> String {
        let mut out = Output::new();
        write(&mut out);
        let bytes = out.copy_to_bytes(out.remaining());
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[test]
    fn the_two_protocols_differ_where_they_should() {
        use Protocol::{Resp2, Resp3};
        type Write = fn(&mut Output, Protocol);
        let cases: [(&str, &str, Write); 6] = [
            ("$-1\r\n", "_\r\n", |o, p| o.nil(p)),
            ("*-1\r\n", "_\r\n", |o, p| o.nil_array(p)),
            ("*4\r\n", "%2\r\n", |o, p| o.map(p, 2)),
            ("*3\r\n", "~3\r\n", |o, p| o.set(p, 3)),
            ("$2\r\nab\r\n", "=6\r\ntxt:ab\r\n", |o, p| o.text(p, "ab")),
            (":-7\r\n", ":-7\r\n", |o, p| o.answer(p, &Answer::Int(-7))),
        ];
        for (two, three, write) in cases {
            assert_eq!(written(|o| write(o, Resp2)), two);
            assert_eq!(written(|o| write(o, Resp3)), three);
        }
    }

    /// Regression: a connection kept the memory of the largest value that it was ever answered here, for as long as it was open.
    #[test]
    fn memory_goes_with_what_has_been_written() {
        let mut out = Output::new();
        let value = vec![7; 4 * PIECE_BYTES];
        out.bulk(&value);
        let all = out.len();
        assert_eq!(out.held_bytes(), all);
        out.advance(PIECE_BYTES / 2);
        assert!(out.held_bytes() + 100 > all, "the first piece is there");
        out.advance(2 * PIECE_BYTES);
        assert!(out.held_bytes() + 2 * PIECE_BYTES <= all, "two pieces went");
        out.advance(out.len() - 1);
        assert!(out.held_bytes() < PIECE_BYTES);
        out.advance(1);
        assert_eq!(out.held_bytes(), 0);
        // In one buffer: its memory goes as a whole.
        for _ in 0..10 {
            out.bulk(&value[..PIECE_BYTES / 2]);
        }
        let all = out.len();
        out.advance(all - 10);
        assert_eq!(out.held_bytes(), all);
        out.advance(10);
        assert_eq!(out.held_bytes(), 0);
        assert!(out.tail.capacity() <= KEPT_BYTES_MAX);
    }

    #[test]
    fn operations_are_joined_as_the_command_asks() {
        let value = |v: &'static str| Answer::Value(Bytes::from_static(v.as_bytes()));
        let join = |join, answers: &[Answer]| written(|o| o.join(Protocol::Resp2, join, answers));
        assert_eq!(join(Join::Plain, &[value("a")]), "$1\r\na\r\n");
        assert_eq!(join(Join::Done, &[Answer::Ok]), ":1\r\n");
        assert_eq!(join(Join::Done, &[Answer::Nil]), ":0\r\n");
        assert_eq!(
            join(Join::Each, &[value("a"), Answer::Nil]),
            "*2\r\n$1\r\na\r\n$-1\r\n"
        );
        assert_eq!(
            join(Join::Sum, &[Answer::Int(1), Answer::Int(0), Answer::Int(1)]),
            ":2\r\n"
        );
        assert_eq!(join(Join::AllDone, &[Answer::Ok, Answer::Ok]), "+OK\r\n");
        let full = Answer::error(ErrorCode::OutOfMemory, "pool 'cache' is full");
        for kind in [
            Join::Plain,
            Join::Done,
            Join::Each,
            Join::Sum,
            Join::Deleted,
            Join::AllDone,
        ] {
            assert_eq!(
                join(kind, std::slice::from_ref(&full)),
                "-OOM pool 'cache' is full\r\n",
                "{kind:?}"
            );
        }
        assert_eq!(
            join(Join::Each, &[value("a"), full.clone()]),
            "-OOM pool 'cache' is full\r\n"
        );
        assert_eq!(
            join(Join::Sum, &[Answer::Int(1), full.clone()]),
            join(Join::Plain, &[full])
        );
    }

    /// Regression: a write of several keys, one of which was refused, reported that nothing was done; and so did one whose outcome
    /// was unknown, if an earlier key was refused.
    #[test]
    fn a_write_of_many_keys_that_was_done_in_part_never_says_that_nothing_was_done() {
        let join = |join, answers: &[Answer]| written(|o| o.join(Protocol::Resp2, join, answers));
        let full = Answer::error(ErrorCode::OutOfMemory, "full");
        let late = Answer::error(ErrorCode::Deadline, "late");
        let none = join(Join::AllDone, &[full.clone(), full.clone()]);
        assert_eq!(none, "-OOM full\r\n");
        let part = join(Join::AllDone, &[Answer::Ok, full.clone(), Answer::Ok]);
        assert_eq!(
            part,
            "-IOERR 2 of 3 keys were done, the others not: full\r\n"
        );
        let part = join(Join::Deleted, &[full.clone(), Answer::Int(1)]);
        assert!(part.starts_with("-IOERR 1 of 2"), "{part}");
        assert_eq!(join(Join::AllDone, &[full, late]), "-IOERR late\r\n");
        let internal = Answer::error(ErrorCode::Internal, "odd");
        assert_eq!(join(Join::Plain, &[internal]), "-IOERR odd\r\n");
    }

    #[test]
    fn an_error_is_always_one_line() {
        assert_eq!(written(|o| o.error("ERR a\r\nb")), "-ERR a  b\r\n");
        let text = written(|o| o.failure(ErrorCode::NotAnInteger, "whatever"));
        assert_eq!(text, "-ERR value is not an integer or out of range\r\n");
    }

    #[test]
    fn long_values_are_not_copied_and_keep_their_place() {
        let long = Bytes::from(vec![b'x'; COPY_BYTES_MAX]);
        let mut out = Output::new();
        out.ok();
        out.value(&long);
        out.ok();
        let mut other = Output::new();
        other.value(&long);
        out.append(&mut other);
        assert!(other.is_empty());
        assert!(
            out.ready
                .iter()
                .any(|piece| piece.as_ptr() == long.as_ptr())
        );
        let expected = [
            b"+OK\r\n$16384\r\n".as_slice(),
            &long,
            b"\r\n+OK\r\n$16384\r\n",
            &long,
            b"\r\n",
        ]
        .concat();
        assert_eq!(out.remaining(), expected.len());
        let mut slices = [IoSlice::new(&[]); 16];
        let filled = out.chunks_vectored(&mut slices);
        assert_eq!(
            slices[..filled].iter().map(|s| s.len()).sum::<usize>(),
            expected.len()
        );
        let mut got = Vec::new();
        while out.has_remaining() {
            let step = out.chunk().len().min(1000);
            got.extend_from_slice(&out.chunk()[..step]);
            out.advance(step);
        }
        assert!(got == expected);
    }
}
