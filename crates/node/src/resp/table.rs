//! The commands that the door knows, as data. Arity checks, COMMAND's answers and the texts of refusals
//! are made from this one table; a command that is not in it does not exist.

use super::output::{Output, Protocol};

/// Which command it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the names are the commands'
pub enum Name {
    Append,
    Auth,
    Client,
    Cluster,
    Command,
    Config,
    DbSize,
    Decr,
    DecrBy,
    Del,
    Echo,
    Exists,
    Get,
    GetDel,
    GetSet,
    Hello,
    Incr,
    IncrBy,
    Info,
    MGet,
    MSet,
    Ping,
    Quit,
    ReadOnly,
    ReadWrite,
    Reset,
    Select,
    Set,
    SetNx,
    StrLen,
    Time,
    Unlink,
}

/// What COMMAND says of a command: its part of the documentation and its first `@` category.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// About values.
    String,
    /// About keys whatever their values.
    Generic,
    /// About this connection.
    Connection,
    /// About the node.
    Server,
    /// About the cluster.
    Cluster,
}

/// One command.
#[derive(Debug)]
pub struct Entry {
    /// In lower case, as Redis prints it.
    pub text: &'static str,
    /// Which it is.
    pub name: Name,
    /// Exactly so many arguments, the name included; if negative, at least so many.
    pub arity: i32,
    /// As COMMAND prints them, blanks between.
    pub flags: &'static str,
    /// First key argument, last (negative: from the end), and the step between keys; 0 without keys.
    pub keys: (i32, i32, i32),
    /// Where it belongs.
    pub part: Part,
    /// The version of Redis that brought it.
    pub since: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// Its subcommands: lower case, and arity counted with the command's own name.
    pub subcommands: &'static [(&'static str, i32)],
}

const NO_KEYS: (i32, i32, i32) = (0, 0, 0);
const ONE_KEY: (i32, i32, i32) = (1, 1, 1);
const ALL_KEYS: (i32, i32, i32) = (1, -1, 1);

macro_rules! table {
    ($($text:literal $name:ident $arity:literal $keys:expr, $part:ident $since:literal
       [$flags:literal] $summary:literal $([$($sub:literal $sub_arity:literal),*])?;)*) => {
        /// All commands, in the order of their names.
        pub const COMMANDS: &[Entry] = &[$(Entry {
            text: $text,
            name: Name::$name,
            arity: $arity,
            flags: $flags,
            keys: $keys,
            part: Part::$part,
            since: $since,
            summary: $summary,
            subcommands: &[$($(($sub, $sub_arity)),*)?],
        },)*];
    };
}

