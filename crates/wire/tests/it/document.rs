//! `docs/PROTOCOL.md` against the code: its tables row by row, and its layouts by reading the recorded
//! bytes of every message with nothing but the layouts.

use std::collections::BTreeMap;

use staves_model::ServiceId;
use staves_wire::frame::{
    FRAME_BODY_MAX, FRAME_FORMAT, HEADER_BYTES, Limits, MESSAGE_BYTES_MAX, VERSION_MAX,
};
use staves_wire::{ErrorCode, Kind, Message, Opcode, Size, cache, error, hello, service};

const PAGE: &str = include_str!("../../../../docs/PROTOCOL.md");

/// The rows of the table under a heading, without its head.
fn table(heading: &str) -> Vec<Vec<&'static str>> {
    let start = PAGE
        .find(&format!("\n## {heading}\n"))
        .unwrap_or_else(|| panic!("docs/PROTOCOL.md has no section '{heading}'"));
    let section = &PAGE[start + 4..];
    let section = &section[..section.find("\n## ").unwrap_or(section.len())];
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}

#[test]
fn the_table_of_opcodes_is_the_codes() {
    let code = Opcode::ALL.iter().map(|opcode| {
        let kind = match opcode.kind() {
            Kind::Request => "request",
            Kind::Answer => "answer",
            Kind::OneWay => "one-way",
        };
        let size = match opcode.size() {
            Size::Frame => "frame",
            Size::Frames => "frames",
        };
        let (number, since) = (*opcode as u8, opcode.since());
        [
            &number.to_string(),
            opcode.word(),
            kind,
            size,
            &since.to_string(),
        ]
        .map(str::to_owned)
    });
    let code: Vec<_> = code.collect();
    assert_eq!(table("Opcodes"), code);
}

#[test]
fn the_table_of_error_codes_is_the_codes() {
    let code = ErrorCode::ALL.iter().map(|code| {
        let done = if code.nothing_done() {
            "yes"
        } else {
            "unknown"
        };
        let again = if code.worth_retrying() { "yes" } else { "no" };
        [&(*code as u16).to_string(), code.word(), done, again].map(str::to_owned)
    });
    let code: Vec<_> = code.collect();
    assert_eq!(table("Error codes"), code);
}

#[test]
fn limits_and_versions_are_the_codes() {
    let code = [
        FRAME_BODY_MAX,
        MESSAGE_BYTES_MAX,
        cache::VALUE_BYTES_MAX,
        cache::KEY_BYTES_MAX,
        service::OPS_MAX,
        staves_wire::TEXT_BYTES_MAX,
        error::ERROR_TEXT_BYTES_MAX,
        hello::CREDENTIALS_BYTES_MAX,
        Limits::default().unfinished_max,
    ];
    let page: Vec<_> = table("Limits").iter().map(|row| row[1]).collect();
    // The last row is `staves-net`'s, whose tests hold it.
    assert_eq!(page[..page.len() - 1], code.map(|n| n.to_string()));
    let versions =
        format!("Protocol version: **{VERSION_MAX}**. Frame format: **{FRAME_FORMAT}**.");
    assert!(
        PAGE.contains(&versions),
        "docs/PROTOCOL.md should say: {versions}"
    );
    let log: Vec<_> = table("Version log")
        .iter()
        .map(|row| row[0].to_owned())
        .collect();
    let all: Vec<_> = (1..=VERSION_MAX)
        .map(|version| version.to_string())
        .collect();
    assert_eq!(log, all, "one line a version");
}

/// The layouts of the page's `schema` block.
#[derive(Default)]
struct Schema {
    messages: BTreeMap<&'static str, Vec<&'static str>>,
    structs: BTreeMap<&'static str, Vec<&'static str>>,
    enums: BTreeMap<&'static str, BTreeMap<u8, Vec<&'static str>>>,
}

impl Schema {
    fn read() -> Schema {
        let (_, rest) = PAGE.split_once("```schema\n").expect("a schema block");
        let (block, _) = rest.split_once("```").expect("its end");
        let mut schema = Schema::default();
        for line in block.lines().filter(|line| !line.trim().is_empty()) {
            let (what, rest) = line.split_once(' ').expect("a kind and a name");
            let (name, body) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
            match what {
                "message" => drop(schema.messages.insert(name, fields(body))),
                "struct" => drop(schema.structs.insert(name, fields(body))),
                "enum" => drop(schema.enums.insert(name, variants(body))),
                other => panic!("'{other}' in '{line}'"),
            }
        }
        schema
    }

