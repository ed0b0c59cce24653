//! A shared volume as people see it: made, listed, and written by libnbd through two nodes at a time.

use staves_testkit::tools::runs;

use super::tool;
use super::volumes::start;

/// The system's Python has the module.
const PATH: &str = "PATH=/usr/bin:/bin";

/// A connection to each of two nodes.
const SCRIPT: &str = "
a, b = nbd.NBD(), nbd.NBD()
a.connect_uri(first)
b.connect_uri(second)
for h in (a, b):
    assert h.can_multi_conn() and not h.is_read_only()
for n in range(1, 30):
    a.pwrite(bytes([n]) * 4096, 0)
    b.flush()
    assert b.pread(4096, 0) == bytes([n]) * 4096
    b.pwrite(bytes([n]) * 4096, 4096)
    assert a.pread(8192, 0) == bytes([n]) * 8192
a.shutdown()
b.pwrite(b'alone', 0)
assert b.pread(5, 0) == b'alone'
b.shutdown()
";

#[test]
fn a_shared_volume_is_written_through_two_nodes_at_a_time() {
    if !runs("env", &[PATH, "nbdsh", "-c", "h.get_version()"]) {
        return;
    }
    let (cluster, ports) = start(3);
    let run = |command: &str| {
        let args: Vec<&str> = command.split(' ').collect();
        let ran = cluster.run(0, &args);
        assert_eq!(ran.code, Some(0), "{command}: {}", ran.stderr);
        ran.stdout
    };
    run("pool create memory --kind memory --scheme 1+1 --memory 60MiB");
    let made = run("volume create disk --size 40MiB --shared");
    assert!(made.contains("'disk': created, shared;"), "{made}");
    run("volume create own --size 40MiB");
    let uri = |i: usize| format!("nbd://127.0.0.1:{}/disk", ports[i]);
    staves_testkit::wait_until("the other nodes know it", || {
        let door = format!("nbd://127.0.0.1:{}", ports[2]);
        tool("nbdinfo", &["--list", &door]).contains("export=\"disk\"")
    });
    let script = format!(
        "import nbd\nfirst, second = '{}', '{}'\n{SCRIPT}",
        uri(1),
        uri(2)
    );
    tool("env", &[PATH, "nbdsh", "-c", &script]);
    let listed: serde_json::Value =
        serde_json::from_str(&run("volume list -o json")).expect("JSON");
    assert_eq!(
        (&listed[0]["shared"], &listed[1]["shared"]),
        (&true.into(), &false.into())
    );
    assert_eq!(listed[0]["session"], 1, "one for both: {listed}");
    let shown = run("volume show disk");
    assert!(
        shown
            .lines()
            .any(|line| line.starts_with("shared") && line.ends_with("yes")),
        "{shown}"
    );
}
