//! TLS at the NBD port with the tools that people have, as docs/how-to/volumes.md says.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use staves_testkit::tools::runs;
use staves_testkit::{certificates, free_port};

use super::{Cluster, tool};

/// The Python for which Debian packages libnbd, whatever else is installed.
const PATH: &str = "PATH=/usr/bin:/bin";

/// The commands of the section, each of which starts nodes first for the next ones.
fn documented() -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/how-to/volumes.md");
    let text = fs::read_to_string(page).expect("the page");
    let (_, section) = text
        .split_once("## Encrypt the connection (TLS)")
        .expect("the section");
    let section = section.split("\n## ").next().expect("its text");
    let commands = section.lines().filter_map(|line| line.strip_prefix("    "));
    commands.map(str::to_owned).collect()
}

fn has_tools() -> bool {
    let all = ["nbdinfo", "nbdcopy", "qemu-img", "qemu-io"];
    runs("openssl", &["version"]) && all.iter().all(|tool| runs(tool, &["--version"]))
}

/// A command of the page in a folder, for a node at this port of this machine; whether it succeeds, and all that it prints.
fn run(folder: &Path, port: u16, command: &str) -> (bool, String) {
    let command = command
        .replace("//10.0.0.1/", &format!("//127.0.0.1:{port}/"))
        .replace("port=10809", &format!("port={port}"))
        .replace("10.0.0.1", "127.0.0.1");
    let mut shell = Command::new("sh");
    shell.args(["-c", &command]).current_dir(folder);
    let ran = shell.stdin(Stdio::null()).output().expect("a shell");
    let printed = [ran.stdout, ran.stderr].concat();
    let text = String::from_utf8_lossy(&printed).into_owned();
    (ran.status.success(), text)
}

fn succeeds(folder: &Path, port: u16, command: &str) -> String {
    let (succeeded, text) = run(folder, port, command);
    assert!(succeeded, "{command}: {text}");
    text
}

/// Asserts that a command fails, and says why.
fn fails(folder: &Path, port: u16, command: &str, part: &str) {
    let (succeeded, text) = run(folder, port, command);
    assert!(!succeeded && text.contains(part), "{command}: {text}");
}

/// A node with the flags of TLS that a documented command has, in the folder of the certificates, and a volume.
fn start(folder: &Path, up: &str) -> (Cluster, u16) {
    let port = free_port();
    let (_, flags) = up.split_once("--tls-cert").expect("flags of TLS");
    let flags: Vec<&str> = ["--tls-cert"]
        .into_iter()
        .chain(flags.split_whitespace())
        .collect();
    let before = format!("export STAVES_NBD=127.0.0.1:{port}");
    let cluster = Cluster::start_as(&[Some(folder)], &flags, &[before]);
    super::volumes::make(&cluster, "1+0", "16MiB");
    (cluster, port)
}

/// The volume as nbdsh uses it within TLS: all that it can do without.
const SCRIPT: &str = "
h.set_tls(nbd.TLS_REQUIRE)
h.set_tls_certificates(folder)
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.set_export_name('disk')
h.connect_tcp('127.0.0.1', port)
assert h.get_tls_negotiated() and h.get_structured_replies_negotiated()
h.pwrite(b'hello' * 1000, 1 << 20, nbd.CMD_FLAG_FUA)
h.zero(1000, (1 << 20) + 5)
assert h.pread(1010, 1 << 20) == b'hello' + bytes(1000) + b'hello'
h.trim(65536, 4 << 20)
extents = []
h.block_status(8 << 20, 0, lambda context, offset, entries, error: extents.extend(entries))
assert len(extents) > 2, extents
cookies = [h.aio_pread(nbd.Buffer(4 << 20), (n % 4) << 20) for n in range(40)]
while h.aio_in_flight() > 0:
    h.poll(-1)
for cookie in cookies:
    assert h.aio_command_completed(cookie)
h.flush()
h.shutdown()
";

#[test]
fn the_how_to_about_tls_holds_and_clients_without_it_are_refused() {
    if !has_tools() || !runs("env", &[PATH, "nbdsh", "-c", "h.get_version()"]) {
        return;
    }
    let scratch = tempfile::tempdir().expect("a folder");
    let folder = scratch.path();
    let image: Vec<u8> = (0..4u32 << 20)
        .flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect();
    fs::write(folder.join("debian.raw"), &image).expect("a file");
    let commands = documented();
    let mut node: Option<(Cluster, u16)> = None;
    let mut ups = 0;
    for command in &commands {
        if command.starts_with("staves up") {
            drop(node.take());
            node = Some(start(folder, command));
            ups += 1;
            continue;
        }
        let port = node.as_ref().map_or(0, |(_, port)| *port);
        succeeds(folder, port, command);
        if command.starts_with("nbdcopy") {
            let back = "nbdcopy 'nbds://10.0.0.1/disk?tls-certificates=client' back.raw";
            succeeds(folder, port, back);
            assert!(fs::read(folder.join("back.raw")).expect("a file") == image);
            refuses_others(folder, port);
            let script = format!(
                "folder = '{}/client'\nport = '{port}'\n{SCRIPT}",
                folder.display()
            );
            tool("env", &[PATH, "nbdsh", "-c", &script]);
        }
    }
    assert_eq!(ups, 2, "{commands:?}");
}

