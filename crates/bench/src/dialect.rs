//! Requests and answers as bytes: Redis's protocol, and memcached's as text.
//!
//! Only what the bench sends and may be answered. An answer is checked as far as counting needs: its kind,
//! whether a key had a value, and the value's length.

use super::tally::RequestKind;

/// Bytes of a key's name: as many as redis-benchmark's have.
pub const KEY_BYTES: usize = 16;
/// The prefix of all names, so that the keys of others are neither overwritten nor deleted at the end.
const PREFIX: &[u8; 6] = b"bench:";
/// Most keys that have a name of their own.
pub const KEYS_MAX: u64 = 10_000_000_000;
/// Longest line of an answer that is waited for.
const LINE_BYTES_MAX: usize = 4096;

/// The name of a key.
pub fn key_name(key: u64) -> [u8; KEY_BYTES] {
    let mut name = [0; KEY_BYTES];
    name[..PREFIX.len()].copy_from_slice(PREFIX);
    let mut rest = key;
    for digit in name[PREFIX.len()..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    name
}

/// The protocol on a connection, as bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialect {
    Resp,
    Memcached,
}

/// The answer to a request.
#[derive(PartialEq, Eq, Debug)]
pub enum ServerReply {
    /// As many keys as these had no value.
    Done { misses: u64 },
    /// Refused, with these words.
    Refused(String),
}

/// Bytes that are no answer to what was asked: nothing after them can be trusted.
#[derive(PartialEq, Eq, Debug)]
pub struct Malformed(String);

impl Malformed {
    fn new(what: &[u8]) -> Malformed {
        let what = what[..what.len().min(60)].escape_ascii();
        Malformed(format!("'{what}' is no answer to what was asked"))
    }
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Dialect {
    /// Appends a request for these keys. A write gives each the same value.
    pub fn ask(self, kind: RequestKind, keys: &[u64], value: &[u8], out: &mut Vec<u8>) {
        match self {
            Dialect::Resp => ask_resp(kind, keys, value, out),
            Dialect::Memcached => ask_memcached(kind, keys, value, out),
        }
    }

    /// Reads the answer to a request of so many keys: how long it was and what it said. `None` while it is not whole.
    pub fn answer(
        self,
        kind: RequestKind,
        keys: u64,
        value_bytes: usize,
        input: &[u8],
    ) -> Result<Option<(usize, ServerReply)>, Malformed> {
        let mut scan = Scan {
            input,
            at: 0,
            value_bytes,
            misses: 0,
            refused: None,
        };
        let whole = match (self, kind) {
            (Dialect::Resp, RequestKind::Write) => scan.resp_ok()?,
            (Dialect::Resp, RequestKind::Read) => scan.resp_values(keys)?,
            (Dialect::Resp, RequestKind::Delete) => scan.resp_count()?,
            (Dialect::Memcached, RequestKind::Write) => scan.each(keys, &[b"STORED"])?,
            (Dialect::Memcached, RequestKind::Delete) => {
                scan.each(keys, &[b"DELETED", b"NOT_FOUND"])?
            }
            (Dialect::Memcached, RequestKind::Read) => scan.memcached_values(keys)?,
        };
        let misses = scan.misses;
        let reply = scan
            .refused
            .map_or(ServerReply::Done { misses }, ServerReply::Refused);
        Ok(whole.map(|()| (scan.at, reply)))
    }
}

fn ask_resp(kind: RequestKind, keys: &[u64], value: &[u8], out: &mut Vec<u8>) {
    let bulk = |out: &mut Vec<u8>, bytes: &[u8]| {
        out.push(b'$');
        number(bytes.len(), out);
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(bytes);
        out.extend_from_slice(b"\r\n");
    };
    let (word, each): (&[u8], usize) = match (kind, keys.len()) {
        (RequestKind::Read, 1) => (b"GET", 1),
        (RequestKind::Read, _) => (b"MGET", 1),
        (RequestKind::Write, 1) => (b"SET", 2),
        (RequestKind::Write, _) => (b"MSET", 2),
        (RequestKind::Delete, _) => (b"DEL", 1),
    };
    out.push(b'*');
    number(1 + keys.len() * each, out);
    out.extend_from_slice(b"\r\n");
    bulk(out, word);
    for key in keys {
        bulk(out, &key_name(*key));
        if kind == RequestKind::Write {
            bulk(out, value);
        }
    }
}

fn ask_memcached(kind: RequestKind, keys: &[u64], value: &[u8], out: &mut Vec<u8>) {
    match kind {
        RequestKind::Read => {
            out.extend_from_slice(b"get");
            for key in keys {
                out.push(b' ');
                out.extend_from_slice(&key_name(*key));
            }
            out.extend_from_slice(b"\r\n");
        }
        RequestKind::Delete => {
            for key in keys {
                out.extend_from_slice(b"delete ");
                out.extend_from_slice(&key_name(*key));
                out.extend_from_slice(b"\r\n");
            }
        }
        // There is no command that sets several: so many commands, written as one.
        RequestKind::Write => {
            for key in keys {
                out.extend_from_slice(b"set ");
                out.extend_from_slice(&key_name(*key));
                out.extend_from_slice(b" 0 0 ");
                number(value.len(), out);
                out.extend_from_slice(b"\r\n");
                out.extend_from_slice(value);
                out.extend_from_slice(b"\r\n");
            }
        }
    }
}

fn number(number: usize, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = number;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Reads an answer; each step is `None` where the input ends.
struct Scan<'a> {
    input: &'a [u8],
    at: usize,
    value_bytes: usize,
    misses: u64,
    refused: Option<String>,
}

type Scanned<T> = Result<Option<T>, Malformed>;

impl<'a> Scan<'a> {
    fn line(&mut self) -> Scanned<&'a [u8]> {
        let rest = &self.input[self.at..];
        let window = &rest[..rest.len().min(LINE_BYTES_MAX)];
        match window.windows(2).position(|pair| pair == b"\r\n") {
            Some(end) => {
                self.at += end + 2;
                Ok(Some(&rest[..end]))
            }
            None if window.len() == LINE_BYTES_MAX => Err(Malformed::new(rest)),
            None => Ok(None),
        }
    }

