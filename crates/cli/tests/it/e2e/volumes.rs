//! Volumes with the tools that people have: made from the shell, copied to and fro, verified while nodes are killed.

use std::fs;
use std::process::{Child, Command, Stdio};

use staves_testkit::free_ports;
use staves_testkit::nbd::NbdClient;
use staves_testkit::tools::runs;

use super::descriptors::{figure, page};
use super::{Cluster, tool};

/// Nodes with the NBD door; its ports.
pub(super) fn start(count: usize) -> (Cluster, Vec<u16>) {
    // The flags are the same for all nodes: each takes the address that stands in its own environment.
    let ports = free_ports(count);
    let before: Vec<String> = ports
        .iter()
        .map(|port| format!("export STAVES_NBD=127.0.0.1:{port}"))
        .collect();
    (Cluster::start_after(&before), ports)
}

pub(super) fn make(cluster: &Cluster, scheme: &str, size: &str) {
    let pool = ["pool", "create", "memory", "--kind", "memory"];
    let made = cluster.run(
        0,
        &[&pool[..], &["--scheme", scheme, "--memory", "60MiB"]].concat(),
    );
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let made = cluster.run(0, &["volume", "create", "disk", "--size", size]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    assert!(
        made.stdout.contains("volume 'disk': created"),
        "{}",
        made.stdout
    );
}

fn spawn(program: &str, args: &[&str]) -> Child {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the tool starts")
}

#[test]
fn images_are_copied_to_a_volume_and_back_past_a_killed_node() {
    let tools = ["nbdinfo", "nbdcopy", "qemu-img"];
    if !tools.iter().all(|tool| runs(tool, &["--version"])) {
        return;
    }
    let (mut cluster, ports) = start(3);
    make(&cluster, "1+1", "40MiB");
    let uri = |i: usize| format!("nbd://127.0.0.1:{}/disk", ports[i]);
    let door = format!("nbd://127.0.0.1:{}", ports[2]);
    // A node that has not heard of it yet lists what it knows.
    staves_testkit::wait_until("it is listed by another node", || {
        tool("nbdinfo", &["--list", &door]).contains("export=\"disk\"")
    });
    let info = tool("nbdinfo", &["--json", &uri(1)]);
    let info: serde_json::Value = serde_json::from_str(&info).expect("JSON");
    assert_eq!(info["exports"][0]["export-size"], 40 << 20);
    assert_eq!(info["exports"][0]["can_multi_conn"], false);
    let folder = cluster.folder.path().to_owned();
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let bytes: Vec<u8> = (0..40u32 << 18)
        .flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect();
    fs::write(path("image"), &bytes).expect("a file");
    tool("nbdcopy", &["--connections=4", &path("image"), &uri(1)]);
    tool(
        "qemu-img",
        &["compare", "-f", "raw", "-F", "raw", &path("image"), &uri(2)],
    );
    let shown = cluster.run(0, &["volume", "show", "disk", "-o", "json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown.stdout).expect("JSON");
    assert_eq!(
        (&shown["session"], &shown["attached_to"]),
        (&1.into(), &serde_json::Value::Null)
    );
    cluster.end(0, "-KILL");
    tool("nbdcopy", &["--connections=4", &uri(1), &path("back")]);
    assert!(
        fs::read(path("back")).expect("a file") == bytes,
        "all of it is there"
    );
    let deleted = cluster.run(1, &["volume", "delete", "disk", "--yes"]);
    assert_eq!(deleted.code, Some(0), "{}", deleted.stderr);
    assert!(cluster.run(1, &["volume", "list"]).stdout.lines().count() <= 1);
}

/// Bytes that clients have read from volumes through a node.
fn bytes_read(cluster: &Cluster, i: usize) -> u64 {
    let metrics = page(cluster.nodes[i].admin, "/metrics");
    figure(&metrics, "staves_nbd_bytes_total{kind=\"read\"} ")
}

/// The extents that nbdinfo is told: offset, length and state of each.
fn extents(uri: &str) -> Vec<[u64; 3]> {
    let printed = tool("nbdinfo", &["--map", "--json", uri]);
    let printed: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
    let number = |extent: &serde_json::Value, name| extent[name].as_u64().expect("a number");
    let extents = printed.as_array().expect("a list").iter();
    let extents = extents.map(|e| ["offset", "length", "type"].map(|name| number(e, name)));
    extents.collect()
}

const CHUNK: u64 = 64 << 10;
const MIB: u64 = 1 << 20;

#[test]
fn a_sparse_volume_is_mapped_and_copied_by_what_was_written() {
    let tools = ["nbdinfo", "nbdcopy", "qemu-img"];
    if !tools.iter().all(|tool| runs(tool, &["--version"])) {
        return;
    }
    let (cluster, ports) = start(3);
    make(&cluster, "1+1", "200MiB");
    let uri = |i: usize| format!("nbd://127.0.0.1:{}/disk", ports[i]);
    assert_eq!(extents(&uri(0)), [[0, 200 * MIB, 3]]);
    let address = ([127, 0, 0, 1], ports[0]).into();
    let mut client = NbdClient::connect(address, "disk").expect("it connects");
    let written: Vec<u8> = (0..5 * CHUNK).map(|i| (i % 251) as u8 + 1).collect();
    client.write(3 * MIB, &written).expect("written");
    client
        .write(150 * MIB + 7, &written[..100])
        .expect("written");
    client
        .trim(3 * MIB + CHUNK, 2 * CHUNK as u32)
        .expect("trimmed");
    let expected = [
        [0, 3 * MIB, 3],
        [3 * MIB, CHUNK, 0],
        [3 * MIB + CHUNK, 2 * CHUNK, 3],
        [3 * MIB + 3 * CHUNK, 2 * CHUNK, 0],
        [3 * MIB + 5 * CHUNK, 147 * MIB - 5 * CHUNK, 3],
        [150 * MIB, CHUNK, 0],
        [150 * MIB + CHUNK, 50 * MIB - CHUNK, 3],
    ];
    for i in 0..3 {
        assert_eq!(extents(&uri(i)), expected, "node {i}");
    }
    let mut bytes = vec![0; 200 * MIB as usize];
    let mut put = |at: u64, part: &[u8]| bytes[at as usize..][..part.len()].copy_from_slice(part);
    put(3 * MIB, &written);
    put(3 * MIB + CHUNK, &[0; 2 * CHUNK as usize]);
    put(150 * MIB + 7, &written[..100]);
    let folder = cluster.folder.path();
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let (by_nbdcopy, by_qemu) = (path("by-nbdcopy"), path("by-qemu"));
    let convert = ["convert", "-f", "raw", "-O", "raw", &uri(2), &by_qemu];
    let copies: [(usize, &str, &[&str], &str); 2] = [
        (1, "nbdcopy", &[&uri(1), &by_nbdcopy], &by_nbdcopy),
        (2, "qemu-img", &convert, &by_qemu),
    ];
    for (i, program, args, copy) in copies {
        let before = bytes_read(&cluster, i);
        tool(program, args);
        // nbdcopy reads 256 KiB at a time, whatever part of that is data.
        let read = bytes_read(&cluster, i) - before;
        assert!(
            (4 * CHUNK..=12 * CHUNK).contains(&read),
            "{program}: {read}"
        );
        assert!(fs::read(copy).expect("a file") == bytes, "{program}");
    }
}

#[test]
fn fio_verifies_what_it_wrote_while_a_node_is_killed() {
    let has_nbd = runs("fio", &["--enghelp=nbd"]);
    if !has_nbd {
        return;
    }
    let (mut cluster, ports) = start(4);
    make(&cluster, "1+1", "24MiB");
    let uri = format!("--uri=nbd://127.0.0.1:{}/disk", ports[1]);
    let common = [
        "--name=v",
        "--ioengine=nbd",
        &uri,
        "--rw=randwrite",
        "--bs=4k",
        "--size=24m",
        "--iodepth=8",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--do_verify=1",
        "--loops=3",
        "--output-format=terse",
    ];
    let mut fio = spawn("fio", &common);
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert!(
        fio.try_wait().expect("a child").is_none(),
        "it was too quick to be disturbed"
    );
    cluster.end(3, "-KILL");
    let out = fio.wait_with_output().expect("it ends");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        out.status.success(),
        "{}{}",
        text(&out.stdout),
        text(&out.stderr)
    );
}

/// Commands that are refused, with their exit codes and a part of what they say.
const WRONG: &[(&[&str], i32, &str)] = &[
    (
        &["volume", "create", "disk", "--size", "1MiB"],
        1,
        "exists already",
    ),
    (
        &["volume", "create", "a/b", "--size", "1MiB"],
        1,
        "cannot be used",
    ),
    (
        &["volume", "create", "x", "--size", "0B"],
        1,
        "cannot get 0B",
    ),
    (
        &["volume", "create", "x", "--size", "900TiB"],
        1,
        "cannot get",
    ),
    (
        &["volume", "create", "x", "--size", "1MiB", "--pool", "no"],
        3,
        "no pool 'no'",
    ),
    (
        &["volume", "create", "x", "--size", "1MiB", "--pool", "cache"],
        1,
        "not regions",
    ),
    (&["volume", "show", "x"], 3, "no volume 'x'"),
    (&["volume", "grow", "disk", "--size", "1KiB"], 1, "cannot"),
    (&["volume", "delete", "disk"], 1, "--yes"),
    (&["volume", "detach", "x"], 3, "no volume 'x'"),
    (&["memory", "write", "disk"], 1, "it is written through NBD"),
    (
        &["memory", "delete", "disk", "--yes"],
        1,
        "it is written through NBD",
    ),
];

#[test]
fn wrong_commands_on_volumes_say_what_is_wrong() {
    let (cluster, _) = start(1);
    make(&cluster, "1+0", "1MiB");
    let mut wrong = Vec::new();
    for (args, code, part) in WRONG {
        let ran = cluster.run(0, args);
        if ran.code != Some(*code) || !ran.stderr.contains(part) {
            wrong.push(format!(
                "{args:?}: {:?} {}{}",
                ran.code, ran.stdout, ran.stderr
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let ran = cluster.run(0, &["volume", "detach", "disk"]);
    assert!(
        ran.stdout.contains("nobody had it attached"),
        "{}",
        ran.stdout
    );
    assert!(!cluster.run(0, &["memory", "list"]).stdout.contains("disk"));
}