/// Clients of a node that requires TLS: one without, one that trusts somebody else, and one of the older version.
fn refuses_others(folder: &Path, port: u16) {
    // libnbd tells the number of the refusal, and not the server's words.
    let refusals = [
        ("nbdinfo nbd://10.0.0.1/disk", "Operation not supported"),
        ("nbdinfo --list nbd://10.0.0.1/", "Operation not supported"),
        (
            "qemu-img info nbd://10.0.0.1/disk",
            "this server requires TLS",
        ),
    ];
    for (command, part) in refusals {
        fails(folder, port, command, part);
    }
    let other = folder.join("other");
    fs::create_dir(&other).expect("a folder");
    assert!(certificates::make(&other));
    let command = "nbdinfo 'nbds://10.0.0.1/disk?tls-certificates=other'";
    fails(folder, port, command, "certificate");
    let image = "driver=nbd,host=10.0.0.1,port=10809,export=disk,tls-creds=tls0";
    let by_qemu = |dir: &str| {
        let creds = format!("tls-creds-x509,id=tls0,dir={dir},endpoint=client");
        format!(
            "qemu-io --object {creds},priority=NORMAL:-VERS-TLS1.3 --image-opts {image} -c 'read 0 64k'"
        )
    };
    succeeds(folder, port, &by_qemu("client"));
    fails(folder, port, &by_qemu("other"), "certificate");
}

#[test]
fn clients_without_a_certificate_of_the_authority_are_kept_out() {
    if !has_tools() {
        return;
    }
    let scratch = tempfile::tempdir().expect("a folder");
    let folder = scratch.path();
    for name in ["client", "none", "other"] {
        fs::create_dir(folder.join(name)).expect("a folder");
    }
    assert!(certificates::make(&folder.join("other")));
    assert!(certificates::make(folder));
    let up = "staves up --tls-cert server-cert.pem --tls-key server-key.pem --tls-client-ca ca-cert.pem --nbd-tls required";
    let (cluster, port) = start(folder, up);
    for (to, names) in [
        (
            "client",
            &["ca-cert.pem", "client-cert.pem", "client-key.pem"][..],
        ),
        ("none", &["ca-cert.pem"]),
        // A certificate, and of somebody else.
        ("other", &["ca-cert.pem"]),
    ] {
        for name in names {
            fs::copy(folder.join(name), folder.join(to).join(name)).expect("copied");
        }
    }
    let info = |dir: &str| format!("nbdinfo 'nbds://10.0.0.1/disk?tls-certificates={dir}'");
    let image = "driver=nbd,host=10.0.0.1,port=10809,export=disk,tls-creds=tls0";
    let by_qemu = |dir: &str| {
        let creds = format!("tls-creds-x509,id=tls0,dir={dir},endpoint=client");
        format!("qemu-img info --object {creds} --image-opts {image}")
    };
    for dir in ["none", "other"] {
        for command in [info(dir), by_qemu(dir)] {
            let (succeeded, text) = run(folder, port, &command);
            assert!(!succeeded, "{command}: {text}");
        }
    }
    let text = succeeds(folder, port, &info("client"));
    assert!(text.contains("export-size: 16777216"), "{text}");
    succeeds(folder, port, &by_qemu("client"));
    let log = fs::read_to_string(cluster.folder.path().join("0.log")).expect("its log");
    assert!(log.contains("TLS did not begin with a client"), "{log}");
}

/// A start that is refused says why, and `staves config check` says the same.
#[test]
fn a_node_does_not_start_with_half_of_tls() {
    let folder = tempfile::tempdir().expect("a folder");
    if !certificates::make(folder.path()) {
        return;
    }
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (cert, key, wrong) = (
        path("server-cert.pem"),
        path("server-key.pem"),
        path("client-key.pem"),
    );
    let cases: [(&[&str], &str); 5] = [
        (&["--nbd-tls", "required"], "nbd_tls needs a certificate"),
        (&["--nbd-tls", "maybe"], "'off', 'offered' and 'required'"),
        (&["--tls-cert", &cert], "tls_cert and tls_key go together"),
        (&["--tls-client-ca", &cert], "tls_client_ca needs both"),
        (
            &["--tls-cert", &cert, "--tls-key", &wrong],
            "does not fit the certificate",
        ),
    ];
    let free = ["--listen", "--resp", "--admin"].map(|door| [door, "127.0.0.1:0"]);
    for (flags, part) in cases {
        for command in [&["up"][..], &["config", "check"]] {
            let ran = crate::staves(&[command, free.as_flattened(), flags].concat());
            assert!(
                ran.code != Some(0) && ran.stderr.contains(part),
                "{command:?} {flags:?}: {:?} {}",
                ran.code,
                ran.stderr
            );
        }
    }
    let sound = ["config", "check", "--tls-cert", &cert, "--tls-key", &key];
    assert_eq!(crate::staves(&sound).code, Some(0));
}
