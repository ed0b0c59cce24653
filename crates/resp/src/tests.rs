//! The door from bytes to bytes: conversations as clients hold them.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use bytes::Buf;
use staves_model::{
    ClusterId, ClusterMap, Epoch, Group, GroupId, HashSlot, Incarnation, LastOpen, Medium, Member,
    MemberId, MemberSlot, Node, NodeId, NodeState, Pool, PoolId, PoolKind, Scheme,
};

use super::*;

fn node(id: u64) -> Node {
    Node {
        id: NodeId(id),
        incarnation: Incarnation(id),
        name: format!("n{id}"),
        zone: None,
        native: format!("10.0.0.{id}:1600"),
        resp: format!("10.0.0.{id}:6379"),
        admin: format!("10.0.0.{id}:1680"),
        memory_bytes: 1 << 30,
        disk_bytes: 0,
        durable: true,
        state: NodeState::Up,
        draining: false,
    }
}

fn group(id: u32, nodes: &[u64]) -> Group {
    let member = |n: &u64| {
        Some(Member {
            id: MemberId::new(NodeId(*n), Incarnation(*n)),
            complete: true,
        })
    };
    let members: Vec<_> = nodes.iter().map(member).collect();
    Group {
        id: GroupId(id),
        pool: PoolId(1),
        bucket: id,
        m: 1,
        epoch: Epoch(1),
        open: true,
        coordinator: MemberSlot(0),
        kept: vec![None; members.len()],
        last_open: LastOpen {
            epoch: Epoch(1),
            members: members.clone(),
        },
        members,
        fresh: true,
        lost: false,
        revision: Default::default(),
    }
}

/// Four buckets on three nodes: n1 serves the first two, n2 and n3 one each.
fn facts() -> Facts {
    let owners: [&[u64]; 4] = [&[1, 2], &[1, 2], &[2, 3], &[3, 1]];
    let groups: Vec<Group> = (0..4).map(|i| group(i, owners[i as usize])).collect();
    let pool = Pool {
        id: PoolId(1),
        name: "cache".into(),
        kind: PoolKind::Cache,
        scheme: Scheme { m: 1, k: 1 },
        medium: Medium::Ram,
        node_budget_bytes: 1 << 29,
        groups: groups.iter().map(|g| g.id).collect(),
        may_start_empty: true,
    };
    let map = ClusterMap {
        cluster: ClusterId(7),
        nodes: (1..=3).map(|i| (NodeId(i), node(i))).collect(),
        pools: [(pool.id, pool)].into(),
        groups: groups.into_iter().map(|g| (g.id, g)).collect(),
        ..ClusterMap::default()
    };
    Facts {
        map: Arc::new(map),
        node: NodeId(1),
        pool: "cache".into(),
        brief: Brief {
            version: "0.1.0",
            unix_time: Duration::from_micros(1_700_000_000_000_042),
            uptime: Duration::from_secs(60),
            ..Brief::default()
        },
        port: 6379,
        clients_max: 10_000,
        value_bytes_max: 512 << 20,
        keys: 5,
        cpu_user: Duration::from_millis(1500),
        cpu_system: Duration::from_millis(250),
        ..Facts::default()
    }
}

/// A source of facts that counts what it is asked for.
#[derive(Default)]
struct Teller {
    facts: Facts,
    asked: Cell<usize>,
}

impl ServerInfo for Teller {
    fn brief(&self) -> Brief {
        self.facts.brief
    }

    fn facts(&self) -> Facts {
        self.asked.set(self.asked.get() + 1);
        self.facts.clone()
    }

    fn clients(&self) -> Vec<ClientFacts> {
        self.asked.set(self.asked.get() + 1);
        Vec::new()
    }
}

struct Door {
    parser: Parser,
    session: Session,
    teller: Teller,
    after: After,
}

impl Door {
    fn new() -> Door {
        let session = Session::new(
            9,
            "127.0.0.1:5".into(),
            "127.0.0.1:6379".into(),
            Duration::from_secs(50),
        );
        Door {
            parser: Parser::default(),
            session,
            teller: Teller {
                facts: facts(),
                ..Teller::default()
            },
            after: After::Open,
        }
    }

