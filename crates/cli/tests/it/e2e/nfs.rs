//! Files by NFS, as a host without FUSE has them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use staves_testkit::tools::runs;

use super::Cluster;
use super::mount::bytes;
use crate::staves;

struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(cluster: &Cluster, source: &str, at: &str) -> Server {
        let mut child = Command::new(env!("CARGO_BIN_EXE_staves"))
            .args(["--cluster", &cluster.nodes[0].native])
            .args(["mount", source, "--nfs", at, "-o", "json"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let said = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut text = String::new();
        for line in said.map_while(Result::ok) {
            text.push_str(&line);
            if line == "}" {
                break;
            }
        }
        let told: serde_json::Value = serde_json::from_str(&text).expect("it says where it is");
        let address = told["nfs"].as_str().expect("an address");
        let address: std::net::SocketAddr = address.parse().expect("an address");
        let warned = !told["warning"].is_null();
        assert_eq!(warned, !address.ip().is_loopback(), "{told}");
        let port = address.port();
        Server { child, port }
    }

    fn cat(&self, path: &str) -> Command {
        let port = self.port;
        // libnfs 4 does not find its way on if it looks for mounts within mounts and is told the ports.
        let ports = format!("version=3&auto-traverse-mounts=0&nfsport={port}&mountport={port}");
        let mut cat = Command::new("nfs-cat");
        cat.arg(format!("nfs://127.0.0.1/{path}?{ports}"));
        cat
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Rows D8 and D11: a dataset by NFS, through the death of a node amid a read, and of all.
#[test]
fn d8_files_are_served_by_nfs_whoever_dies() {
    if !runs("which", &["nfs-cat"]) {
        return;
    }
    let mut cluster = Cluster::start(3);
    let dir = tempfile::tempdir().expect("a folder");
    let whole = bytes(20 << 20);
    std::fs::write(dir.path().join("large"), &whole).expect("a file");
    std::thread::sleep(Duration::from_millis(2100));
    cluster.files_pool();
    let source = dir.path().to_string_lossy().into_owned();
    let mut server = Server::start(&cluster, &source, "0");
    let read = |server: &Server| {
        let ran = server.cat("large").output().expect("it runs");
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(ran.status.success(), "{said}");
        assert!(ran.stdout == whole, "{} bytes", ran.stdout.len());
    };
    read(&server);
    let mut amid = server.cat("large").stdout(Stdio::piped()).spawn();
    let amid = amid.as_mut().expect("it runs");
    let mut out = amid.stdout.take().expect("a pipe");
    let mut got = vec![0; 1 << 20];
    std::io::Read::read_exact(&mut out, &mut got).expect("bytes");
    cluster.end(1, "-KILL");
    std::io::Read::read_to_end(&mut out, &mut got).expect("bytes");
    assert!(amid.wait().expect("it ends").success());
    assert!(got == whole, "{} bytes", got.len());
    cluster.end(2, "-KILL");
    read(&server);

    let port = server.port.to_string();
    let taken = cluster.run(0, &["mount", &source, "--nfs", &port]);
    assert_eq!(taken.code, Some(1), "{}", taken.stderr);
    assert!(taken.stderr.contains(&port), "{}", taken.stderr);
    super::signal("-TERM", server.child.id());
    assert!(server.child.wait().expect("it ends").success());
    let anywhere = Server::start(&cluster, &source, "0.0.0.0:0");
    read(&anywhere);
    let both = staves(&["mount", &source, "/mnt", "--nfs", "0"]);
    assert_eq!(both.code, Some(2), "{}", both.stderr);
    let neither = staves(&["mount", &source]);
    assert_eq!(neither.code, Some(2), "{}", neither.stderr);
}
