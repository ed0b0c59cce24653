//! The commands that the door knows, as data. Arity checks, COMMAND's answers and the texts of refusals
//! are made from this one table; a command that is not in it does not exist. A test compares what COMMAND
//! answers for each with the answer of a Redis server.

/// The group of a command in the documentation, and its first `@` category.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommandGroup {
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
pub struct CommandEntry {
    /// In lower case, as Redis prints it.
    pub text: &'static str,
    /// The command's name as a value.
    pub name: CommandName,
    /// Exactly so many arguments, the name included; if negative, at least so many.
    pub arity: i32,
    /// As COMMAND prints them, blanks between.
    pub flags: &'static str,
    /// First key argument, last (negative: from the end), and the step between keys; 0 without keys.
    pub keys: (i32, i32, i32),
    /// The use of its keys, in the words of COMMAND's key specifications; empty without keys.
    pub key_flags: &'static str,
    /// The group that it belongs to.
    pub part: CommandGroup,
    /// The version of Redis that brought it.
    pub since: &'static str,
    /// The policies by which a cluster client sends it to several nodes and joins their answers.
    pub tips: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// Its subcommands.
    pub subcommands: &'static [Subcommand],
}

/// One subcommand.
#[derive(Debug)]
pub struct Subcommand {
    /// In lower case, without the command's name.
    pub text: &'static str,
    /// Counted with the command's name.
    pub arity: i32,
    /// As of a command.
    pub flags: &'static str,
    /// One sentence.
    pub summary: &'static str,
}

const NO_KEYS: (i32, i32, i32) = (0, 0, 0);
const ONE_KEY: (i32, i32, i32) = (1, 1, 1);
const ALL_KEYS: (i32, i32, i32) = (1, -1, 1);
const EVERY_SECOND: (i32, i32, i32) = (1, -1, 2);

// The policies by which a command goes to several nodes, and their answers become one.
const SUM_OF_SHARDS: &str = "request_policy:all_shards response_policy:agg_sum";
const SUM_OF_KEYS: &str = "request_policy:multi_shard response_policy:agg_sum";
const LIST_OF_KEYS: &str = "request_policy:multi_shard";
const ALL_OF_KEYS: &str = "request_policy:multi_shard response_policy:all_succeeded";
const ALL_OF_SHARDS: &str = "request_policy:all_shards response_policy:all_succeeded";
const VARIES: &str = "nondeterministic_output";
const VARIES_IN_ORDER: &str = "nondeterministic_output_order";
const VARIES_BY_SHARD: &str =
    "nondeterministic_output request_policy:all_shards response_policy:special";

macro_rules! table {
    ($($text:literal $name:ident $arity:literal $keys:ident $(($does:literal))?, $part:ident $since:literal
       [$flags:literal] $({$tips:ident})? $summary:literal
       $([$($sub:literal $sub_arity:literal ($sub_flags:literal) $sub_summary:literal),* $(,)?])?;)*) => {
        /// The name of a command.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(missing_docs)] // the names are the commands'
        pub enum CommandName {
            $($name,)*
        }

        /// All commands, in the order of their names.
        pub const COMMANDS: &[CommandEntry] = &[$(CommandEntry {
            text: $text,
            name: CommandName::$name,
            arity: $arity,
            flags: $flags,
            keys: $keys,
            key_flags: concat!($($does)?),
            part: CommandGroup::$part,
            since: $since,
            tips: first(&[$($tips,)? ""]),
            summary: $summary,
            subcommands: &[$($(Subcommand {
                text: $sub,
                arity: $sub_arity,
                flags: $sub_flags,
                summary: $sub_summary,
            }),*)?],
        },)*];
    };
}