    /// Sends one line as an inline command; the answer, line ends shown as `|`.
    fn say(&mut self, line: &str) -> String {
        let input = format!("{line}\r\n");
        let mut out = Output::new();
        let frame = self
            .parser
            .next(input.as_bytes())
            .expect("well formed")
            .expect("whole");
        assert_eq!(frame.used, input.len());
        match Command::of(frame.args, 1 << 20) {
            Command::Local { name, args } => {
                self.after = self.session.answer(name, args, &self.teller, &mut out);
            }
            Command::Refused(text) => out.error(&text),
            other => panic!("{line} is not local: {other:?}"),
        }
        let bytes = out.copy_to_bytes(out.remaining());
        String::from_utf8_lossy(&bytes).replace("\r\n", "|")
    }
}

#[test]
fn small_talk() {
    let mut door = Door::new();
    let talk = [
        ("PING", "+PONG|"),
        ("PING hello", "$5|hello|"),
        (
            "PING a b",
            "-ERR wrong number of arguments for 'ping' command|",
        ),
        ("ECHO x", "$1|x|"),
        ("SELECT 0", "+OK|"),
        (
            "SELECT 1",
            "-ERR DB index is out of range: there is database 0 and no other; keep applications apart by prefixes of their keys|",
        ),
        ("SELECT a", "-ERR value is not an integer or out of range|"),
        ("TIME", "*2|$10|1700000000|$2|42|"),
        ("CLIENT ID", ":9|"),
        ("CLIENT GETNAME", "$-1|"),
        ("CLIENT SETNAME me", "+OK|"),
        ("CLIENT GETNAME", "$2|me|"),
        (
            "CLIENT SETNAME 'a b'",
            "-ERR Client names cannot contain spaces, newlines or special characters.|",
        ),
        ("CLIENT SETINFO LIB-NAME redis-py", "+OK|"),
        ("CLIENT SETINFO lib-ver 5.0.1", "+OK|"),
        (
            "CLIENT SETINFO lib-color red",
            "-ERR Unrecognized option 'lib-color'|",
        ),
        ("CLIENT NO-EVICT ON", "+OK|"),
        ("CLIENT NO-TOUCH maybe", "-ERR syntax error|"),
        ("CLIENT REPLY ON", "+OK|"),
        ("READONLY", "+OK|"),
        ("CONFIG RESETSTAT", "+OK|"),
        (
            "CONFIG GET save appendonly",
            "*4|$4|save|$0||$10|appendonly|$2|no|",
        ),
        ("CONFIG GET DATA*", "*2|$9|databases|$1|1|"),
        ("CONFIG GET nothing", "*0|"),
    ];
    for (line, answer) in talk {
        assert_eq!(door.say(line), answer, "{line}");
    }
    assert!(
        door.say("CONFIG SET maxmemory 1")
            .starts_with("-ERR CONFIG SET is not supported")
    );
    assert!(
        door.say("CLIENT REPLY OFF")
            .starts_with("-ERR CLIENT REPLY OFF")
    );
    assert!(door.say("AUTH secret").starts_with("-ERR AUTH"));
    let line = door.say("CLIENT INFO");
    assert!(
        line.contains("id=9 addr=127.0.0.1:5 laddr=127.0.0.1:6379"),
        "{line}"
    );
    assert!(
        line.contains("name=me age=10 ") && line.contains("lib-name=redis-py lib-ver=5.0.1"),
        "{line}"
    );
    // Each is kept as long as its connection, and listed for whoever asks.
    let (fits, long) = ("n".repeat(256), "n".repeat(257));
    for (ask, told) in [
        ("SETNAME", "Client names have"),
        ("SETINFO LIB-NAME", "lib-name has"),
        ("SETINFO LIB-VER", "lib-ver has"),
    ] {
        assert_eq!(door.say(&format!("CLIENT {ask} {fits}")), "+OK|");
        assert_eq!(
            door.say(&format!("CLIENT {ask} {long}")),
            format!("-ERR {told} at most 256 bytes here.|")
        );
    }
    assert_eq!(door.say("RESET"), "+RESET|");
    assert_eq!(door.say("CLIENT GETNAME"), "$-1|");
    assert_eq!(
        (door.say("QUIT"), door.after),
        ("+OK|".into(), After::Close)
    );
}

