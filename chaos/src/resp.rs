//! The smallest client of Redis's protocol that a run can do with: blocking, one connection, and exact
//! about what is known of a command whose answer did not come.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// What a command is answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// `+OK` and the like.
    Simple(String),
    /// `-ERR ...`.
    Error(String),
    /// A number.
    Int(i64),
    /// A value, or none.
    Bulk(Option<Vec<u8>>),
}

const LINE_BYTES_MAX: u64 = 64 << 10;
const BULK_BYTES_MAX: usize = 64 << 20;

/// A connection.
pub struct Resp {
    stream: BufReader<TcpStream>,
}

impl Resp {
    /// Connects; each later step may take as long as `patience`.
    pub fn connect(to: SocketAddr, connect: Duration, patience: Duration) -> io::Result<Resp> {
        let stream = TcpStream::connect_timeout(&to, connect)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        let stream = BufReader::new(stream);
        Ok(Resp { stream })
    }

    /// Sends one command and waits for its answer. After an error the connection is of no more use, and
    /// nobody knows what became of the command.
    pub fn call(&mut self, args: &[&[u8]]) -> io::Result<Reply> {
        let mut command = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            command.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            command.extend_from_slice(arg);
            command.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&command)?;
        reply(&mut self.stream)
    }
}

/// Whether an error says that the command was certainly not done.
pub fn nothing_done(error: &str) -> bool {
    ["TRYAGAIN", "OOM", "CLUSTERDOWN", "MOVED", "LOADING"]
        .iter()
        .any(|word| error.starts_with(word))
}

fn reply(from: &mut impl BufRead) -> io::Result<Reply> {
    let mut line = Vec::new();
    from.by_ref()
        .take(LINE_BYTES_MAX)
        .read_until(b'\n', &mut line)?;
    let ended = || io::Error::new(ErrorKind::UnexpectedEof, "the connection ended");
    let line = line.strip_suffix(b"\r\n").ok_or_else(ended)?;
    let wrong = || {
        let shown = line[..line.len().min(60)].escape_ascii();
        io::Error::new(ErrorKind::InvalidData, format!("'{shown}' is no answer"))
    };
    let (kind, text) = line.split_first().ok_or_else(wrong)?;
    let text = std::str::from_utf8(text).map_err(|_| wrong())?;
    let number = || text.parse::<i64>().map_err(|_| wrong());
    match kind {
        b'+' => Ok(Reply::Simple(text.to_owned())),
        b'-' => Ok(Reply::Error(text.to_owned())),
        b':' => number().map(Reply::Int),
        b'$' => match number()? {
            -1 => Ok(Reply::Bulk(None)),
            len => {
                let len = usize::try_from(len)
                    .ok()
                    .filter(|len| *len <= BULK_BYTES_MAX);
                let len = len.ok_or_else(wrong)?;
                let mut value = Vec::new();
                from.take(len as u64 + 2).read_to_end(&mut value)?;
                let whole = value.strip_suffix(b"\r\n").filter(|v| v.len() == len);
                Ok(Reply::Bulk(Some(whole.ok_or_else(ended)?.to_vec())))
            }
        },
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_whole_or_not_at_all() {
        let cases = [
            ("+OK\r\n", Reply::Simple("OK".into())),
            ("-TRYAGAIN x\r\n", Reply::Error("TRYAGAIN x".into())),
            (":-7\r\n", Reply::Int(-7)),
            ("$-1\r\n", Reply::Bulk(None)),
            ("$4\r\na\r\nb\r\n", Reply::Bulk(Some(b"a\r\nb".to_vec()))),
        ];
        for (text, expected) in cases {
            assert_eq!(reply(&mut text.as_bytes()).expect(text), expected);
            for cut in 0..text.len() {
                assert!(
                    reply(&mut &text.as_bytes()[..cut]).is_err(),
                    "{text:?} cut at {cut}"
                );
            }
        }
        for text in [
            "?\r\n",
            "$-2\r\n",
            "$99999999999\r\n",
            ":x\r\n",
            "*1\r\n:1\r\n",
        ] {
            assert!(reply(&mut text.as_bytes()).is_err(), "{text:?}");
        }
    }

    #[test]
    fn only_certain_errors_are_taken_for_not_done() {
        assert!(nothing_done("TRYAGAIN the key's bucket ..."));
        assert!(!nothing_done("IOERR the deadline passed ..."));
        assert!(!nothing_done("ERR whatever"));
    }
}
