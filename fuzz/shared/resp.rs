//! The invariants of the parser of Redis's protocol, whatever comes.

use bytes::Buf;
use staves_resp::{Command, Limits, Output, Parser, ProtocolError};

/// Small, so that they are met.
const LIMITS: Limits = Limits {
    bulk_bytes_max: 512,
    args_max: 64,
    inline_bytes_max: 128,
    command_bytes_max: 1024,
};
/// Of a value.
const VALUE_BYTES_MAX: usize = 256;

/// Returns the number of understood commands. The first byte chooses the length of the reads that the rest is cut into.
pub fn resp(data: &[u8]) -> usize {
    let Some((read_bytes, input)) = data.split_first() else {
        return 0;
    };
    let whole = parse(input, input.len().max(1));
    let pieces = parse(input, usize::from(*read_bytes) + 1);
    assert_eq!(
        whole.error, pieces.error,
        "the same, however it was cut into reads"
    );
    assert_eq!(
        whole.commands, pieces.commands,
        "the same, however it was cut into reads"
    );
    whole.understood
}

/// The outcome of an input.
#[derive(Default)]
struct Parsed {
    commands: Vec<Vec<Vec<u8>>>,
    error: Option<ProtocolError>,
    understood: usize,
}

fn parse(input: &[u8], read_bytes: usize) -> Parsed {
    let mut parser = Parser::new(LIMITS);
    let mut buffer: Vec<u8> = Vec::new();
    let mut parsed = Parsed::default();
    for read in input.chunks(read_bytes) {
        buffer.extend_from_slice(read);
        let mut at = 0;
        loop {
            match parser.next(&buffer[at..]) {
                Ok(Some(frame)) => {
                    assert!((1..=buffer.len() - at).contains(&frame.used), "it moves on");
                    assert!(frame.args.len() <= LIMITS.args_max.max(LIMITS.inline_bytes_max));
                    let args = frame.args.iter_from(0).map(<[u8]>::to_vec);
                    parsed.commands.push(args.collect());
                    match Command::of(frame.args, VALUE_BYTES_MAX) {
                        Command::Refused(text) => one_line(&text),
                        Command::Nothing => {}
                        _ => parsed.understood += 1,
                    }
                    at += frame.used;
                }
                Ok(None) => break,
                Err(error) => {
                    parsed.error = Some(error);
                    return parsed;
                }
            }
        }
        buffer.drain(..at);
        assert!(
            parser.wanted(buffer.len()) <= LIMITS.command_bytes_max + LIMITS.bulk_bytes_max + 2
        );
    }
    parsed
}

/// However the client's own bytes got into an error, it leaves as one line.
fn one_line(text: &str) {
    let mut output = Output::new();
    output.error(text);
    let written = output.copy_to_bytes(output.remaining());
    let line = written.strip_suffix(b"\r\n").expect("it ends");
    assert!(!line.contains(&b'\r') && !line.contains(&b'\n'), "{text:?}");
}