#[test]
fn hello_agrees_on_all_or_nothing() {
    let mut door = Door::new();
    assert!(door.say("HELLO").starts_with("*14|$6|server|$5|redis|"));
    assert_eq!(
        door.say("HELLO 4"),
        "-NOPROTO unsupported protocol version|"
    );
    assert_eq!(
        door.say("HELLO x"),
        "-ERR Protocol version is not an integer or out of range|"
    );
    assert_eq!(
        door.say("HELLO 3 FOO"),
        "-ERR Syntax error in HELLO option 'FOO'|"
    );
    assert_eq!(
        door.say("HELLO 3 AUTH a"),
        "-ERR Syntax error in HELLO option 'AUTH'|"
    );
    assert!(
        door.say("HELLO 3 AUTH user secret SETNAME x")
            .starts_with("-ERR AUTH")
    );
    assert_eq!(door.session.protocol(), Protocol::Resp2);
    assert_eq!(door.say("CLIENT GETNAME"), "$-1|");

    let hello = door.say("HELLO 3 SETNAME me");
    assert!(
        hello.starts_with("%7|") && hello.contains("$5|proto|:3|$2|id|:9|"),
        "{hello}"
    );
    assert_eq!(door.session.protocol(), Protocol::Resp3);
    assert_eq!(door.say("CLIENT GETNAME"), "$2|me|");
    assert_eq!(door.say("CONFIG GET databases"), "%1|$9|databases|$1|1|");
    assert!(door.say("INFO").starts_with("=") && door.say("CLIENT LIST").contains("resp=3"));
    assert!(
        door.say("COMMAND INFO get")
            .starts_with("*1|*10|$3|get|:2|~2|+readonly|+fast|:1|:1|:1|")
    );
    assert!(door.say("HELLO 2").starts_with("*14|"));
}

#[test]
fn the_table_is_told() {
    let mut door = Door::new();
    assert_eq!(door.say("COMMAND COUNT"), format!(":{}|", COMMANDS.len()));
    assert!(
        door.say("COMMAND")
            .starts_with(&format!("*{}|*10|$6|append|", COMMANDS.len()))
    );
    assert_eq!(door.say("COMMAND INFO nothing"), "*1|*-1|");
    assert!(
        door.say("COMMAND DOCS get nothing")
            .starts_with("*2|$3|get|*6|$7|summary|")
    );
    assert_eq!(door.say("COMMAND GETKEYS mset a 1 b 2"), "*2|$1|a|$1|b|");
    let few = "-ERR Invalid number of arguments specified for command|";
    assert_eq!(door.say("COMMAND GETKEYS get a b"), few);
    assert_eq!(
        door.say("COMMAND GETKEYS ping x"),
        "-ERR The command has no key arguments|"
    );
    let with_flags = "*2|*2|$1|a|*2|+OW|+update|*2|$1|b|*2|+OW|+update|";
    let said = door.say("COMMAND GETKEYSANDFLAGS mset a 1 b 2");
    assert_eq!(said, with_flags);
    let sub = "*2|*10|$11|client|list|:-2|*4|+admin|";
    assert!(
        door.say("COMMAND INFO client|list client|nothing")
            .starts_with(sub)
    );
    assert!(
        door.say("COMMAND DOCS client")
            .contains("$11|subcommands|*20|$14|client|getname|*6|$7|summary|")
    );
    assert!(door.say("CLUSTER HELP").contains("+KEYSLOT|"));
}

/// Node ids as clients see them.
fn name(node: u64) -> String {
    format!("{:016x}{node:024x}", 7)
}

#[test]
fn the_cluster_is_told() {
    let mut door = Door::new();
    assert_eq!(door.say("CLUSTER KEYSLOT foo"), ":12182|");
    assert_eq!(door.say("CLUSTER MYID"), format!("$40|{}|", name(1)));
    // The first two buckets are of the same node, and so are one range.
    let place = |n: u64| format!("*4|$8|10.0.0.{n}|:6379|$40|{}|*0|", name(n));
    let ranges = [(0, 8191, 1), (8192, 12287, 2), (12288, 16383, 3)];
    let ranges = ranges.map(|(from, to, n)| format!("*3|:{from}|:{to}|{}", place(n)));
    let slots = format!("*3|{}", ranges.concat());
    assert_eq!(door.say("CLUSTER SLOTS"), slots);
    let info = door.say("CLUSTER INFO");
    let expected = "cluster_state:ok|cluster_slots_assigned:16384|cluster_slots_ok:16384|\
        cluster_slots_pfail:0|cluster_slots_fail:0|cluster_known_nodes:3|cluster_size:3|";
    assert!(
        info.contains(expected) && info.ends_with("exceeded:0||"),
        "{info}"
    );
    let line = |n: u64, me: &str, slots: &str| {
        let name = name(n);
        format!("{name} 10.0.0.{n}:6379@1600 {me}master - 0 0 0 connected {slots}\n")
    };
    let lines = [
        line(1, "myself,", "0-8191"),
        line(2, "", "8192-12287"),
        line(3, "", "12288-16383"),
    ];
    let lines = lines.concat();
    assert_eq!(
        door.say("CLUSTER NODES"),
        format!("${}|{lines}|", lines.len())
    );
    assert_eq!(door.say(&format!("CLUSTER REPLICAS {}", name(2))), "*0|");
    assert_eq!(door.say("CLUSTER SLAVES x"), "-ERR Unknown node x|");
    assert_eq!(
        door.say("CLUSTER COUNTKEYSINSLOT 16384"),
        "-ERR Invalid slot|"
    );
    assert!(
        door.say("CLUSTER GETKEYSINSLOT 1 9")
            .starts_with("-ERR COUNTKEYSINSLOT and GETKEYSINSLOT are not supported")
    );
    assert!(
        door.say("CLUSTER LINKS")
            .starts_with("-ERR unknown subcommand 'LINKS'")
    );
}

