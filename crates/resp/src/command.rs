//! From arguments to what is to be done: operations on keys, or something answered on the spot.

use staves_wire::cache::{Condition, KEY_BYTES_MAX, Op};

use super::output::Join;
use super::parse::{Args, integer};
use super::table::{CommandEntry, CommandName, fits, lookup};
use super::transaction::Mark;

/// The operations of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ops<'a> {
    /// One: most commands, and no allocation.
    One(Op<'a>),
    /// One for each key, in the order of the command.
    Many(Vec<Op<'a>>),
}

impl<'a> Ops<'a> {
    /// All of them.
    pub fn as_slice(&self) -> &[Op<'a>] {
        match self {
            Ops::One(op) => std::slice::from_ref(op),
            Ops::Many(ops) => ops,
        }
    }
}

/// A command, understood: operations for buckets, or something that the connection answers itself.
#[derive(Debug)]
pub enum Command<'a> {
    /// Operations on keys, and how their answers become one. The driver sends each to its bucket.
    Data {
        /// The operations. Each is atomic by itself; together they are not.
        ops: Ops<'a>,
        /// The rule that makes one answer of theirs.
        join: Join,
    },
    /// DBSIZE: the keys of all nodes, which the driver asks for; answered as an integer.
    KeyCount,
    /// Answered by [`Session::answer`](super::Session::answer) on the spot.
    Local {
        /// The command's name.
        name: CommandName,
        /// Its arguments; their number fits the command (and the subcommand).
        args: Args<'a>,
    },
    /// The begin or the end of a transaction. Commands in between MUST be refused: see [`Transaction`](super::Transaction).
    Transaction(Mark),
    /// Not done, and why: the error as it goes on the wire, behind the `-`.
    Refused(String),
    /// An empty line: no answer.
    Nothing,
}

impl<'a> Command<'a> {
    /// True if its answer tells of the whole node or cluster: it costs hundreds of times what a GET does.
    pub fn is_costly(&self) -> bool {
        match self {
            Command::KeyCount => true,
            Command::Local {
                name: CommandName::Client,
                args,
            } => args.at(1).eq_ignore_ascii_case(b"list"),
            Command::Local { args, .. } => {
                lookup(args.at(0)).is_none_or(|entry| !entry.flags.contains("fast"))
            }
            _ => false,
        }
    }

    /// The command that these arguments spell. `value_bytes_max` is the configured limit of a value.
    pub fn of(args: Args<'a>, value_bytes_max: usize) -> Command<'a> {
        if args.is_empty() {
            return Command::Nothing;
        }
        let Some(entry) = lookup(args.at(0)) else {
            return not_here(args);
        };
        if !entry.takes(args.len())
            || (entry.name == CommandName::MSet && args.len().is_multiple_of(2))
        {
            return Command::Refused(wrong_arity(entry.text));
        }
        if let Some(refusal) = too_much(entry, args) {
            return Command::Refused(refusal);
        }
        if let Some(refusal) = oversized(entry, args, value_bytes_max) {
            return Command::Refused(refusal);
        }
        if !entry.subcommands.is_empty()
            && let Err(refusal) = check_subcommand(entry, args)
        {
            return Command::Refused(refusal);
        }
        data(entry.name, args).unwrap_or_else(Command::Refused)
    }
}

/// Builds the operations; what is none is local.
fn data<'a>(name: CommandName, args: Args<'a>) -> Result<Command<'a>, String> {
    let (op, join) = match name {
        CommandName::Get => (Op::Get { key: args.at(1) }, Join::Plain),
        CommandName::Set => (set(args)?, Join::Plain),
        CommandName::SetNx => (plain_set(args, Condition::IfAbsent, false), Join::Done),
        CommandName::GetSet => (plain_set(args, Condition::Always, true), Join::Plain),
        CommandName::GetDel => (Op::GetDel { key: args.at(1) }, Join::Plain),
        CommandName::StrLen => (Op::StrLen { key: args.at(1) }, Join::Plain),
        CommandName::Append => (
            Op::Append {
                key: args.at(1),
                value: args.at(2),
            },
            Join::Plain,
        ),
        CommandName::Incr => (add(args, 1), Join::Plain),
        CommandName::Decr => (add(args, -1), Join::Plain),
        CommandName::IncrBy => (add(args, number(args.at(2))?), Join::Plain),
        CommandName::DecrBy => {
            let by = number(args.at(2))?.checked_neg();
            let by = by.ok_or("ERR decrement would overflow")?;
            (add(args, by), Join::Plain)
        }
        CommandName::Del | CommandName::Unlink => {
            return Ok(each(args, Join::Deleted, |key| Op::Del { key }));
        }
        CommandName::Exists => return Ok(each(args, Join::Sum, |key| Op::Exists { key })),
        CommandName::MGet => return Ok(each(args, Join::Each, |key| Op::Get { key })),
        CommandName::MSet => {
            let places = (1..args.len()).step_by(2);
            let ops = places.map(|at| Op::Set {
                key: args.at(at),
                value: args.at(at + 1),
                condition: Condition::Always,
                get_old: false,
            });
            return Ok(Command::Data {
                ops: Ops::Many(ops.collect()),
                join: Join::AllDone,
            });
        }
        CommandName::DbSize => return Ok(Command::KeyCount),
        local => return Ok(Command::Local { name: local, args }),
    };
    Ok(Command::Data {
        ops: Ops::One(op),
        join,
    })
}

