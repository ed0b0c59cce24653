//! COMMAND: the table of commands as clients read it, to find the keys of a command and to help people.

use super::output::{Output, Protocol};
use super::parse::Args;
use super::subcommand::{help, subcommand};
use super::table::{COMMANDS, CommandEntry, CommandGroup, Subcommand, lookup};

/// Answers COMMAND and its subcommands.
pub(super) fn command(args: Args<'_>, protocol: Protocol, out: &mut Output) {
    match subcommand(args).as_str() {
        "" => write_all(protocol, out),
        "count" => out.integer(COMMANDS.len() as i64),
        "info" if args.len() == 2 => write_all(protocol, out),
        "info" => {
            out.array(args.len() - 2);
            for name in args.iter_from(2) {
                match CommandDoc::named(name) {
                    Some(doc) => doc.write(protocol, out),
                    None => out.nil_array(protocol),
                }
            }
        }
        "docs" => {
            let asked: Vec<CommandDoc> = match args.len() {
                2 => COMMANDS.iter().map(CommandDoc::Command).collect(),
                _ => args.iter_from(2).filter_map(CommandDoc::named).collect(),
            };
            out.map(protocol, asked.len());
            asked.iter().for_each(|doc| doc.write_docs(protocol, out));
        }
        "list" if args.len() > 2 => out.error("ERR syntax error"),
        "list" => {
            out.set(protocol, COMMANDS.len());
            COMMANDS
                .iter()
                .for_each(|entry| out.bulk(entry.text.as_bytes()));
        }
        "getkeys" => get_keys(args, false, protocol, out),
        "getkeysandflags" => get_keys(args, true, protocol, out),
        _ => help("command", out),
    }
}

fn write_all(protocol: Protocol, out: &mut Output) {
    out.array(COMMANDS.len());
    for entry in COMMANDS {
        CommandDoc::Command(entry).write(protocol, out);
    }
}

fn get_keys(args: Args<'_>, with_flags: bool, protocol: Protocol, out: &mut Output) {
    let Some(entry) = lookup(args.at(2)) else {
        return out.error("ERR Invalid command specified");
    };
    let inner = args.len() - 2;
    if entry.keys.0 == 0 {
        return out.error("ERR The command has no key arguments");
    }
    if !entry.takes(inner) {
        return out.error("ERR Invalid number of arguments specified for command");
    }
    let places: Vec<usize> = entry.key_places(inner).collect();
    out.array(places.len());
    for at in places {
        if with_flags {
            out.array(2);
        }
        out.bulk(args.at(at + 2));
        if with_flags {
            write_words(entry.key_flags.split_whitespace(), protocol, out);
        }
    }
}

/// A command, or a subcommand of one, that COMMAND describes.
#[derive(Clone, Copy)]
enum CommandDoc {
    Command(&'static CommandEntry),
    Subcommand(&'static CommandEntry, &'static Subcommand),
}

impl CommandDoc {
    /// `get`, or `client|list`.
    fn named(name: &[u8]) -> Option<CommandDoc> {
        let Some(bar) = name.iter().position(|byte| *byte == b'|') else {
            return lookup(name).map(CommandDoc::Command);
        };
        let entry = lookup(&name[..bar])?;
        let subcommand = entry.subcommand(&name[bar + 1..])?;
        Some(CommandDoc::Subcommand(entry, subcommand))
    }

    fn name(self) -> String {
        match self {
            CommandDoc::Command(entry) => entry.text.to_owned(),
            CommandDoc::Subcommand(entry, sub) => format!("{}|{}", entry.text, sub.text),
        }
    }

    fn flags(self) -> &'static str {
        match self {
            CommandDoc::Command(entry) => entry.flags,
            CommandDoc::Subcommand(_, sub) => sub.flags,
        }
    }