#[test]
fn shards_are_arrays_in_resp2_and_maps_in_resp3() {
    let mut door = Door::new();
    let shard = |map: fn(usize) -> String, n: u64, first: u16, last: u16| {
        let name = name(n);
        format!(
            "{}$5|slots|*2|:{first}|:{last}|$5|nodes|*1|{}$2|id|$40|{name}|$4|port|:6379|$2|ip|$8|\
             10.0.0.{n}|$8|endpoint|$8|10.0.0.{n}|$4|role|$6|master|$18|replication-offset|:0|$6|\
             health|$6|online|",
            map(2),
            map(7)
        )
    };
    let all = |map| {
        let shards = [
            shard(map, 1, 0, 8191),
            shard(map, 2, 8192, 12287),
            shard(map, 3, 12288, 16383),
        ];
        format!("*3|{}", shards.concat())
    };
    assert_eq!(
        door.say("CLUSTER SHARDS"),
        all(|len| format!("*{}|", 2 * len))
    );
    door.say("HELLO 3");
    assert_eq!(door.say("CLUSTER SHARDS"), all(|len| format!("%{len}|")));
}

#[test]
fn a_dead_node_is_said_to_fail_and_a_takeover_to_wait() {
    let mut door = Door::new();
    let mut map = ClusterMap::clone(&door.teller.facts.map);
    map.nodes.get_mut(&NodeId(3)).expect("n3").state = NodeState::Down;
    map.groups.get_mut(&GroupId(0)).expect("g0").open = false;
    door.teller.facts.map = Arc::new(map.clone());
    let info = door.say("CLUSTER INFO");
    let expected = "cluster_state:fail|cluster_slots_assigned:16384|cluster_slots_ok:8192|\
        cluster_slots_pfail:4096|cluster_slots_fail:4096|";
    assert!(info.contains(expected), "{info}");
    // It keeps its slots until another is promoted, as in Redis: clients count on all being covered.
    let dead = format!(
        "{} 10.0.0.3:6379@1600 master,fail - 0 0 0 disconnected 12288-16383\n",
        name(3)
    );
    assert!(door.say("CLUSTER NODES").contains(&dead));
    assert!(door.say("CLUSTER SLOTS").contains("*3|:12288|:16383|"));
    assert!(door.say("CLUSTER SHARDS").contains("$6|health|$4|fail|"));

    // Promoted, and the dead one came back to its address under a new id.
    map.groups
        .get_mut(&GroupId(3))
        .expect("g3")
        .members
        .remove(0);
    map.nodes.insert(
        NodeId(4),
        Node {
            resp: "10.0.0.3:6379".into(),
            ..node(4)
        },
    );
    door.teller.facts.map = Arc::new(map);
    let nodes = door.say("CLUSTER NODES");
    let gone = format!("{} :0@0 master,fail,noaddr - 0 0 0 disconnected\n", name(3));
    assert!(nodes.contains(&gone), "{nodes}");
    let myself = "myself,master - 0 0 0 connected 0-8191 12288-16383\n";
    assert!(nodes.contains(myself), "{nodes}");
    assert!(door.say("CLUSTER SHARDS").starts_with("*3|"));

    door.teller.facts.map = Arc::default();
    assert_eq!(door.say("CLUSTER SLOTS"), "*0|");
    assert!(
        door.say("CLUSTER INFO")
            .contains("cluster_state:fail|cluster_slots_assigned:0|")
    );
}