fn add(args: Args<'_>, by: i64) -> Op<'_> {
    Op::IncrBy {
        key: args.at(1),
        by,
    }
}

fn each<'a>(args: Args<'a>, join: Join, op: impl Fn(&'a [u8]) -> Op<'a>) -> Command<'a> {
    let ops = if args.len() == 2 {
        Ops::One(op(args.at(1)))
    } else {
        Ops::Many(args.iter_from(1).map(op).collect())
    };
    Command::Data { ops, join }
}

fn plain_set<'a>(args: Args<'a>, condition: Condition, get_old: bool) -> Op<'a> {
    Op::Set {
        key: args.at(1),
        value: args.at(2),
        condition,
        get_old,
    }
}

/// SET with its options.
///
/// Options that ask for expiry are refused: an error is better than a value that stays although it should expire.
fn set<'a>(args: Args<'a>) -> Result<Op<'a>, String> {
    const SYNTAX: &str = "ERR syntax error";
    let (mut condition, mut get_old, mut expiry) = (Condition::Always, false, None);
    let mut options = args.iter_from(3);
    while let Some(option) = options.next() {
        let is = |text: &str| option.eq_ignore_ascii_case(text.as_bytes());
        let asked = match () {
            () if is("nx") => Some(Condition::IfAbsent),
            () if is("xx") => Some(Condition::IfPresent),
            () => None,
        };
        if let Some(asked) = asked {
            if condition != Condition::Always && condition != asked {
                return Err(SYNTAX.into());
            }
            condition = asked;
        } else if is("get") {
            get_old = true;
        } else if let Some(name) = ["EX", "PX", "EXAT", "PXAT", "KEEPTTL"]
            .into_iter()
            .find(|n| is(n))
        {
            let whole = name == "KEEPTTL" || options.next().is_some();
            if !whole || expiry.is_some() {
                return Err(SYNTAX.into());
            }
            expiry = Some(name);
        } else {
            return Err(SYNTAX.into());
        }
    }
    if let Some(option) = expiry {
        return Err(format!(
            "ERR SET option '{option}' is not supported yet: expiry comes with a later version. \
             Nothing was set; leave the option out to set the value for good"
        ));
    }
    Ok(plain_set(args, condition, get_old))
}

fn number(text: &[u8]) -> Result<i64, String> {
    integer(text).ok_or_else(|| "ERR value is not an integer or out of range".into())
}