table! {
    "append" Append 3 ONE_KEY, String "2.0.0" ["write denyoom fast"] "Append a value to a key";
    "auth" Auth -2 NO_KEYS, Connection "1.0.0" ["noscript loading stale fast no_auth allow_busy"] "Authenticate to the server";
    "client" Client -2 NO_KEYS, Connection "2.4.0" ["noscript loading stale"] "Client connection commands"
        ["getname" 2, "help" 2, "id" 2, "info" 2, "list" -2, "no-evict" 3, "no-touch" 3, "reply" 3, "setinfo" 4, "setname" 3];
    "cluster" Cluster -2 NO_KEYS, Cluster "3.0.0" ["stale"] "Cluster commands"
        ["help" 2, "info" 2, "keyslot" 3, "myid" 2, "nodes" 2, "shards" 2, "slots" 2];
    "command" Command -1 NO_KEYS, Server "2.8.13" ["loading stale"] "Get array of command details"
        ["count" 2, "docs" -2, "getkeys" -3, "help" 2, "info" -2, "list" -2];
    "config" Config -2 NO_KEYS, Server "2.0.0" ["admin noscript loading stale"] "Configuration commands"
        ["get" -3, "help" 2, "resetstat" 2, "set" -4];
    "dbsize" DbSize 1 NO_KEYS, Server "1.0.0" ["readonly fast"] "Return the number of keys in the whole cluster";
    "decr" Decr 2 ONE_KEY, String "1.0.0" ["write denyoom fast"] "Decrement the integer value of a key by one";
    "decrby" DecrBy 3 ONE_KEY, String "1.0.0" ["write denyoom fast"] "Decrement the integer value of a key by the given number";
    "del" Del -2 ALL_KEYS, Generic "1.0.0" ["write"] "Delete keys";
    "echo" Echo 2 NO_KEYS, Connection "1.0.0" ["loading stale fast"] "Echo the given string";
    "exists" Exists -2 ALL_KEYS, Generic "1.0.0" ["readonly fast"] "Count the keys that exist";
    "get" Get 2 ONE_KEY, String "1.0.0" ["readonly fast"] "Get the value of a key";
    "getdel" GetDel 2 ONE_KEY, String "6.2.0" ["write fast"] "Get the value of a key and delete the key";
    "getset" GetSet 3 ONE_KEY, String "1.0.0" ["write denyoom fast"] "Set the value of a key and return its old value";
    "hello" Hello -1 NO_KEYS, Connection "6.0.0" ["noscript loading stale fast no_auth allow_busy"] "Handshake, and choice of the protocol";
    "incr" Incr 2 ONE_KEY, String "1.0.0" ["write denyoom fast"] "Increment the integer value of a key by one";
    "incrby" IncrBy 3 ONE_KEY, String "1.0.0" ["write denyoom fast"] "Increment the integer value of a key by the given number";
    "info" Info -1 NO_KEYS, Server "1.0.0" ["loading stale"] "Get information and statistics about the node";
    "mget" MGet -2 ALL_KEYS, String "1.0.0" ["readonly fast"] "Get the values of all the given keys, each as of its own moment";
    "mset" MSet -3 (1, -1, 2), String "1.0.1" ["write denyoom"] "Set keys to values, each atomically by itself";
    "ping" Ping -1 NO_KEYS, Connection "1.0.0" ["fast"] "Ping the node";
    "quit" Quit -1 NO_KEYS, Connection "1.0.0" ["noscript loading stale fast no_auth allow_busy"] "Close the connection";
    "readonly" ReadOnly 1 NO_KEYS, Cluster "3.0.0" ["loading stale fast"] "Accepted and without effect: every node answers every read";
    "readwrite" ReadWrite 1 NO_KEYS, Cluster "3.0.0" ["loading stale fast"] "Accepted and without effect";
    "reset" Reset 1 NO_KEYS, Connection "6.2.0" ["noscript loading stale fast no_auth allow_busy"] "Reset the connection";
    "select" Select 2 NO_KEYS, Connection "1.0.0" ["loading stale fast"] "Change the selected database: there is only 0";
    "set" Set -3 ONE_KEY, String "1.0.0" ["write denyoom"] "Set the value of a key";
    "setnx" SetNx 3 ONE_KEY, String "1.0.0" ["write denyoom fast"] "Set the value of a key, only if the key does not exist";
    "strlen" StrLen 2 ONE_KEY, String "2.2.0" ["readonly fast"] "Get the length of the value of a key";
    "time" Time 1 NO_KEYS, Server "2.6.0" ["loading stale fast"] "Return the node's time";
    "unlink" Unlink -2 ALL_KEYS, Generic "4.0.0" ["write fast"] "Delete keys";
}

/// Longest name of the table.
const NAME_BYTES_MAX: usize = 16;

const GET: usize = place_of(Name::Get);
const SET: usize = place_of(Name::Set);

const fn place_of(name: Name) -> usize {
    let mut at = 0;
    while COMMANDS[at].name as u8 != name as u8 {
        at += 1;
    }
    at
}

/// The command of this name, in whatever case.
#[inline]
pub fn lookup(name: &[u8]) -> Option<&'static Entry> {
    let mut lower = [0; NAME_BYTES_MAX];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    let lower = &*lower;
    // The two that make up nearly all of what a cache is asked.
    match lower {
        b"get" => return Some(&COMMANDS[GET]),
        b"set" => return Some(&COMMANDS[SET]),
        _ => {}
    }
    let found = COMMANDS
        .binary_search_by(|entry| entry.text.as_bytes().cmp(lower))
        .ok()?;
    Some(&COMMANDS[found])
}

impl Entry {
    /// Whether this many arguments, the name included, are right.
    #[inline]
    pub fn takes(&self, args: usize) -> bool {
        fits(self.arity, args)
    }

    /// The subcommand of this name in whatever case, with its arity.
    pub fn subcommand(&self, name: &[u8]) -> Option<(&'static str, i32)> {
        self.subcommands
            .iter()
            .copied()
            .find(|(text, _)| text.as_bytes().eq_ignore_ascii_case(name))
    }

    /// The places of the keys among so many arguments.
    pub fn key_places(&self, args: usize) -> impl Iterator<Item = usize> + use<> {
        let (first, last, step) = self.keys;
        let end = if last < 0 { args as i32 + last } else { last };
        let range = if first > 0 { first..end + 1 } else { 0..0 };
        range
            .step_by(step.max(1) as usize)
            .map(|at| at as usize)
            .filter(move |at| *at < args)
    }

