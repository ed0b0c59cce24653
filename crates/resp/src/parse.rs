//! From bytes to the arguments of one command, incrementally and without copying.
//!
//! The driver keeps one input buffer a connection and calls [`Parser::next`] with what is unread of it.
//! Between calls the parser remembers how far it has come, as offsets from the start of the command, so
//! that a value of half a gigabyte that arrives in a hundred thousand reads is looked at once, and so
//! that the driver may move its buffer as it likes. Arguments are slices of that buffer; only an inline
//! command with quotes is copied, because its escapes must be undone.
//!
//! Refusals and their texts are Redis's own (`networking.c`): after a [`ProtocolError`] the
//! stream cannot be trusted to be at a command's start, so the connection is answered once and closed.

use std::ops::Index;

use staves_wire::frame::MAGIC;

/// The most that one connection may ask the node to hold in memory. Redis's limits, and its names for
/// what crosses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest argument (`proto-max-bulk-len`).
    pub bulk_bytes_max: usize,
    /// Most arguments of a command.
    pub args_max: usize,
    /// Longest inline command.
    pub inline_bytes_max: usize,
    /// Longest command in all (`client-query-buffer-limit`).
    pub command_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            bulk_bytes_max: 512 << 20,
            args_max: 1 << 20,
            inline_bytes_max: 64 << 10,
            command_bytes_max: 1 << 30,
        }
    }
}

/// The reason why a stream of bytes is not RESP. `Display` follows `-ERR ` on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The number of arguments is no number, or beyond the limit.
    #[error("Protocol error: invalid multibulk length")]
    InvalidMultibulkLength,
    /// The header of a command has no end.
    #[error("Protocol error: too big mbulk count string")]
    CountTooLong,
    /// The length of an argument is no number, or beyond the limit.
    #[error("Protocol error: invalid bulk length")]
    InvalidBulkLength,
    /// The header of an argument has no end.
    #[error("Protocol error: too big bulk count string")]
    LengthTooLong,
    /// An argument does not begin with `$`.
    #[error("Protocol error: expected '$', got '{}'", printable(*.0))]
    ExpectedBulk(u8),
    /// An argument is longer than its header states.
    #[error("Protocol error: expected CRLF after an argument of the stated length")]
    ExpectedEnd,
    /// An inline command has no end.
    #[error("Protocol error: too big inline request")]
    InlineTooLong,
    /// An inline command's quotes do not match.
    #[error("Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
    /// The whole command is beyond the limit.
    #[error("Protocol error: command exceeds the query buffer limit")]
    CommandTooLong,
    /// A frame of the native protocol.
    #[error(
        "this port speaks the Redis protocol; the native protocol is spoken at the port that the node listens on (--listen)"
    )]
    NativeFrame,
}

/// True for the first bytes of a native frame: the magic bytes are followed by its format, a small number.
fn is_native_frame(input: &[u8]) -> bool {
    let format = input.strip_prefix(&MAGIC).and_then(|rest| rest.first());
    format.is_some_and(|format| (1..b'\t').contains(format))
}

/// A byte that a stranger sent, fit for one line of text.
fn printable(byte: u8) -> char {
    if byte.is_ascii_graphic() || byte == b' ' {
        char::from(byte)
    } else {
        '?'
    }
}

/// The place of an argument. 32 bits are enough: `command_bytes_max` is below 4 GiB.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u32,
    len: u32,
}

/// The arguments of one command, its name first.
#[derive(Clone, Copy)]
pub struct Args<'a> {
    bytes: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Args<'a> {
    /// The number of arguments, the name included.
    #[inline]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// An empty line or an empty array: nothing to do and nothing to answer.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The argument at this place. Panics beyond the end, as slices do: check the arity first.
    #[inline]
    pub fn at(&self, index: usize) -> &'a [u8] {
        let span = self.spans[index];
        &self.bytes[span.start as usize..][..span.len as usize]
    }

    /// The argument at this place, if there is one.
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        (index < self.len()).then(|| self.at(index))
    }

    /// Returns whether these are the first words of an HTTP request.
    ///
    /// A page in a browser may send one to a port of its own machine. The rest of it must not be taken for commands, so the
    /// connection is to be closed, as by Redis.
    #[inline]
    pub fn are_http(&self) -> bool {
        let first = |word: &[u8]| !self.is_empty() && self.at(0).eq_ignore_ascii_case(word);
        first(b"post") || first(b"host:")
    }

    /// The arguments from this place on.
    pub fn iter_from(&self, index: usize) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let Args { bytes, spans } = *self;
        spans[index.min(spans.len())..]
            .iter()
            .map(move |span| &bytes[span.start as usize..][..span.len as usize])
    }
}