    /// Passes over a value and the end of its line.
    fn value(&mut self, length: usize) -> Scanned<()> {
        let Some(end) = self.input.get(self.at + length..self.at + length + 2) else {
            return Ok(None);
        };
        if end != b"\r\n" {
            return Err(Malformed::new(end));
        }
        self.at += length + 2;
        if length != self.value_bytes {
            let expected = self.value_bytes;
            self.refuse(&format!(
                "length: a value has {length} bytes, not {expected}"
            ));
        }
        Ok(Some(()))
    }

    fn refuse(&mut self, text: &str) {
        self.refused.get_or_insert_with(|| text.to_owned());
    }

    fn resp_ok(&mut self) -> Scanned<()> {
        match self.line()? {
            None => return Ok(None),
            Some(b"+OK") => {}
            Some([b'-', text @ ..]) => self.refuse(&String::from_utf8_lossy(text)),
            Some(other) => return Err(Malformed::new(other)),
        }
        Ok(Some(()))
    }

    fn resp_count(&mut self) -> Scanned<()> {
        match self.line()? {
            None => return Ok(None),
            Some([b':', count @ ..]) if decimal(count).is_some() => {}
            Some([b'-', text @ ..]) => self.refuse(&String::from_utf8_lossy(text)),
            Some(other) => return Err(Malformed::new(other)),
        }
        Ok(Some(()))
    }

