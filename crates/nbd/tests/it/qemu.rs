//! The clients of QEMU and fio against the codec.

use std::fs;

use staves_testkit::tools::runs;

use crate::server::{TestServer, outcome, output, pattern};

/// True if the tools of QEMU are here; else the test is to be skipped.
fn has_tools() -> bool {
    let tools = ["qemu-img", "qemu-io"];
    tools.iter().all(|tool| runs(tool, &["--version"]))
}

#[test]
fn qemu_img_converts_and_compares() {
    if !has_tools() {
        return;
    }
    let server = TestServer::start();
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    fs::write(path("raw"), pattern()).expect("a file");
    let (one, two) = (server.uri("one"), server.uri("two"));
    let printed = output("qemu-img", &["info", "--output=json", &one]);
    assert!(printed.contains("\"virtual-size\": 8388608"), "{printed}");
    let to_raw = ["convert", "-n", "-f", "raw", "-O", "raw"];
    output("qemu-img", &[&to_raw[..], &[&path("raw"), &one]].concat());
    assert!(server.content("one") == pattern(), "a file to an export");
    let compare = ["compare", "-f", "raw", "-F", "raw"];
    output("qemu-img", &[&compare[..], &[&path("raw"), &one]].concat());
    let to_qcow2 = ["convert", "-f", "raw", "-O", "qcow2"];
    output(
        "qemu-img",
        &[&to_qcow2[..], &[&one, &path("qcow2")]].concat(),
    );
    let compare = ["compare", "-f", "qcow2", "-F", "raw"];
    output(
        "qemu-img",
        &[&compare[..], &[&path("qcow2"), &one]].concat(),
    );
    let from_qcow2 = ["convert", "-n", "-f", "qcow2", "-O", "raw"];
    output(
        "qemu-img",
        &[&from_qcow2[..], &[&path("qcow2"), &two]].concat(),
    );
    assert!(server.content("two") == pattern(), "an image to an export");
    let map = output("qemu-img", &["map", "--output=json", "-f", "raw", &one]);
    let hole = map
        .lines()
        .find(|line| line.contains("\"start\": 1048576, \"length\": 2097152"));
    assert!(
        hole.is_some_and(|line| line.contains("\"zero\": true")),
        "{map}"
    );
    assert!(server.count("extents") + server.count("one extent") > 0);
    let (succeeded, printed) = outcome("qemu-img", &["info", &server.uri("locked")]);
    assert!(
        !succeeded && printed.contains("a key is needed"),
        "{printed}"
    );
    assert_eq!(server.errors(), []);
}

#[test]
fn qemu_io_reads_back_what_it_wrote() {
    if !has_tools() {
        return;
    }
    let server = TestServer::start();
    let commands = [
        "write -P 0xaa 0 4M",
        "write -f -P 0xbb 1000 3000",
        "read -P 0xaa 0 1000",
        "read -P 0xbb 1000 3000",
        "read -P 0xaa 4000 100",
        "write -z 1M 1M",
        "write -z -u 3M 512k",
        "read -P 0 1M 1M",
        "discard 2M 64k",
        "read -P 0 2M 64k",
        "aio_write -P 0xcc 5M 1M",
        "aio_write -P 0xdd 6M 1M",
        "aio_flush",
        "read -P 0xcc 5M 1M",
        "read -P 0xdd 6M 1M",
        "flush",
        "map",
    ];
    let mut args = vec!["-f", "raw", "-t", "none"];
    args.extend(commands.iter().flat_map(|command| ["-c", command]));
    let uri = server.uri("one");
    args.push(&uri);
    let printed = output("qemu-io", &args);
    let verified = !printed.contains("verification failed") && !printed.contains("rror");
    assert!(verified, "{printed}");
    for mark in ["fua", "flush", "zeroes", "trim", "write", "read"] {
        assert!(server.count(mark) > 0, "{mark}");
    }
    let mut content = vec![0xaa; 4 << 20];
    content[1000..4000].fill(0xbb);
    content[1 << 20..2 << 20].fill(0);
    content[2 << 20..(2 << 20) + (64 << 10)].fill(0);
    content[3 << 20..(3 << 20) + (512 << 10)].fill(0);
    assert!(server.content("one")[..4 << 20] == content, "as written");
    let rom = server.uri("rom");
    let (succeeded, printed) = outcome("qemu-io", &["-f", "raw", "-c", "write 0 512", &rom]);
    assert!(
        !succeeded && printed.contains("Permission denied"),
        "{printed}"
    );
    assert_eq!(server.errors(), []);
}

#[test]
fn fio_verifies_its_writes() {
    if !runs("fio", &["--enghelp=nbd"]) {
        return;
    }
    let server = TestServer::start();
    let uri = format!("--uri={}", server.uri("one"));
    // Its state file lands in the working folder otherwise.
    let folder = tempfile::tempdir().expect("a folder");
    let aux = format!("--aux-path={}", folder.path().display());
    for (pattern, block, fsync) in [
        ("--rw=randwrite", "--bsrange=512-128k", "--fsync=16"),
        ("--rw=randrw", "--bs=4k", "--fsync=0"),
        ("--rw=write", "--bs=1m", "--fsync=1"),
    ] {
        let printed = output(
            "fio",
            &[
                "--name=verified",
                "--ioengine=nbd",
                "--size=8m",
                "--iodepth=16",
                "--verify=crc32c",
                "--verify_fatal=1",
                "--randseed=7",
                "--verify_state_save=0",
                &aux,
                &uri,
                pattern,
                block,
                fsync,
            ],
        );
        assert!(printed.contains("err= 0"), "{printed}");
    }
    assert!(server.count("write") > 1000 && server.count("flush") > 0);
    assert_eq!(server.errors(), []);
}
