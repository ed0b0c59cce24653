//! The RESP door against Redis's own tools: a table of keys behind the real codec, on a real socket.
//! What they send at connect, pipelines and large values are theirs, not ours.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command as Process;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use staves_resp::{
    After, Brief, COMMANDS, ClientFacts, Command, Facts, Limits, NOT_DONE, Output, Parser,
    ServerInfo, Session,
};
use staves_testkit::free_port;
use staves_testkit::tools::{runs, skip};
use staves_wire::cache::{Condition, Op};
use staves_wire::service::Answer;

use staves_testkit::resp::{Reply, RespClient};

type Table = Arc<Mutex<BTreeMap<Vec<u8>, Bytes>>>;

/// Serves connections until the test process ends; the port.
fn serve() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let table = Table::default();
    std::thread::spawn(move || {
        for (id, stream) in listener.incoming().enumerate() {
            let (stream, table) = (stream.expect("a connection"), table.clone());
            std::thread::spawn(move || converse(stream, id as u64, &table));
        }
    });
    port
}

/// A driver's work, in its simplest form.
fn converse(mut stream: TcpStream, id: u64, table: &Table) {
    let mut parser = Parser::new(Limits::default());
    let mut session = Session::new(id, String::new(), String::new(), Duration::ZERO);
    let (mut input, mut out) = (Vec::new(), Output::new());
    let mut chunk = vec![0; 16 << 10];
    loop {
        let read = stream.read(&mut chunk).unwrap_or(0);
        if read == 0 {
            return;
        }
        input.extend_from_slice(&chunk[..read]);
        let mut at = 0;
        let mut after = After::Open;
        while after == After::Open {
            match parser.next(&input[at..]) {
                Ok(None) => break,
                Ok(Some(frame)) => {
                    let command = Command::of(frame.args, 512 << 20);
                    after = answer(command, &mut session, table, &mut out);
                    at += frame.used;
                }
                Err(error) => {
                    out.error(&format!("ERR {error}"));
                    after = After::Close;
                }
            }
        }
        input.drain(..at);
        while out.has_remaining() {
            let Ok(written) = stream.write(out.chunk()) else {
                return;
            };
            out.advance(written);
        }
        if after == After::Close {
            return;
        }
    }
}

/// Knows nothing of itself.
struct Nothing;

impl ServerInfo for Nothing {
    fn brief(&self) -> Brief {
        Brief::default()
    }

    fn facts(&self) -> Facts {
        Facts::default()
    }

    fn clients(&self) -> Vec<ClientFacts> {
        Vec::new()
    }
}

fn answer(command: Command<'_>, session: &mut Session, table: &Table, out: &mut Output) -> After {
    let mut table = table.lock().expect("not poisoned");
    match command {
        Command::Data { ops, join } => {
            let answers: Vec<Answer> = ops
                .as_slice()
                .iter()
                .map(|op| apply(&mut table, op))
                .collect();
            out.join(session.protocol(), join, &answers);
        }
        Command::KeyCount => out.integer(table.len() as i64),
        Command::Local { name, args } => return session.answer(name, args, &Nothing, out),
        Command::Refused(text) => out.error(&text),
        Command::Transaction(_) => out.error(NOT_DONE),
        Command::Nothing => {}
    }
    After::Open
}

fn apply(table: &mut BTreeMap<Vec<u8>, Bytes>, op: &Op<'_>) -> Answer {
    let old = table.get(op.key()).cloned();
    let value = |old: &Option<Bytes>| old.clone().map_or(Answer::Nil, Answer::Value);
    match *op {
        Op::Get { .. } => value(&old),
        Op::Set {
            key,
            value: new,
            condition,
            get_old,
        } => {
            let done = match condition {
                Condition::Always => true,
                Condition::IfAbsent => old.is_none(),
                Condition::IfPresent => old.is_some(),
            };
            if done {
                table.insert(key.to_vec(), Bytes::copy_from_slice(new));
            }
            match (get_old, done) {
                (true, _) => value(&old),
                (false, true) => Answer::Ok,
                (false, false) => Answer::Nil,
            }
        }
        Op::Del { key } => Answer::Int(i64::from(table.remove(key).is_some())),
        Op::GetDel { key } => table.remove(key).map_or(Answer::Nil, Answer::Value),
        Op::Exists { .. } => Answer::Int(i64::from(old.is_some())),
        Op::StrLen { .. } => Answer::Int(old.map_or(0, |old| old.len() as i64)),
        Op::IncrBy { key, by } => {
            let text = old.unwrap_or(Bytes::from_static(b"0"));
            let number: i64 = std::str::from_utf8(&text)
                .expect("text")
                .parse()
                .expect("a number");
            table.insert(key.to_vec(), (number + by).to_string().into());
            Answer::Int(number + by)
        }
        Op::Append { key, value } => {
            let new = [&old.unwrap_or_default()[..], value].concat();
            let len = new.len() as i64;
            table.insert(key.to_vec(), new.into());
            Answer::Int(len)
        }
    }
}