    fn resp_values(&mut self, keys: u64) -> Scanned<()> {
        if keys == 1 {
            return self.resp_value();
        }
        match self.line()? {
            None => return Ok(None),
            Some([b'-', text @ ..]) => self.refuse(&String::from_utf8_lossy(text)),
            Some([b'*', count @ ..]) if decimal(count) == Some(keys as usize) => {
                for _ in 0..keys {
                    if self.resp_value()?.is_none() {
                        return Ok(None);
                    }
                }
            }
            Some(other) => return Err(Malformed::new(other)),
        }
        Ok(Some(()))
    }

    fn resp_value(&mut self) -> Scanned<()> {
        match self.line()? {
            None => Ok(None),
            Some(b"$-1") => {
                self.misses += 1;
                Ok(Some(()))
            }
            Some([b'-', text @ ..]) => {
                self.refuse(&String::from_utf8_lossy(text));
                Ok(Some(()))
            }
            Some(line) => match line.strip_prefix(b"$").and_then(decimal) {
                Some(length) => self.value(length),
                None => Err(Malformed::new(line)),
            },
        }
    }

    /// A line for each key: one of these, or an error.
    fn each(&mut self, keys: u64, good: &[&[u8]]) -> Scanned<()> {
        for _ in 0..keys {
            match self.line()? {
                None => return Ok(None),
                Some(line) if good.contains(&line) => {}
                Some(line) if is_memcached_error(line) => {
                    self.refuse(&String::from_utf8_lossy(line));
                }
                Some(other) => return Err(Malformed::new(other)),
            }
        }
        Ok(Some(()))
    }

    fn memcached_values(&mut self, keys: u64) -> Scanned<()> {
        let mut found = 0;
        loop {
            let Some(line) = self.line()? else {
                return Ok(None);
            };
            if line == b"END" {
                self.misses = keys.saturating_sub(found);
                return Ok(Some(()));
            }
            if is_memcached_error(line) {
                self.refuse(&String::from_utf8_lossy(line));
                return Ok(Some(()));
            }
            // VALUE <key> <flags> <bytes>
            let length = line
                .strip_prefix(b"VALUE ")
                .and_then(|rest| rest.split(|b| *b == b' ').nth(2))
                .and_then(decimal)
                .ok_or_else(|| Malformed::new(line))?;
            found += 1;
            if self.value(length)?.is_none() {
                return Ok(None);
            }
        }
    }
}

fn is_memcached_error(line: &[u8]) -> bool {
    let kinds: [&[u8]; 3] = [b"ERROR", b"CLIENT_ERROR ", b"SERVER_ERROR "];
    kinds.iter().any(|kind| line.starts_with(kind))
}