/// For parts of a line of the table that may be left out.
const fn first(texts: &[&'static str]) -> &'static str {
    texts[0]
}

table! {
    "append" Append 3 ONE_KEY ("RW insert"), String "2.0.0" ["write denyoom fast"] "Append a value to a key";
    "asking" Asking 1 NO_KEYS, Cluster "3.0.0" ["fast"] "Accepted and without effect: a slot is never in two places";
    "auth" Auth -2 NO_KEYS, Connection "1.0.0" ["noscript loading stale fast no_auth allow_busy"] "Authenticate to the server";
    "client" Client -2 NO_KEYS, Connection "2.4.0" [""] "A container for client connection commands" [
        "getname" 2 ("noscript loading stale") "Get the connection's name",
        "help" 2 ("loading stale") "Show what there is",
        "id" 2 ("noscript loading stale") "Get the connection's number",
        "info" 2 ("noscript loading stale") "Tell of this connection",
        "list" -2 ("admin noscript loading stale") "Tell of all connections of the node",
        "no-evict" 3 ("admin noscript loading stale") "Accepted and without effect: no connection is closed for its memory",
        "no-touch" 3 ("noscript loading stale") "Accepted and without effect: reading a key changes nothing about it",
        "reply" 3 ("noscript loading stale") "Only ON: every command is answered",
        "setinfo" 4 ("noscript loading stale") "Name the client's library, or its version",
        "setname" 3 ("noscript loading stale") "Name the connection",
    ];
    "cluster" Cluster -2 NO_KEYS, Cluster "3.0.0" [""] "A container for cluster commands" [
        "countkeysinslot" 3 ("stale") "Not supported: keys are kept by bucket",
        "getkeysinslot" 4 ("stale") "Not supported: keys are kept by bucket",
        "help" 2 ("loading stale") "Show what there is",
        "info" 2 ("stale") "Tell how the cluster is",
        "keyslot" 3 ("stale") "Get the hash slot of a key",
        "myid" 2 ("stale") "Get the node's id",
        "nodes" 2 ("stale") "List the nodes with their slots, a line each",
        "replicas" 3 ("admin stale") "List a node's replicas: none, as every node is a master",
        "shards" 2 ("stale") "Map each node to its slots",
        "slaves" 3 ("admin stale") "List a node's replicas: none, as every node is a master",
        "slots" 2 ("stale") "Map ranges of slots to nodes",
    ];
    "command" Command -1 NO_KEYS, Server "2.8.13" ["loading stale"] {VARIES_IN_ORDER} "Get array of command details" [
        "count" 2 ("loading stale") "Count the commands",
        "docs" -2 ("loading stale") "Get documentation of commands",
        "getkeys" -4 ("loading stale") "Pick the keys out of a command",
        "getkeysandflags" -4 ("loading stale") "Pick the keys out of a command, and what it does with them",
        "help" 2 ("loading stale") "Show what there is",
        "info" -2 ("loading stale") "Get details of commands",
        "list" -2 ("loading stale") "List the names of the commands",
    ];
    "config" Config -2 NO_KEYS, Server "2.0.0" [""] "A container for configuration commands" [
        "get" -3 ("admin noscript loading stale") "Get options by pattern",
        "help" 2 ("loading stale") "Show what there is",
        "resetstat" 2 ("admin noscript loading stale") "Accepted and without effect: figures only grow",
        "set" -4 ("admin noscript loading stale") "Not supported: options are set at the start",
    ];
    "dbsize" DbSize 1 NO_KEYS, Server "1.0.0" ["readonly fast"] {SUM_OF_SHARDS} "Return the number of keys: in the whole cluster, or with redirects of this node";
    "decr" Decr 2 ONE_KEY ("RW access update"), String "1.0.0" ["write denyoom fast"] "Decrement the integer value of a key by one";
    "decrby" DecrBy 3 ONE_KEY ("RW access update"), String "1.0.0" ["write denyoom fast"] "Decrement the integer value of a key by the given number";
    "del" Del -2 ALL_KEYS ("RM delete"), Generic "1.0.0" ["write"] {SUM_OF_KEYS} "Delete keys";
    "echo" Echo 2 NO_KEYS, Connection "1.0.0" ["loading stale fast"] "Echo the given string";
    "exists" Exists -2 ALL_KEYS ("RO"), Generic "1.0.0" ["readonly fast"] {SUM_OF_KEYS} "Count the keys that exist";
    "get" Get 2 ONE_KEY ("RO access"), String "1.0.0" ["readonly fast"] "Get the value of a key";
    "getdel" GetDel 2 ONE_KEY ("RW access delete"), String "6.2.0" ["write fast"] "Get the value of a key and delete the key";
    "getset" GetSet 3 ONE_KEY ("RW access update"), String "1.0.0" ["write denyoom fast"] "Set the value of a key and return its old value";
    "hello" Hello -1 NO_KEYS, Connection "6.0.0" ["noscript loading stale fast no_auth allow_busy"] "Handshake, and choice of the protocol";
    "incr" Incr 2 ONE_KEY ("RW access update"), String "1.0.0" ["write denyoom fast"] "Increment the integer value of a key by one";
    "incrby" IncrBy 3 ONE_KEY ("RW access update"), String "1.0.0" ["write denyoom fast"] "Increment the integer value of a key by the given number";
    "info" Info -1 NO_KEYS, Server "1.0.0" ["loading stale"] {VARIES_BY_SHARD} "Get information and statistics about the node";
    "mget" MGet -2 ALL_KEYS ("RO access"), String "1.0.0" ["readonly fast"] {LIST_OF_KEYS} "Get the values of all the given keys, each as of its own moment";
    "mset" MSet -3 EVERY_SECOND ("OW update"), String "1.0.1" ["write denyoom"] {ALL_OF_KEYS} "Set keys to values, each atomically by itself";
    "ping" Ping -1 NO_KEYS, Connection "1.0.0" ["fast"] {ALL_OF_SHARDS} "Ping the node";
    "quit" Quit -1 NO_KEYS, Connection "1.0.0" ["noscript loading stale fast no_auth allow_busy"] "Close the connection";
    "readonly" ReadOnly 1 NO_KEYS, Cluster "3.0.0" ["loading stale fast"] "Accepted and without effect: copies answer no reads";
    "readwrite" ReadWrite 1 NO_KEYS, Cluster "3.0.0" ["loading stale fast"] "Accepted and without effect";
    "reset" Reset 1 NO_KEYS, Connection "6.2.0" ["noscript loading stale fast no_auth allow_busy"] "Reset the connection";
    "select" Select 2 NO_KEYS, Connection "1.0.0" ["loading stale fast"] "Change the selected database: there is only 0";
    "set" Set -3 ONE_KEY ("RW access update variable_flags"), String "1.0.0" ["write denyoom"] "Set the value of a key";
    "setnx" SetNx 3 ONE_KEY ("OW insert"), String "1.0.0" ["write denyoom fast"] "Set the value of a key, only if the key does not exist";
    "strlen" StrLen 2 ONE_KEY ("RO"), String "2.2.0" ["readonly fast"] "Get the length of the value of a key";
    "time" Time 1 NO_KEYS, Server "2.6.0" ["loading stale fast"] {VARIES} "Return the node's time";
    "unlink" Unlink -2 ALL_KEYS ("RM delete"), Generic "4.0.0" ["write fast"] {SUM_OF_KEYS} "Delete keys";
}

/// Longest name of the table.
const NAME_BYTES_MAX: usize = 16;

const GET: usize = place_of(CommandName::Get);
const SET: usize = place_of(CommandName::Set);

const fn place_of(name: CommandName) -> usize {
    let mut at = 0;
    while COMMANDS[at].name as u8 != name as u8 {
        at += 1;
    }
    at
}

/// The command of this name, in whatever case.
#[inline]
pub fn lookup(name: &[u8]) -> Option<&'static CommandEntry> {
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

impl CommandEntry {
    /// Returns whether this many arguments, the name included, are right.
    #[inline]
    pub fn takes(&self, args: usize) -> bool {
        fits(self.arity, args)
    }

    /// The subcommand of this name in whatever case.
    pub fn subcommand(&self, name: &[u8]) -> Option<&'static Subcommand> {
        let subcommands = self.subcommands.iter();
        let mut those = subcommands.filter(|s| s.text.as_bytes().eq_ignore_ascii_case(name));
        those.next()
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
}

/// Returns whether so many arguments fit an arity.
pub fn fits(arity: i32, args: usize) -> bool {
    let args = i32::try_from(args).unwrap_or(i32::MAX);
    if arity >= 0 {
        args == arity
    } else {
        args >= -arity
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
            assert!(
                entry.subcommands.is_sorted_by_key(|s| s.text),
                "{}",
                entry.text
            );
            assert_eq!(entry.keys.0 > 0, !entry.key_flags.is_empty());
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