/// Keys and values beyond the limits of the store.
fn oversized(entry: &CommandEntry, args: Args<'_>, value_bytes_max: usize) -> Option<String> {
    for at in entry.key_places(args.len()) {
        let key = args.at(at);
        if key.len() > KEY_BYTES_MAX {
            return Some(format!(
                "ERR the key has {} bytes, more than the {KEY_BYTES_MAX} that a key may have",
                key.len()
            ));
        }
        let brings_value = matches!(
            entry.name,
            CommandName::Set
                | CommandName::SetNx
                | CommandName::GetSet
                | CommandName::Append
                | CommandName::MSet
        );
        let value_len = if brings_value {
            args.at(at + 1).len()
        } else {
            0
        };
        if value_len > value_bytes_max {
            return Some(format!(
                "ERR the value has {value_len} bytes, more than the {value_bytes_max} that \
                 value_bytes_max allows"
            ));
        }
    }
    None
}

fn check_subcommand(entry: &CommandEntry, args: Args<'_>) -> Result<(), String> {
    let Some(text) = args.get(1) else {
        return Ok(()); // arity allows the bare command (COMMAND)
    };
    match entry.subcommand(text) {
        Some(sub) if fits(sub.arity, args.len()) => Ok(()),
        Some(sub) => Err(wrong_arity(&format!("{}|{}", entry.text, sub.text))),
        None => Err(format!(
            "ERR unknown subcommand '{}'. Try {} HELP.",
            shown(text, 128),
            entry.text.to_ascii_uppercase()
        )),
    }
}

/// Most arguments of a command that is not about keys: each may have a long answer (COMMAND DOCS).
const LOCAL_ARGS_MAX: usize = 1024;
/// Most bytes of all of them: what is not understood is said in the answer, and goes through several hands until then. Not of those whose
/// argument is a value, which is the answer.
const LOCAL_BYTES_MAX: usize = 64 << 10;

/// Refuses a command that is not about keys and has more arguments than such a command needs.
fn too_much(entry: &CommandEntry, args: Args<'_>) -> Option<String> {
    let name = entry.text;
    if entry.keys.0 != 0 {
        None
    } else if args.len() > LOCAL_ARGS_MAX {
        let most = LOCAL_ARGS_MAX;
        Some(format!("ERR '{name}' takes at most {most} arguments here"))
    } else if matches!(entry.name, CommandName::Echo | CommandName::Ping) {
        None
    } else {
        let bytes: usize = args.iter_from(1).map(<[u8]>::len).sum();
        let most = LOCAL_BYTES_MAX;
        (bytes > most).then(|| format!("ERR '{name}' takes at most {most} bytes here"))
    }
}

fn wrong_arity(name: &str) -> String {
    format!("ERR wrong number of arguments for '{name}' command")
}

/// The commands that Redis has and this door has not, with the reason.
///
/// They are not called unknown: some clients send a script again for ever if its command is.
const NOT_HERE: [(&[&str], &str); 6] = [
    (
        &[
            "EVAL",
            "EVALSHA",
            "EVAL_RO",
            "EVALSHA_RO",
            "SCRIPT",
            "FCALL",
            "FCALL_RO",
            "FUNCTION",
        ],
        "scripts are not supported",
    ),
    (
        &[
            "EXPIRE",
            "PEXPIRE",
            "EXPIREAT",
            "PEXPIREAT",
            "EXPIRETIME",
            "PEXPIRETIME",
            "PERSIST",
            "TTL",
            "PTTL",
            "SETEX",
            "PSETEX",
            "GETEX",
            "TOUCH",
        ],
        "keys do not expire yet: that comes with a later version",
    ),
    (
        &["SCAN", "KEYS", "RANDOMKEY"],
        "keys cannot be listed yet: that comes with a later version",
    ),
    (
        &["FLUSHALL", "FLUSHDB", "SWAPDB"],
        "there is no command yet that empties a pool: delete keys by their names, or the pool ('staves pool delete')",
    ),
    (
        &["WATCH", "UNWATCH"],
        "transactions are not supported: use INCR, APPEND, SET with NX or XX, GETSET or GETDEL, which are atomic",
    ),
    (
        &[
            "SUBSCRIBE",
            "UNSUBSCRIBE",
            "PSUBSCRIBE",
            "PUNSUBSCRIBE",
            "SSUBSCRIBE",
            "SUNSUBSCRIBE",
            "PUBLISH",
            "SPUBLISH",
            "PUBSUB",
            "MONITOR",
        ],
        "publish and subscribe are not supported",
    ),
];