/// True if a tool is here; else the test is to be skipped.
fn has(tool: &str) -> bool {
    runs(tool, &["--version"])
}

fn cli(port: u16, args: &[&str]) -> String {
    let port = port.to_string();
    let mut command = Process::new("redis-cli");
    let ran = command
        .args(["-p", &port])
        .args(args)
        .output()
        .expect("redis-cli runs");
    String::from_utf8_lossy(&ran.stdout).trim_end().to_owned()
}

#[test]
fn redis_cli_holds_a_conversation() {
    if !has("redis-cli") {
        return;
    }
    let port = serve();
    for protocol in ["-2", "-3"] {
        let say = |line: &str| {
            let args: Vec<&str> = [protocol].into_iter().chain(line.split(' ')).collect();
            cli(port, &args)
        };
        assert_eq!(say("SET k v"), "OK");
        assert_eq!(say("GET k"), "v");
        assert_eq!(say("GET nothing"), "");
        assert_eq!(say("SET k w NX GET"), "v");
        assert_eq!(say("MSET a 1 b 2"), "OK");
        assert_eq!(say("MGET a b c"), "1\n2");
        assert_eq!(say("INCRBY a 41"), "42");
        assert_eq!(say("APPEND k xyz"), "4");
        assert_eq!(say("STRLEN k"), "4");
        assert_eq!(say("EXISTS a b c"), "2");
        assert_eq!(say("DBSIZE"), "3");
        assert_eq!(say("DEL a b k c"), "3");
        assert_eq!(say("SETNX a 1"), "1");
        assert_eq!(say("GETDEL a"), "1");
        // A map (RESP3) is shown a pair a line.
        assert_eq!(
            say("CONFIG GET databases").replace('\n', " "),
            "databases 1"
        );
        assert!(say("COMMAND DOCS get").contains("Get the value of a key"));
        assert_eq!(
            say("FOO a"),
            "ERR unknown command 'FOO', with args beginning with: 'a'"
        );
        assert_eq!(say("SET k v EX"), "ERR syntax error");
        assert!(say("SET k v EX 9").starts_with("ERR SET option 'EX' is not supported yet"));
    }
}

