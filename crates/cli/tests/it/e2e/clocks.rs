//! Nodes and clients whose clocks are days off, and are set while they run.

use std::path::Path;

use staves_testkit::resp::{Reply, RespClient};
use staves_testkit::tools::{faketime_library, missing};
use staves_testkit::wait_until;

use super::*;

/// The words of a shell for a program's clock to be off as the file says, from one look to the next. Its monotonic clock
/// and the times of files stay as they are.
fn clock_of(library: &Path, file: &Path) -> String {
    let (library, file) = (library.display(), file.display());
    format!(
        "export LD_PRELOAD='{library}' FAKETIME_TIMESTAMP_FILE={file} FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1"
    )
}

fn write_through_each(cluster: &Cluster, round: &str) {
    for node in cluster.nodes.iter().filter(|node| node.child.is_some()) {
        let mut client = RespClient::connect(([127, 0, 0, 1], node.resp).into());
        for key in 0..100 {
            let line = format!("SET key:{key} {round}");
            wait_until(&format!("{line} through {}", node.native), || {
                match client.ask(&line) {
                    Reply::Ok => true,
                    // A takeover is on its way.
                    Reply::Error(text) if text.starts_with("TRYAGAIN") => false,
                    Reply::Error(text) if text.starts_with("IOERR") => false,
                    other => panic!("{line}: {other:?}"),
                }
            });
        }
    }
}

/// Regression: a node whose clock was two days ahead forwarded writes that all others refused, until it was started again
/// with the right time; one that was three days behind refused everybody's.
#[test]
fn writes_go_on_whatever_the_clocks_say_and_however_they_are_set() {
    let Some(library) = faketime_library() else {
        return missing("no faketime/libfaketime.so.1 in a folder of /usr/lib");
    };
    let folder = tempfile::tempdir().expect("a folder");
    let clocks = ["a", "b", "c", "client"].map(|name| folder.path().join(name));
    let set = |at: usize, to: &str| std::fs::write(&clocks[at], to).expect("a file");
    let offsets = ["+2d", "-3d", "+0d", "+30d"];
    (0..4).for_each(|at| set(at, offsets[at]));
    let before: Vec<String> = clocks[..3]
        .iter()
        .map(|file| clock_of(&library, file))
        .collect();
    let mut cluster = Cluster::start_after(&before);
    let put = |node: usize, round: &str| {
        let line = format!("{} && exec \"$@\"", clock_of(&library, &clocks[3]));
        let program = env!("CARGO_BIN_EXE_staves");
        let (at, put) = (&cluster.nodes[node].native, ["cache", "put", "key:7"]);
        let shell = ["-c", &line, "sh", program, "--cluster", at];
        tool("sh", &[&shell[..], &put, &[round]].concat());
    };
    write_through_each(&cluster, "one");
    (0..3).for_each(|node| put(node, "two"));
    // The clock of the first is set right, that of the second beyond it, and a client's is far behind.
    (0..4).for_each(|at| set(at, ["+0d", "+9d", "-1d", "-30d"][at]));
    write_through_each(&cluster, "three");
    (0..3).for_each(|node| put(node, "four"));
    assert_eq!(cluster.end(1, "-KILL"), None);
    write_through_each(&cluster, "five");
    let mut client = RespClient::connect(([127, 0, 0, 1], cluster.nodes[0].resp).into());
    for key in 0..100 {
        let line = format!("GET key:{key}");
        assert_eq!(client.ask(&line), Reply::Bulk("five".into()), "{line}");
    }
}