fn not_here(args: Args<'_>) -> Command<'_> {
    if let Some(mark) = Mark::of(args) {
        return match args.len() {
            1 => Command::Transaction(mark),
            _ => Command::Refused(wrong_arity(&shown(args.at(0), 128).to_ascii_lowercase())),
        };
    }
    let name = args.at(0);
    let is = |text: &&str| name.eq_ignore_ascii_case(text.as_bytes());
    let known = NOT_HERE.iter().find(|(names, _)| names.iter().any(is));
    Command::Refused(match known {
        Some((_, why)) => format!("ERR '{}': {why}. Nothing was done", shown(name, 128)),
        None => unknown(args),
    })
}

/// Redis 7's words for a command that does not exist, with as much of its arguments as Redis shows.
fn unknown(args: Args<'_>) -> String {
    const SHOWN: usize = 128;
    let mut beginning = String::new();
    for arg in args.iter_from(1) {
        if beginning.len() >= SHOWN {
            break;
        }
        let left = SHOWN - beginning.len();
        beginning += &format!("'{}' ", shown(arg, left));
    }
    format!(
        "ERR unknown command '{}', with args beginning with: {beginning}",
        shown(args.at(0), SHOWN)
    )
}

/// At most so many bytes of what a client sent, as text.
fn shown(bytes: &[u8], max: usize) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(max)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::{Limits, Parser};

    const VALUE_MAX: usize = 1 << 20;

    fn with<T>(args: &[&[u8]], look: impl FnOnce(Command<'_>) -> T) -> T {
        let mut input = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            input.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            input.extend_from_slice(arg);
            input.extend_from_slice(b"\r\n");
        }
        let mut parser = Parser::new(Limits::default());
        let frame = parser.next(&input).expect("well formed").expect("whole");
        look(Command::of(frame.args, VALUE_MAX))
    }

    fn line<T>(text: &str, look: impl FnOnce(Command<'_>) -> T) -> T {
        let args: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
        with(&args, look)
    }

    fn refusal(text: &str) -> String {
        line(text, |command| match command {
            Command::Refused(text) => text,
            other => format!("not refused: {other:?}"),
        })
    }

    fn set_of(condition: Condition, get_old: bool) -> Op<'static> {
        Op::Set {
            key: b"k",
            value: b"v",
            condition,
            get_old,
        }
    }

    #[test]
    fn commands_become_operations() {
        let cases: Vec<(&str, Op<'static>, Join)> = vec![
            ("GET k", Op::Get { key: b"k" }, Join::Plain),
            ("set k v", set_of(Condition::Always, false), Join::Plain),
            (
                "SET k v NX",
                set_of(Condition::IfAbsent, false),
                Join::Plain,
            ),
            (
                "SET k v get xx",
                set_of(Condition::IfPresent, true),
                Join::Plain,
            ),
            (
                "SET k v NX NX GET",
                set_of(Condition::IfAbsent, true),
                Join::Plain,
            ),
            ("SETNX k v", set_of(Condition::IfAbsent, false), Join::Done),
            ("GETSET k v", set_of(Condition::Always, true), Join::Plain),
            ("GETDEL k", Op::GetDel { key: b"k" }, Join::Plain),
            ("STRLEN k", Op::StrLen { key: b"k" }, Join::Plain),
            (
                "APPEND k v",
                Op::Append {
                    key: b"k",
                    value: b"v",
                },
                Join::Plain,
            ),
            ("INCR k", Op::IncrBy { key: b"k", by: 1 }, Join::Plain),
            ("DECR k", Op::IncrBy { key: b"k", by: -1 }, Join::Plain),
            ("INCRBY k 7", Op::IncrBy { key: b"k", by: 7 }, Join::Plain),
            ("DECRBY k 7", Op::IncrBy { key: b"k", by: -7 }, Join::Plain),
            ("DEL k", Op::Del { key: b"k" }, Join::Deleted),
            ("EXISTS k", Op::Exists { key: b"k" }, Join::Sum),
            ("MGET k", Op::Get { key: b"k" }, Join::Each),
        ];
        for (text, op, join) in cases {
            line(text, |command| match command {
                Command::Data {
                    ops: Ops::One(got),
                    join: how,
                } => {
                    assert_eq!((got, how), (op, join), "{text}");
                }
                other => panic!("{text}: {other:?}"),
            });
        }
    }

    #[test]
    fn commands_of_many_keys_become_one_operation_a_key() {
        let count = |text: &str| {
            line(text, |command| match command {
                Command::Data { ops, join } => (ops.as_slice().len(), join),
                other => panic!("{text}: {other:?}"),
            })
        };
        assert_eq!(count("DEL a b c"), (3, Join::Deleted));
        assert_eq!(count("UNLINK a b"), (2, Join::Deleted));
        assert_eq!(count("EXISTS a a a"), (3, Join::Sum));
        assert_eq!(count("MGET a b"), (2, Join::Each));
        assert_eq!(count("MSET a 1 b 2"), (2, Join::AllDone));
        assert_eq!(count("MSET a 1"), (1, Join::AllDone));
    }

    #[test]
    fn refusals_use_the_words_of_redis() {
        let cases = [
            ("GET", "ERR wrong number of arguments for 'get' command"),
            ("GET a b", "ERR wrong number of arguments for 'get' command"),
            (
                "MSET a 1 b",
                "ERR wrong number of arguments for 'mset' command",
            ),
            ("SET k v FOO", "ERR syntax error"),
            ("SET k v NX XX", "ERR syntax error"),
            ("SET k v EX", "ERR syntax error"),
            ("SET k v EX 1 PX 1", "ERR syntax error"),
            ("INCRBY k 1x", "ERR value is not an integer or out of range"),
            (
                "DECRBY k -9223372036854775808",
                "ERR decrement would overflow",
            ),
            (
                "FOO a b",
                "ERR unknown command 'FOO', with args beginning with: 'a' 'b' ",
            ),
            (
                "CONFIG FOO",
                "ERR unknown subcommand 'FOO'. Try CONFIG HELP.",
            ),
            (
                "CONFIG GET",
                "ERR wrong number of arguments for 'config|get' command",
            ),
            (
                "CLIENT",
                "ERR wrong number of arguments for 'client' command",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(refusal(text), expected, "{text}");
        }
        let long = refusal(&format!("{} {} x", "F".repeat(300), "a".repeat(300)));
        let name = "F".repeat(128);
        let arg = "a".repeat(128);
        assert_eq!(
            long,
            format!("ERR unknown command '{name}', with args beginning with: '{arg}' ")
        );
    }

    /// Regression: a client of Java sends a script again, thousands of times a second and without end, where the error begins
    /// with "ERR unknown command".
    #[test]
    fn what_redis_has_and_is_not_here_is_refused_in_words_of_its_own() {
        for (text, part) in [
            ("EVAL return 0", "scripts are not supported"),
            ("evalsha 0123 0", "scripts are not supported"),
            ("SETEX k 10 v", "do not expire yet"),
            ("EXPIRE k 10", "do not expire yet"),
            ("SCAN 0", "cannot be listed yet"),
            ("FLUSHALL", "staves pool delete"),
            ("WATCH k", "transactions are not supported"),
            ("SUBSCRIBE c", "not supported"),
        ] {
            let refusal = refusal(text);
            assert!(
                refusal.contains(part) && refusal.ends_with("Nothing was done"),
                "{refusal}"
            );
            assert!(!refusal.contains("unknown command"), "{refusal}");
            assert!(lookup(text.split(' ').next().unwrap().as_bytes()).is_none());
        }
    }

    #[test]
    fn expiry_is_refused_and_never_ignored() {
        for option in ["EX 10", "px 10", "EXAT 1", "PXAT 1", "KEEPTTL", "NX EX 1"] {
            let text = refusal(&format!("SET k v {option}"));
            assert!(text.starts_with("ERR SET option '"), "{text}");
            assert!(text.contains("not supported yet: expiry"), "{text}");
        }
    }

    #[test]
    fn oversized_keys_and_values_are_refused() {
        let key = vec![b'k'; KEY_BYTES_MAX + 1];
        let value = vec![b'v'; VALUE_MAX + 1];
        let refused = |args: &[&[u8]]| with(args, |c| matches!(c, Command::Refused(_)));
        assert!(refused(&[b"GET", &key]));
        assert!(!refused(&[b"GET", &key[1..]]));
        assert!(refused(&[b"MGET", b"a", &key]));
        assert!(refused(&[b"MSET", b"a", b"b", b"c", &value]));
        assert!(refused(&[b"SET", b"a", &value]));
        assert!(!refused(&[b"SET", b"a", &value[1..]]));
        assert!(!refused(&[b"ECHO", &value]));
    }

    /// Regression: of COMMAND DOCS with a million names a node took 1.4 GiB, and a thread for half a minute.
    #[test]
    fn commands_without_keys_take_few_arguments() {
        let refused = |args: &[&[u8]]| with(args, |c| matches!(c, Command::Refused(_)));
        let docs =
            |names: usize| [&[&b"COMMAND"[..], b"DOCS"][..], &vec![&b"get"[..]; names]].concat();
        assert!(!refused(&docs(LOCAL_ARGS_MAX - 2)));
        assert!(refused(&docs(LOCAL_ARGS_MAX - 1)));
        let keys = [&[&b"MGET"[..]][..], &vec![&b"k"[..]; 2 * LOCAL_ARGS_MAX]].concat();
        assert!(!refused(&keys));
    }

    /// Regression: of a HELLO with an unknown option of 200 MiB a node took 1.4 GiB, of a CLIENT SETINFO 2.2 GiB.
    #[test]
    fn commands_without_keys_take_few_bytes() {
        let refused = |args: &[&[u8]]| with(args, |c| matches!(c, Command::Refused(_)));
        let long = vec![b'x'; LOCAL_BYTES_MAX - 20];
        for command in [
            &[&b"HELLO"[..], b"3"][..],
            &[b"CLIENT", b"SETINFO"],
            &[b"INFO"],
            &[b"COMMAND", b"GETKEYS"],
        ] {
            assert!(!refused(&[command, &[&long, b"y"]].concat()), "{command:?}");
            assert!(refused(&[command, &[&long, &long]].concat()), "{command:?}");
        }
        assert!(!refused(&[b"ECHO", &[&long[..], &long].concat()]));
    }

    #[test]
    fn the_rest_is_local() {
        for text in [
            "PING",
            "HELLO 3",
            "INFO",
            "COMMAND",
            "COMMAND DOCS get",
            "client setinfo lib-name x",
            "QUIT",
        ] {
            line(text, |command| {
                assert!(
                    matches!(command, Command::Local { .. }),
                    "{text}: {command:?}"
                );
            });
        }
        line("DBSIZE", |command| {
            assert!(matches!(command, Command::KeyCount))
        });
    }

    #[test]
    fn what_tells_of_the_whole_node_is_costly() {
        let costly = |text: &str| {
            let mut is = false;
            line(text, |command| is = command.is_costly());
            is
        };
        for text in [
            "INFO",
            "info server",
            "CLUSTER NODES",
            "CLUSTER SLOTS",
            "COMMAND",
            "DBSIZE",
            "client LIST",
        ] {
            assert!(costly(text), "{text}");
        }
        for text in [
            "PING",
            "GET k",
            "SET k v",
            "HELLO 3",
            "client setinfo lib-name x",
            "RESET",
            "MGET a b",
        ] {
            assert!(!costly(text), "{text}");
        }
    }
}