impl Index<usize> for Args<'_> {
    type Output = [u8];

    #[inline]
    fn index(&self, index: usize) -> &[u8] {
        self.at(index)
    }
}

impl std::fmt::Debug for Args<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.iter_from(0).map(|a| a.escape_ascii().to_string()))
            .finish()
    }
}

/// One whole command.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Its arguments.
    pub args: Args<'a>,
    /// The number of bytes that it took of the input; the next call begins behind them.
    pub used: usize,
}

/// The state between two reads of one connection.
#[derive(Debug, Default)]
pub struct Parser {
    limits: Limits,
    /// Offset of the first byte that is not looked at yet.
    at: usize,
    /// Arguments of a multibulk command still to come; `None` before its header is read.
    missing: Option<usize>,
    /// The argument being read, once its header is.
    bulk: Option<usize>,
    spans: Vec<Span>,
    /// Inline arguments with their escapes undone.
    unescaped: Vec<u8>,
    /// The last call returned a command: the next one starts anew.
    done: bool,
}

/// Argument places kept from one command to the next; a larger command's are given back.
const SPANS_KEPT: usize = 128;
/// Bytes of unescaped arguments that are kept so.
const UNESCAPED_KEPT: usize = 1024;

/// Longest header: a sign and twenty digits, and room for padding.
///
/// Redis searches 64 KiB before it refuses; a client that sends a byte at a time would have them searched again and again.
const HEADER_BYTES_MAX: usize = 64;

impl Parser {
    /// A parser for a new connection.
    pub fn new(limits: Limits) -> Parser {
        Parser {
            limits,
            ..Parser::default()
        }
    }

    /// The next whole command at the start of `input`, or `None` if more bytes are needed.
    ///
    /// After `Some(frame)` the next call MUST be given the input from `frame.used` on; after `None` it
    /// MUST be given the same bytes and what came since. After an error the connection is to be closed.
    pub fn next<'a>(&'a mut self, input: &'a [u8]) -> Result<Option<Frame<'a>>, ProtocolError> {
        if self.done {
            self.restart();
        }
        let inline = match (self.missing, input.first()) {
            (None, None) => return Ok(None),
            (None, Some(first)) => *first != b'*',
            (Some(_), _) => false,
        };
        let whole = if inline {
            if is_native_frame(input) {
                return Err(ProtocolError::NativeFrame);
            }
            self.inline(input)?
        } else {
            self.multibulk(input)?
        };
        if !whole {
            return Ok(None);
        }
        self.done = true;
        let bytes = if inline { &self.unescaped[..] } else { input };
        Ok(Some(Frame {
            args: Args {
                bytes,
                spans: &self.spans,
            },
            used: self.at,
        }))
    }

    /// The least number of bytes that the command under way still needs: a hint for the driver's buffer.
    pub fn wanted(&self, input_len: usize) -> usize {
        let end = match self.bulk {
            Some(len) if !self.done => self.at + len + 2,
            _ => self.at + 1,
        };
        end.saturating_sub(input_len).max(1)
    }

    /// Bytes of memory that the arguments take beside the input.
    #[inline]
    pub fn held_bytes(&self) -> usize {
        self.spans.capacity() * size_of::<Span>() + self.unescaped.capacity()
    }

    fn restart(&mut self) {
        self.done = false;
        self.at = 0;
        self.missing = None;
        self.bulk = None;
        self.spans.clear();
        self.unescaped.clear();
        self.spans.shrink_to(SPANS_KEPT);
        self.unescaped.shrink_to(UNESCAPED_KEPT);
    }

    fn multibulk(&mut self, input: &[u8]) -> Result<bool, ProtocolError> {
        let mut missing = match self.missing {
            Some(missing) => missing,
            None => {
                let Some((line, next)) = self.line(input, ProtocolError::CountTooLong)? else {
                    return Ok(false);
                };
                let count = integer(&line[1..]).ok_or(ProtocolError::InvalidMultibulkLength)?;
                let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
                if count > self.limits.args_max {
                    return Err(ProtocolError::InvalidMultibulkLength);
                }
                self.at = next;
                count
            }
        };
        while missing > 0 {
            self.missing = Some(missing);
            if !self.bulk(input)? {
                return Ok(false);
            }
            missing -= 1;
        }
        Ok(true)
    }