#[test]
fn clients_are_sent_only_to_a_node_that_lives() {
    let mut map = ClusterMap::clone(&facts().map);
    let asks = |map: &ClusterMap, slot: u16, me: u64| {
        let pool = map.pool_named("cache").expect("a pool");
        elsewhere(map, pool, HashSlot(slot), NodeId(me))
    };
    let moved = |text: &str| Some(text.to_owned());
    assert_eq!(asks(&map, 8191, 1), None);
    assert_eq!(asks(&map, 8192, 1), moved("MOVED 8192 10.0.0.2:6379"));
    assert_eq!(asks(&map, 16383, 2), moved("MOVED 16383 10.0.0.3:6379"));
    map.nodes.get_mut(&NodeId(2)).expect("n2").resp = "[fd00::2]:6380".into();
    assert_eq!(asks(&map, 8192, 1), moved("MOVED 8192 fd00::2:6380"));

    let down = moved("CLUSTERDOWN Hash slot not served");
    map.nodes.get_mut(&NodeId(2)).expect("n2").state = NodeState::Down;
    assert_eq!(asks(&map, 8192, 1), down);
    // Another life of the node does not have the bucket.
    map.nodes.get_mut(&NodeId(3)).expect("n3").incarnation = Incarnation(9);
    assert_eq!(asks(&map, 16383, 1), down);
    map.groups.get_mut(&GroupId(0)).expect("g0").lost = true;
    assert_eq!(asks(&map, 0, 1), down);
    // An epoch that is not open yet has its data bucket already; who asks there waits.
    map.groups.get_mut(&GroupId(1)).expect("g1").open = false;
    assert_eq!(asks(&map, 4096, 1), None);
    assert_eq!(asks(&map, 4096, 2), moved("MOVED 4096 10.0.0.1:6379"));
}

#[test]
fn the_mode_is_told_in_the_same_way_everywhere() {
    let modes = [
        (Redirect::Forward, "standalone", 0, "no"),
        (Redirect::Moved, "cluster", 1, "yes"),
    ];
    for (redirect, mode, enabled, yes) in modes {
        let mut door = Door::new();
        door.teller.facts.brief.redirect = redirect;
        let said = format!("$4|mode|${}|{mode}|$4|role|$6|master|", mode.len());
        assert!(door.say("HELLO").contains(&said));
        let info = door.say("INFO");
        assert!(info.contains(&format!("redis_mode:{mode}|")), "{info}");
        assert!(
            info.contains(&format!("cluster_enabled:{enabled}|")),
            "{info}"
        );
        let option = format!("*2|$15|cluster-enabled|${}|{yes}|", yes.len());
        assert_eq!(door.say("CONFIG GET cluster-enabled"), option);
        for line in ["READONLY", "READWRITE", "ASKING"] {
            assert_eq!(door.say(line), "+OK|", "{line}");
        }
    }
}

/// Regression: each greeting listed all connections; thousands of clients that came at once from a node that had died stopped the
/// next one for seconds, and it was taken for dead too.
#[test]
fn greetings_ask_for_nothing_that_takes_longer_with_more_clients() {
    let mut door = Door::new();
    for line in [
        "HELLO",
        "HELLO 3",
        "TIME",
        "PING",
        "CLIENT ID",
        "CLIENT INFO",
        "CLIENT SETNAME x",
        "CLIENT SETINFO LIB-NAME y",
        "SELECT 0",
        "COMMAND COUNT",
    ] {
        assert!(!door.say(line).starts_with('-'), "{line}");
    }
    assert_eq!(door.teller.asked.get(), 0);
    door.say("CLIENT LIST");
    assert_eq!(door.teller.asked.get(), 1);
}

#[test]
fn a_directory_without_a_majority_is_a_cluster_that_fails() {
    let mut door = Door::new();
    assert!(door.say("CLUSTER INFO").contains("cluster_state:ok|"));
    door.teller.facts.directory_silent = true;
    let info = door.say("CLUSTER INFO");
    assert!(
        info.contains("cluster_state:fail|") && info.contains("cluster_slots_ok:16384|"),
        "{info}"
    );
}

#[test]
fn info_has_sections() {
    let mut door = Door::new();
    let all = door.say("INFO");
    for line in [
        "# Server|redis_version:7.",
        "cluster_enabled:0|",
        "# CPU|used_cpu_sys:0.250000|used_cpu_user:1.500000|",
        "db0:keys=5,",
        "pool:cache|scheme:1+1|",
    ] {
        assert!(all.contains(line), "{line} in {all}");
    }
    let one = door.say("INFO keyspace");
    assert!(
        one.contains("# Keyspace|") && !one.contains("# Server"),
        "{one}"
    );
    assert_eq!(door.say("INFO nothing"), "$0||");
}