    fn entry(self) -> &'static CommandEntry {
        match self {
            CommandDoc::Command(entry) | CommandDoc::Subcommand(entry, _) => entry,
        }
    }

    /// As COMMAND INFO answers it.
    fn write(self, protocol: Protocol, out: &mut Output) {
        let (arity, keys, key_flags, tips, subcommands) = match self {
            CommandDoc::Command(e) => (e.arity, e.keys, e.key_flags, e.tips, e.subcommands),
            CommandDoc::Subcommand(_, sub) => (sub.arity, (0, 0, 0), "", "", &[][..]),
        };
        out.array(10);
        out.bulk(self.name().as_bytes());
        out.integer(i64::from(arity));
        write_words(self.flags().split_whitespace(), protocol, out);
        for number in [keys.0, keys.1, keys.2] {
            out.integer(i64::from(number));
        }
        write_words(self.categories().into_iter(), protocol, out);
        let tips: Vec<&str> = tips.split_whitespace().collect();
        out.array(tips.len());
        tips.iter().for_each(|tip| out.bulk(tip.as_bytes()));
        write_key_specs(keys, key_flags, protocol, out);
        out.array(subcommands.len());
        for sub in subcommands {
            CommandDoc::Subcommand(self.entry(), sub).write(protocol, out);
        }
    }

    /// As COMMAND DOCS answers it, with its name.
    fn write_docs(self, protocol: Protocol, out: &mut Output) {
        let (summary, subcommands) = match self {
            CommandDoc::Command(entry) => (entry.summary, entry.subcommands),
            CommandDoc::Subcommand(_, sub) => (sub.summary, &[][..]),
        };
        let group = match self.entry().part {
            CommandGroup::String => "string",
            CommandGroup::Generic => "generic",
            CommandGroup::Connection => "connection",
            CommandGroup::Server => "server",
            CommandGroup::Cluster => "cluster",
        };
        out.bulk(self.name().as_bytes());
        out.map(protocol, 3 + usize::from(!subcommands.is_empty()));
        let pairs = [
            ("summary", summary),
            ("since", self.entry().since),
            ("group", group),
        ];
        for (key, value) in pairs {
            out.bulk(key.as_bytes());
            out.bulk(value.as_bytes());
        }
        if !subcommands.is_empty() {
            out.bulk(b"subcommands");
            out.map(protocol, subcommands.len());
            for sub in subcommands {
                CommandDoc::Subcommand(self.entry(), sub).write_docs(protocol, out);
            }
        }
    }

    /// As Redis derives them: from the flags, and from where the command belongs. A command that only
    /// contains others has none of its own.
    fn categories(self) -> Vec<&'static str> {
        let has = |flag| self.flags().split_whitespace().any(|f| f == flag);
        let entry = self.entry();
        let own = match (self, entry.text) {
            (CommandDoc::Command(entry), _) if entry.flags.is_empty() => None,
            (_, "dbsize") => Some("@keyspace"),
            (_, "info") => Some("@dangerous"),
            (_, "command" | "asking" | "readonly" | "readwrite") => Some("@connection"),
            _ => match entry.part {
                CommandGroup::String => Some("@string"),
                CommandGroup::Generic => Some("@keyspace"),
                CommandGroup::Connection => Some("@connection"),
                CommandGroup::Server | CommandGroup::Cluster => None,
            },
        };
        let others = [
            has("readonly").then_some("@read"),
            has("write").then_some("@write"),
            Some(if has("fast") { "@fast" } else { "@slow" }),
            has("admin").then_some("@admin"),
            has("admin").then_some("@dangerous"),
        ];
        own.into_iter()
            .chain(others.into_iter().flatten())
            .collect()
    }
}

/// Writes the places of keys in the form that Redis 7 sends to cluster clients.
fn write_key_specs(keys: (i32, i32, i32), flags: &str, protocol: Protocol, out: &mut Output) {
    let (first, last, step) = keys;
    if first == 0 {
        return out.array(0);
    }
    out.array(1);
    out.map(protocol, 3);
    out.bulk(b"flags");
    write_words(flags.split_whitespace(), protocol, out);
    out.bulk(b"begin_search");
    write_spec("index", &[("index", first)], protocol, out);
    out.bulk(b"find_keys");
    let last = if last < 0 { last } else { last - first };
    let range = [("lastkey", last), ("keystep", step), ("limit", 0)];
    write_spec("range", &range, protocol, out);
}

fn write_words<'a>(words: impl Iterator<Item = &'a str>, protocol: Protocol, out: &mut Output) {
    let words: Vec<&str> = words.collect();
    out.set(protocol, words.len());
    words.iter().for_each(|word| out.simple(word));
}

fn write_spec(kind: &str, fields: &[(&str, i32)], protocol: Protocol, out: &mut Output) {
    out.map(protocol, 2);
    out.bulk(b"type");
    out.bulk(kind.as_bytes());
    out.bulk(b"spec");
    out.map(protocol, fields.len());
    for (name, value) in fields {
        out.bulk(name.as_bytes());
        out.integer(i64::from(*value));
    }
}