    /// Takes a value of this type off the front of the bytes.
    fn take(&self, kind: &'static str, bytes: &mut &[u8]) -> Result<(), String> {
        if let Some(item) = kind.strip_prefix("list ") {
            return (0..u32::from_le_bytes(array(bytes)?)).try_for_each(|_| self.take(item, bytes));
        }
        if let Some(item) = kind.strip_prefix("option ") {
            return match array::<1>(bytes)? {
                [0] => Ok(()),
                [1] => self.take(item, bytes),
                [tag] => Err(format!("tag {tag} of an option")),
            };
        }
        if let Some(item) = kind.strip_prefix("rest ") {
            while !bytes.is_empty() {
                self.take(item, bytes)?;
            }
            return Ok(());
        }
        let len = match kind {
            "u8" => 1,
            "u16" => 2,
            "u32" => 4,
            "u64" | "i64" => 8,
            "page" => 4096,
            "bytes" | "text" => u32::from_le_bytes(array(bytes)?) as usize,
            "bool" => match array::<1>(bytes)? {
                [0 | 1] => return Ok(()),
                [byte] => return Err(format!("{byte} for a bool")),
            },
            name => return self.take_named(name, bytes),
        };
        skip(bytes, len).map(|_| ())
    }

    fn take_named(&self, name: &'static str, bytes: &mut &[u8]) -> Result<(), String> {
        let fields = if let Some(fields) = self.structs.get(name) {
            fields
        } else {
            let variants = self.enums.get(name).ok_or(format!("no type '{name}'"))?;
            let [tag] = array(bytes)?;
            variants
                .get(&tag)
                .ok_or(format!("{name} has no tag {tag}"))?
        };
        fields.iter().try_for_each(|kind| self.take(kind, bytes))
    }
}

/// The types of `name type, name type`.
fn fields(body: &'static str) -> Vec<&'static str> {
    let fields = body
        .split(", ")
        .map(str::trim)
        .filter(|field| !field.is_empty());
    fields
        .map(|field| field.split_once(' ').expect("a name and a type").1)
        .collect()
}

/// Of `0 name(fields) | 1 name(fields)`.
fn variants(body: &'static str) -> BTreeMap<u8, Vec<&'static str>> {
    let one = |variant: &'static str| {
        let (tag, rest) = variant.trim().split_once(' ').expect("a tag and a name");
        let (_, inner) = rest.split_once('(').expect("fields in brackets");
        let inner = inner.strip_suffix(')').expect("the closing bracket");
        (tag.parse().expect("a number"), fields(inner))
    };
    body.split('|').map(one).collect()
}

fn skip<'a>(bytes: &mut &'a [u8], len: usize) -> Result<&'a [u8], String> {
    let Some((taken, left)) = bytes.split_at_checked(len) else {
        return Err(format!("{len} bytes are wanted and {} left", bytes.len()));
    };
    *bytes = left;
    Ok(taken)
}

fn array<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], String> {
    Ok(skip(bytes, N)?.try_into().expect("as long as asked"))
}

#[test]
fn the_layouts_read_every_recorded_message_to_its_end() {
    let schema = Schema::read();
    let words: Vec<_> = Opcode::ALL.iter().map(|opcode| opcode.word()).collect();
    for name in schema.messages.keys() {
        assert!(
            words.contains(name),
            "the page lays out '{name}', which the code does not have"
        );
    }
    for (name, message) in crate::golden::all() {
        let body = crate::golden::encoded(&message).split_off(HEADER_BYTES);
        let word = message.opcode().word();
        let layout = schema.messages.get(word);
        let layout = layout.unwrap_or_else(|| panic!("docs/PROTOCOL.md does not lay out '{word}'"));
        let mut left = &body[..];
        let read = layout
            .iter()
            .try_for_each(|kind| schema.take(kind, &mut left));
        assert_eq!(read, Ok(()), "{name}");
        assert!(left.is_empty(), "{name}: {} bytes are left", left.len());
    }
}

#[test]
fn the_layouts_read_the_head_of_every_operation_to_its_end() {
    let schema = Schema::read();
    for (name, message) in crate::golden::all() {
        let Message::Service(request) = message else {
            continue;
        };
        let layout = match request.service {
            ServiceId::CACHE => "Service-1",
            ServiceId::MEMORY => "Service-2",
            other => panic!("{name}: {other:?}"),
        };
        for op in &request.ops {
            let mut left = &op.body.head[..];
            assert_eq!(schema.take_named(layout, &mut left), Ok(()), "{name}");
            assert!(left.is_empty(), "{name}: {} bytes are left", left.len());
        }
    }
}