    /// Reads one argument: its header, if that is not read yet, and its bytes.
    fn bulk(&mut self, input: &[u8]) -> Result<bool, ProtocolError> {
        let len = match self.bulk {
            Some(len) => len,
            None => {
                match input.get(self.at) {
                    None => return Ok(false),
                    Some(b'$') => {}
                    Some(other) => return Err(ProtocolError::ExpectedBulk(*other)),
                }
                let Some((line, next)) = self.line(input, ProtocolError::LengthTooLong)? else {
                    return Ok(false);
                };
                let len = integer(&line[1..])
                    .and_then(|len| usize::try_from(len).ok())
                    .filter(|len| *len <= self.limits.bulk_bytes_max)
                    .ok_or(ProtocolError::InvalidBulkLength)?;
                if next.saturating_add(len) > self.limits.command_bytes_max {
                    return Err(ProtocolError::CommandTooLong);
                }
                self.at = next;
                len
            }
        };
        match input.get(self.at + len..self.at + len + 2) {
            Some(b"\r\n") => {}
            Some(_) => return Err(ProtocolError::ExpectedEnd),
            None => {
                self.bulk = Some(len);
                return Ok(false);
            }
        }
        self.bulk = None;
        self.spans.push(Span {
            start: self.at as u32,
            len: len as u32,
        });
        self.at += len + 2;
        Ok(true)
    }

    /// The header line at `self.at` without its end, and the offset behind it.
    #[inline]
    fn line<'a>(
        &self,
        input: &'a [u8],
        too_long: ProtocolError,
    ) -> Result<Option<(&'a [u8], usize)>, ProtocolError> {
        let rest = &input[self.at..];
        // Headers are a few bytes long: a plain loop beats a vectored search.
        let scan = &rest[..rest.len().min(HEADER_BYTES_MAX)];
        match scan.iter().position(|b| *b == b'\r') {
            Some(end) if end + 1 < rest.len() => Ok(Some((&rest[..end], self.at + end + 2))),
            None if rest.len() >= HEADER_BYTES_MAX => Err(too_long),
            _ => Ok(None),
        }
    }

    fn inline(&mut self, input: &[u8]) -> Result<bool, ProtocolError> {
        let scan = &input[..input.len().min(self.limits.inline_bytes_max)];
        // `at` remembers how far earlier calls searched in vain.
        let Some(end) = scan.iter().skip(self.at).position(|b| *b == b'\n') else {
            if input.len() >= self.limits.inline_bytes_max {
                return Err(ProtocolError::InlineTooLong);
            }
            self.at = scan.len();
            return Ok(false);
        };
        let end = self.at + end;
        let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
        split_inline(line, &mut self.unescaped, &mut self.spans)?;
        self.at = end + 1;
        Ok(true)
    }
}

/// A whole decimal number, as `string2ll` takes it: no blanks, no plus, no leading zeroes.
pub fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] => return (!negative).then_some(0),
        [] | [b'0', ..] => return None,
        _ => {}
    }
    if digits.len() > 19 {
        return None;
    }
    let mut value: u64 = 0;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        // 19 digits stay below 10^19, which fits.
        value = value * 10 + u64::from(digit);
    }
    if negative {
        0i64.checked_sub_unsigned(value)
    } else {
        i64::try_from(value).ok()
    }
}

/// Splits an inline command as Redis's `sdssplitargs` does: blanks separate, double quotes know escapes,
/// single quotes know only `\'`, and a closing quote must be followed by a blank or the end.
fn split_inline(
    line: &[u8],
    out: &mut Vec<u8>,
    spans: &mut Vec<Span>,
) -> Result<(), ProtocolError> {
    let blank = |b: u8| b.is_ascii_whitespace() || b == 0x0b || b == 0;
    let mut rest = line;
    loop {
        while let [first, tail @ ..] = rest
            && blank(*first)
        {
            rest = tail;
        }
        if rest.is_empty() {
            return Ok(());
        }
        let start = out.len();
        while let [first, tail @ ..] = rest
            && !blank(*first)
        {
            rest = match first {
                b'"' => quoted(tail, out, b'"')?,
                b'\'' => quoted(tail, out, b'\'')?,
                plain => {
                    out.push(*plain);
                    tail
                }
            };
            let closed = matches!(first, b'"' | b'\'');
            if closed && rest.first().is_some_and(|b| !blank(*b)) {
                return Err(ProtocolError::UnbalancedQuotes);
            }
        }
        spans.push(Span {
            start: start as u32,
            len: (out.len() - start) as u32,
        });
    }
}