/// A number of at most 10 digits: more than any value's length.
fn decimal(text: &[u8]) -> Option<usize> {
    let fits = (1..=10).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    fits.then(|| {
        text.iter()
            .fold(0, |n, digit| n * 10 + usize::from(digit - b'0'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(dialect: Dialect, kind: RequestKind, keys: &[u64]) -> String {
        let mut out = Vec::new();
        dialect.ask(kind, keys, b"vvv", &mut out);
        String::from_utf8(out).expect("text").replace("\r\n", "|")
    }

    #[test]
    fn requests_are_what_the_servers_expect() {
        use Dialect::{Memcached, Resp};
        use RequestKind::{Delete, Read, Write};
        assert_eq!(&key_name(KEYS_MAX - 1), b"bench:9999999999");
        assert_eq!(
            [
                asked(Resp, Read, &[7]),
                asked(Resp, Write, &[7]),
                asked(Resp, Read, &[7, 10]),
                asked(Memcached, Read, &[7, 10]),
                asked(Memcached, Write, &[7, 10]),
                asked(Resp, Delete, &[7]),
                asked(Memcached, Delete, &[7, 10]),
            ],
            [
                "*2|$3|GET|$16|bench:0000000007|",
                "*3|$3|SET|$16|bench:0000000007|$3|vvv|",
                "*3|$4|MGET|$16|bench:0000000007|$16|bench:0000000010|",
                "get bench:0000000007 bench:0000000010|",
                "set bench:0000000007 0 0 3|vvv|set bench:0000000010 0 0 3|vvv|",
                "*2|$3|DEL|$16|bench:0000000007|",
                "delete bench:0000000007|delete bench:0000000010|",
            ]
        );
        assert!(asked(Resp, Write, &[1, 2]).starts_with("*5|$4|MSET|"));
    }

    #[test]
    fn answers_are_counted_and_wait_until_they_are_whole() {
        use Dialect::{Memcached, Resp};
        use RequestKind::{Delete, Read, Write};
        let done = |misses| ServerReply::Done { misses };
        let refused = |text: &str| ServerReply::Refused(text.to_owned());
        for (dialect, kind, keys, text, expected) in [
            (Resp, Write, 1, "+OK|", done(0)),
            (Resp, Write, 9, "+OK|", done(0)),
            (Resp, Write, 1, "-OOM full|", refused("OOM full")),
            (Resp, Read, 1, "$3|abc|", done(0)),
            (Resp, Read, 1, "$-1|", done(1)),
            (Resp, Read, 1, "-ERR no|", refused("ERR no")),
            (
                Resp,
                Read,
                1,
                "$2|ab|",
                refused("length: a value has 2 bytes, not 3"),
            ),
            (Resp, Read, 3, "*3|$3|a|b|$-1|$-1|", done(2)),
            (Resp, Read, 3, "*3|$-1|-BUSY x|$3|abc|", refused("BUSY x")),
            (Resp, Read, 3, "-ERR all|", refused("ERR all")),
            (Memcached, Write, 2, "STORED|STORED|", done(0)),
            (
                Memcached,
                Write,
                2,
                "STORED|SERVER_ERROR out|",
                refused("SERVER_ERROR out"),
            ),
            (Memcached, Read, 1, "END|", done(1)),
            (
                Memcached,
                Read,
                3,
                "VALUE key:1 0 3|abc|VALUE key:2 0 3|END|END|",
                done(1),
            ),
            (Memcached, Read, 1, "ERROR|", refused("ERROR")),
            (Resp, Delete, 1, ":1|", done(0)),
            (Resp, Delete, 1, "-TRYAGAIN x|", refused("TRYAGAIN x")),
            (Memcached, Delete, 2, "DELETED|NOT_FOUND|", done(0)),
        ] {
            // "a|b" and "END" stand for values of three bytes that look like something else.
            let text = text
                .replace("a|b", "a\rb")
                .replace('|', "\r\n")
                .replace("a\rb", "a|b");
            let input = format!("{text}+rest");
            let read = |end: usize| dialect.answer(kind, keys, 3, &input.as_bytes()[..end]);
            for end in 0..text.len() {
                assert_eq!(read(end), Ok(None), "{text:?} cut at {end}");
            }
            assert_eq!(
                read(input.len()),
                Ok(Some((text.len(), expected))),
                "{text:?}"
            );
        }
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        use Dialect::{Memcached, Resp};
        use RequestKind::{Delete, Read, Write};
        let long = "x".repeat(LINE_BYTES_MAX + 1);
        for (dialect, kind, keys, text) in [
            (Resp, Write, 1, "+QUEUED|"),
            (Resp, Write, 1, ":1|"),
            (Resp, Read, 1, "$x|"),
            (Resp, Read, 1, "$99999999999|"),
            (Resp, Read, 1, "$3|abcd|"),
            (Resp, Read, 2, "*3|"),
            (Memcached, Write, 1, "+OK|"),
            (Resp, Delete, 1, "+OK|"),
            (Memcached, Delete, 1, "STORED|"),
            (Memcached, Read, 1, "VALUE key|"),
            (Memcached, Read, 1, "HTTP/1.1 400 Bad|"),
            (Resp, Write, 1, &long),
        ] {
            let text = text.replace('|', "\r\n");
            let read = dialect.answer(kind, keys, 3, text.as_bytes());
            assert!(read.is_err(), "{text:?}: {read:?}");
        }
    }
}