#[test]
fn redis_cli_pipes_half_a_megabyte_and_gets_it_back() {
    if !has("redis-cli") {
        return;
    }
    let port = serve();
    let value = "x".repeat(500_000);
    let mut child = Process::new("redis-cli")
        .args(["-p", &port.to_string(), "-x", "SET", "large"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("redis-cli runs");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(value.as_bytes()).expect("redis-cli reads");
    drop(stdin);
    let ran = child.wait_with_output().expect("redis-cli ends");
    assert_eq!(String::from_utf8_lossy(&ran.stdout).trim_end(), "OK");
    assert_eq!(cli(port, &["STRLEN", "large"]), "500000");
    assert!(cli(port, &["GET", "large"]) == value);
}

#[test]
fn redis_benchmark_runs_to_its_end() {
    if !has("redis-benchmark") {
        return;
    }
    let port = serve().to_string();
    let tests = "ping,set,get,incr,mset";
    let ran = Process::new("redis-benchmark")
        .args([
            "-p", &port, "-n", "20000", "-P", "16", "-c", "8", "-t", tests, "--csv",
        ])
        .output()
        .expect("redis-benchmark runs");
    let (text, errors) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    assert!(ran.status.success() && errors.is_empty(), "{text}{errors}");
    // A heading, and a line each for inline and bulk PING, SET, GET, INCR and MSET.
    assert_eq!(text.lines().count(), 7, "{text}");
}

/// A Redis server of version 7.0, ended when dropped.
struct Redis {
    child: std::process::Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Redis {
    fn start() -> Redis {
        let port = free_port();
        let folder = tempfile::tempdir().expect("a folder");
        let child = Process::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--dir"])
            .arg(folder.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("redis-server runs");
        Redis {
            child,
            port,
            _folder: folder,
        }
    }

    fn client(&self) -> RespClient {
        let addr = ([127, 0, 0, 1], self.port).into();
        let until = Instant::now() + Duration::from_secs(30);
        let answers = || RespClient::try_connect(addr).is_ok_and(|mut c| c.try_ask("PING").is_ok());
        while !answers() {
            assert!(Instant::now() < until, "redis-server does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        RespClient::connect(addr)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn items(reply: &Reply) -> &[Reply] {
    match reply {
        Reply::Array(items) => items,
        other => panic!("no array: {other:?}"),
    }
}

fn words(reply: &Reply) -> Vec<String> {
    let mut words: Vec<String> = items(reply).iter().map(|w| format!("{w:?}")).collect();
    words.sort();
    words
}

fn name(entry: &Reply) -> String {
    match &items(entry)[0] {
        Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("no name: {other:?}"),
    }
}

/// The parts of COMMAND INFO that clients act on: arity, flags, places of keys, categories.
fn shape(entry: &Reply) -> (Vec<Reply>, Vec<String>, Vec<String>) {
    let entry = items(entry);
    let numbers = [1, 3, 4, 5].map(|at| entry[at].clone());
    (numbers.to_vec(), words(&entry[2]), words(&entry[6]))
}

/// Key specifications without the notes for people.
fn key_specs(entry: &Reply) -> Vec<Vec<String>> {
    let specs = items(&items(entry)[8]).iter().map(|spec| {
        let pairs = items(spec)
            .chunks(2)
            .filter(|p| p[0] != Reply::text("notes"));
        let flat = |pair: &[Reply]| match &pair[1] {
            Reply::Array(_) if pair[0] == Reply::text("flags") => format!("{:?}", words(&pair[1])),
            other => format!("{:?}={other:?}", pair[0]),
        };
        pairs.map(flat).collect()
    });
    specs.collect()
}

#[test]
fn command_says_of_each_command_what_redis_says() {
    if !has("redis-server") {
        return;
    }
    let redis = Redis::start();
    let mut theirs = redis.client();
    let Reply::Bulk(info) = theirs.ask("INFO server") else {
        panic!("INFO is answered with text");
    };
    if !String::from_utf8_lossy(&info).contains("redis_version:7.0.") {
        return skip("the table follows Redis 7.0, and redis-server is of another version");
    }
    let mut ours = RespClient::connect(([127, 0, 0, 1], serve()).into());
    for command in COMMANDS {
        let line = format!("COMMAND INFO {}", command.text);
        let (theirs, ours) = (theirs.ask(&line), ours.ask(&line));
        let (theirs, ours) = (&items(&theirs)[0], &items(&ours)[0]);
        assert_eq!(shape(ours), shape(theirs), "{line}");
        assert_eq!(key_specs(ours), key_specs(theirs), "{line}");
        assert_eq!(words(&items(ours)[7]), words(&items(theirs)[7]), "{line}");
        let known = items(&items(theirs)[9]);
        for sub in items(&items(ours)[9]) {
            // Some are of later versions of Redis.
            if let Some(theirs) = known.iter().find(|s| name(s) == name(sub)) {
                assert_eq!(shape(sub), shape(theirs), "{}", name(sub));
            }
        }
    }
}

#[test]
fn no_port_is_given_twice_and_none_that_the_system_gives_away() {
    let mut ports = staves_testkit::free_ports(210);
    ports.extend(staves_testkit::free_ports(10));
    let given = ports.len();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), given);
    assert!(ports.iter().all(|port| (20_000..32_000).contains(port)));
}