/// Copies what stands before the closing quote; returns what follows it.
fn quoted<'a>(mut rest: &'a [u8], out: &mut Vec<u8>, quote: u8) -> Result<&'a [u8], ProtocolError> {
    loop {
        rest = match rest {
            [] => return Err(ProtocolError::UnbalancedQuotes),
            [first, tail @ ..] if *first == quote => return Ok(tail),
            [b'\\', b'\'', tail @ ..] if quote == b'\'' => {
                out.push(b'\'');
                tail
            }
            [b'\\', b'x', high, low, tail @ ..]
                if quote == b'"' && high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                out.push(hex(*high) << 4 | hex(*low));
                tail
            }
            [b'\\', escaped, tail @ ..] if quote == b'"' => {
                out.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                tail
            }
            [plain, tail @ ..] => {
                out.push(*plain);
                tail
            }
        };
    }
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit - b'A' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    type Commands = Vec<Vec<Vec<u8>>>;

    #[test]
    fn a_native_frame_is_refused_at_its_first_bytes_and_a_word_like_it_is_none() {
        let (commands, error) = whole(b"STAV\x01\x02\0\0");
        assert_eq!(
            (commands.len(), error),
            (0, Some(ProtocolError::NativeFrame))
        );
        let (commands, error) = feed(b"STAVES 1\r\nSTAV\r\n", Limits::default(), || 1);
        assert_eq!((commands.len(), error), (2, None));
    }

    /// Feeds `input` in pieces as a driver would; what came out, and the error that ended it.
    fn feed(
        input: &[u8],
        limits: Limits,
        mut piece: impl FnMut() -> usize,
    ) -> (Commands, Option<ProtocolError>) {
        let mut parser = Parser::new(limits);
        let mut buffer: Vec<u8> = Vec::new();
        let mut commands = Vec::new();
        let mut fed = 0;
        while fed < input.len() {
            let end = (fed + piece().max(1)).min(input.len());
            buffer.extend_from_slice(&input[fed..end]);
            fed = end;
            let mut at = 0;
            loop {
                match parser.next(&buffer[at..]) {
                    Ok(Some(frame)) => {
                        commands.push(frame.args.iter_from(0).map(<[u8]>::to_vec).collect());
                        at += frame.used;
                    }
                    Ok(None) => break,
                    Err(error) => return (commands, Some(error)),
                }
            }
            buffer.drain(..at);
        }
        (commands, None)
    }

    fn whole(input: &[u8]) -> (Commands, Option<ProtocolError>) {
        feed(input, Limits::default(), || usize::MAX / 2)
    }

    fn strings(commands: &Commands) -> Vec<Vec<String>> {
        commands
            .iter()
            .map(|c| {
                c.iter()
                    .map(|a| String::from_utf8_lossy(a).into_owned())
                    .collect()
            })
            .collect()
    }

    const MIXED: &[u8] =
        b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\na\r\nb\0\r\n*0\r\nPING \"a b\"\r\n\r\n*-1\r\n\
        *2\r\n$3\r\nGET\r\n$0\r\n\r\nset k 'it\\'s'\n";

    #[test]
    fn pipelined_commands_come_out_the_same_however_they_arrive() {
        let (expected, error) = whole(MIXED);
        assert_eq!(error, None);
        assert_eq!(
            strings(&expected),
            vec![
                vec!["SET", "k", "a\r\nb\0"],
                vec![],
                vec!["PING", "a b"],
                vec![],
                vec![],
                vec!["GET", ""],
                vec!["set", "k", "it's"],
            ]
        );
        assert_eq!(
            feed(MIXED, Limits::default(), || 1),
            (expected.clone(), None)
        );
        for seed in 0..200 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let got = feed(MIXED, Limits::default(), || rng.random_range(1..9));
            assert_eq!(got, (expected.clone(), None), "seed {seed}");
        }
    }

    #[test]
    fn a_truncated_command_waits_for_its_rest() {
        let command = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\nvv\r\n";
        for cut in 0..command.len() {
            let (commands, error) = whole(&command[..cut]);
            assert_eq!((commands.len(), error), (0, None), "cut at {cut}");
        }
        let mut parser = Parser::default();
        assert!(parser.next(&command[..22]).expect("no error").is_none());
        assert_eq!(parser.wanted(22), 1);
        assert!(parser.next(&command[..26]).expect("no error").is_none());
        assert_eq!(parser.wanted(26), 2);
    }

    #[test]
    fn malformed_input_is_refused_in_redis_words() {
        let long = [b"*1".as_slice(), &[b'1'; 70_000]].concat();
        let long_bulk = [b"*1\r\n$".as_slice(), &[b'1'; 70_000]].concat();
        let cases: Vec<(&[u8], &str)> = vec![
            (b"*x\r\n", "Protocol error: invalid multibulk length"),
            (b"*1048577\r\n", "Protocol error: invalid multibulk length"),
            (
                b"*99999999999999999999\r\n",
                "Protocol error: invalid multibulk length",
            ),
            (b"*\r\n", "Protocol error: invalid multibulk length"),
            (b"*1\r\n+OK\r\n", "Protocol error: expected '$', got '+'"),
            (b"*1\r\n\x01", "Protocol error: expected '$', got '?'"),
            (b"*1\r\n$-1\r\n", "Protocol error: invalid bulk length"),
            (
                b"*1\r\n$536870913\r\n",
                "Protocol error: invalid bulk length",
            ),
            (b"*1\r\n$abc\r\n", "Protocol error: invalid bulk length"),
            (
                b"*1\r\n$1\r\nab\r\n",
                "Protocol error: expected CRLF after an argument of the stated length",
            ),
            (
                b"set \"a\r\n",
                "Protocol error: unbalanced quotes in request",
            ),
            (
                b"set 'a'b\r\n",
                "Protocol error: unbalanced quotes in request",
            ),
            (&[b'a'; 70_000], "Protocol error: too big inline request"),
            (&long, "Protocol error: too big mbulk count string"),
            (&long_bulk, "Protocol error: too big bulk count string"),
        ];
        for (input, text) in cases {
            let start = input[..input.len().min(20)].escape_ascii().to_string();
            assert_eq!(
                whole(input).1.map(|e| e.to_string()),
                Some(text.into()),
                "{start}"
            );
            let slowly = feed(input, Limits::default(), || 1)
                .1
                .map(|e| e.to_string());
            assert_eq!(slowly, Some(text.into()), "{start} byte by byte");
        }
    }

    #[test]
    fn a_command_is_bounded_as_a_whole() {
        let limits = Limits {
            command_bytes_max: 100,
            ..Limits::default()
        };
        let command = [
            b"*9\r\n".as_slice(),
            &b"$20\r\naaaaaaaaaaaaaaaaaaaa\r\n".repeat(9),
        ]
        .concat();
        let (commands, error) = feed(&command, limits, || 7);
        assert_eq!(
            (commands.len(), error),
            (0, Some(ProtocolError::CommandTooLong))
        );
    }

    #[test]
    fn inline_escapes_are_undone() {
        let (commands, error) = whole(b"  echo \"\\x41\\n\\\"\\q\\xzz\"\t'\\n\\''  plain\"\" \r\n");
        assert_eq!(error, None);
        assert_eq!(
            strings(&commands),
            vec![vec!["echo", "A\n\"qxzz", "\\n'", "plain"]]
        );
    }

    #[test]
    fn random_bytes_never_panic() {
        let alphabet = b"*$\r\n0123456789-+ \"'\\xSETGk\0\xff";
        for seed in 0..3_000u64 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let mut input: Vec<u8> = if seed % 2 == 0 {
                MIXED.to_vec()
            } else {
                (0..rng.random_range(0..200))
                    .map(|_| alphabet[rng.random_range(0..alphabet.len())])
                    .collect()
            };
            for _ in 0..rng.random_range(0..4) {
                if !input.is_empty() {
                    let at = rng.random_range(0..input.len());
                    input[at] = rng.random();
                }
            }
            let at_once = whole(&input);
            let in_pieces = feed(&input, Limits::default(), || rng.random_range(1..20));
            assert_eq!(at_once, in_pieces, "seed {seed}");
        }
    }

    #[test]
    fn integers_are_those_of_string2ll() {
        let good: [(&[u8], i64); 5] = [
            (b"0", 0),
            (b"-1", -1),
            (b"9223372036854775807", i64::MAX),
            (b"-9223372036854775808", i64::MIN),
            (b"1048576", 1 << 20),
        ];
        for (text, value) in good {
            assert_eq!(integer(text), Some(value));
        }
        for text in [
            "",
            "-",
            "-0",
            "01",
            "+1",
            " 1",
            "1 ",
            "1a",
            "9223372036854775808",
            "-9223372036854775809",
            "99999999999999999999",
        ] {
            assert_eq!(integer(text.as_bytes()), None, "{text}");
        }
    }
}