    /// The entry as COMMAND INFO answers it.
    pub fn write(&self, protocol: Protocol, out: &mut Output) {
        let (first, last, step) = self.keys;
        out.array(10);
        out.bulk(self.text.as_bytes());
        out.integer(i64::from(self.arity));
        write_words(self.flags.split(' '), protocol, out);
        [first, last, step]
            .iter()
            .for_each(|n| out.integer(i64::from(*n)));
        write_words(self.categories().into_iter(), protocol, out);
        out.array(0);
        self.write_key_specs(protocol, out);
        out.array(self.subcommands.len());
        for (text, arity) in self.subcommands {
            out.array(10);
            out.bulk(format!("{}|{text}", self.text).as_bytes());
            out.integer(i64::from(*arity));
            write_words(self.flags.split(' '), protocol, out);
            (0..3).for_each(|_| out.integer(0));
            write_words(self.categories().into_iter(), protocol, out);
            (0..3).for_each(|_| out.array(0));
        }
    }

    /// The entry as COMMAND DOCS answers it, without its name.
    pub fn write_docs(&self, protocol: Protocol, out: &mut Output) {
        let group = match self.part {
            Part::String => "string",
            Part::Generic => "generic",
            Part::Connection => "connection",
            Part::Server => "server",
            Part::Cluster => "cluster",
        };
        let pairs = [
            ("summary", self.summary),
            ("since", self.since),
            ("group", group),
        ];
        out.map(protocol, pairs.len());
        for (key, value) in pairs {
            out.bulk(key.as_bytes());
            out.bulk(value.as_bytes());
        }
    }

    fn categories(&self) -> Vec<&'static str> {
        let has = |flag| self.flags.split(' ').any(|f| f == flag);
        let part = match self.part {
            Part::String => Some("@string"),
            Part::Generic => Some("@keyspace"),
            Part::Connection => Some("@connection"),
            Part::Server | Part::Cluster => None,
        };
        let others = [
            has("readonly").then_some("@read"),
            has("write").then_some("@write"),
            Some(if has("fast") { "@fast" } else { "@slow" }),
            has("admin").then_some("@admin"),
        ];
        part.into_iter()
            .chain(others.into_iter().flatten())
            .collect()
    }

    /// Where its keys are, as Redis 7 tells it to cluster clients.
    fn write_key_specs(&self, protocol: Protocol, out: &mut Output) {
        let (first, last, step) = self.keys;
        if first == 0 {
            return out.array(0);
        }
        let access = if self.flags.starts_with("readonly") {
            "RO"
        } else {
            "RW"
        };
        out.array(1);
        out.map(protocol, 3);
        out.bulk(b"flags");
        write_words([access, "access"].into_iter(), protocol, out);
        out.bulk(b"begin_search");
        write_spec("index", &[("index", first)], protocol, out);
        out.bulk(b"find_keys");
        let last = if last < 0 { last } else { last - first };
        write_spec(
            "range",
            &[("lastkey", last), ("keystep", step), ("limit", 0)],
            protocol,
            out,
        );
    }
}

/// Whether so many arguments fit an arity.
pub fn fits(arity: i32, args: usize) -> bool {
    let args = i32::try_from(args).unwrap_or(i32::MAX);
    if arity >= 0 {
        args == arity
    } else {
        args >= -arity
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_every_name_is_found() {
        assert!(COMMANDS.is_sorted_by_key(|entry| entry.text));
        for entry in COMMANDS {
            assert!(entry.text.len() <= NAME_BYTES_MAX);
            let shouted = entry.text.to_ascii_uppercase();
            assert_eq!(lookup(shouted.as_bytes()).map(|e| e.name), Some(entry.name));
            assert!(entry.subcommands.is_sorted(), "{}", entry.text);
        }
        for unknown in ["", "gett", "ge", "a-name-longer-than-any", "g\0t"] {
            assert!(lookup(unknown.as_bytes()).is_none(), "{unknown}");
        }
    }

    #[test]
    fn keys_are_where_the_table_says() {
        let places = |name: &str, args| -> Vec<usize> {
            lookup(name.as_bytes())
                .map(|e| e.key_places(args).collect())
                .unwrap_or_default()
        };
        assert_eq!(places("get", 2), [1]);
        assert_eq!(places("mset", 5), [1, 3]);
        assert_eq!(places("del", 4), [1, 2, 3]);
        assert_eq!(places("ping", 2), [0usize; 0]);
    }
}
