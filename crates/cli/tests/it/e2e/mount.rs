//! Files, as a user has them: mounted, read by programs that know nothing of us.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use staves_testkit::servers;
use staves_testkit::tools::can_mount;

use super::{Cluster, PATIENCE};
use crate::staves;

/// A folder that is unmounted at the end, whatever happens.
pub struct Point(pub PathBuf);

impl Drop for Point {
    fn drop(&mut self) {
        staves(&["unmount", "--lazily", &self.0.to_string_lossy()]);
    }
}

pub fn bytes(len: usize) -> Vec<u8> {
    let word = |i: u64| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11;
    let all = (0..len.div_ceil(8) as u64).flat_map(|i| word(i).to_le_bytes());
    all.take(len).collect()
}

/// Bytes that the page cache has not kept: reads go to the mount.
pub fn read_anew(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = File::open(path)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    std::fs::read(path)
}

/// Rows D1, D8 and D11: a folder is mounted, read by plain programs, through the death of one node, and of all.
#[test]
fn d8_a_mounted_folder_is_read_whoever_dies() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::start(3);
    let dir = tempfile::tempdir().expect("a folder");
    let (source, point) = (dir.path().join("genomes"), dir.path().join("mnt"));
    std::fs::create_dir_all(source.join("deep/er")).expect("folders");
    std::fs::create_dir(&point).expect("a folder");
    let whole = bytes(3_000_000);
    std::fs::write(source.join("chr1.fa"), &whole).expect("a file");
    std::fs::write(source.join("deep/er/small"), b"acgt").expect("a file");
    // Files count as changing until two seconds after their last change.
    std::thread::sleep(Duration::from_millis(2100));

    let (from, to) = (source.to_string_lossy(), point.to_string_lossy());
    let early = cluster.run(0, &["mount", &from, &to]);
    assert_eq!(early.code, Some(3), "{}", early.stderr);
    assert!(
        early
            .stderr
            .contains("staves pool create files --kind files"),
        "{}",
        early.stderr
    );
    cluster.files_pool();

    let mounted = cluster.run(0, &["mount", &from, &to]);
    assert_eq!(mounted.code, Some(0), "{}", mounted.stderr);
    let _point = Point(point.clone());
    assert!(std::fs::read(point.join("chr1.fa")).expect("it is there") == whole);
    assert_eq!(
        std::fs::read(point.join("deep/er/small")).expect("it is there"),
        b"acgt"
    );
    let written = std::fs::write(point.join("new"), b"x").expect_err("it is read-only");
    assert_eq!(written.raw_os_error(), Some(30), "EROFS: {written}");

    let shown = cluster.run(0, &["files", "show", "genomes", "-o", "json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown.stdout).expect("JSON");
    assert_eq!(shown["bytes"], 3_000_004);
    assert_eq!(shown["in_memory_bytes"], 3_000_004);

    cluster.end(1, "-KILL");
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        assert!(read_anew(&point.join("chr1.fa")).expect("one node is dead") == whole);
    }
    let again = cluster.run(0, &["files", "preload", "genomes", "-o", "json"]);
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    cluster.end(2, "-KILL");
    cluster.end(0, "-KILL");
    let file = File::open(point.join("chr1.fa")).expect("no node is needed to open");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
    let mut some = vec![0; 8192];
    file.read_exact_at(&mut some, 1_234_567)
        .expect("the source is there");
    assert!(some == whole[1_234_567..1_234_567 + 8192]);
    drop(file);

    let gone = staves(&["unmount", &to]);
    assert_eq!(gone.code, Some(0), "{}", gone.stderr);
    assert!(
        std::fs::read_dir(&point)
            .expect("a plain folder")
            .next()
            .is_none()
    );
    let twice = staves(&["unmount", &to]);
    assert_eq!(twice.code, Some(3), "{}", twice.stderr);
}

/// Row D9: a file replaced by another of the same size is never mixed with it.
#[test]
fn d9_a_replaced_file_is_seen_anew_and_never_mixed() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::start(1);
    let dir = tempfile::tempdir().expect("a folder");
    let (source, point) = (dir.path().join("data"), dir.path().join("mnt"));
    std::fs::create_dir_all(&source).expect("a folder");
    std::fs::create_dir(&point).expect("a folder");
    let (one, two) = (vec![1u8; 2_000_000], vec![2u8; 2_000_000]);
    std::fs::write(source.join("f"), &one).expect("a file");
    let (from, to) = (source.to_string_lossy(), point.to_string_lossy());
    cluster.run(
        0,
        &[
            "pool", "create", "files", "--kind", "files", "--memory", "48MiB",
        ],
    );
    let mounted = cluster.run(0, &["mount", &from, &to]);
    assert_eq!(mounted.code, Some(0), "{}", mounted.stderr);
    let _point = Point(point.clone());
    std::thread::sleep(Duration::from_millis(2100));
    assert!(std::fs::read(point.join("f")).expect("it is there") == one);
    std::fs::write(source.join("f"), &two).expect("it is overwritten");
    let until = Instant::now() + PATIENCE;
    loop {
        match std::fs::read(point.join("f")) {
            Ok(now) if now == two => break,
            Ok(now) => assert!(now == one, "a mix of versions"),
            Err(error) => assert_eq!(error.raw_os_error(), Some(116), "ESTALE: {error}"),
        }
        assert!(Instant::now() < until, "the new version is never seen");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Row D8: a bucket is mounted with the credentials of the environment, which nobody else gets to see; what is wrong with an address is said.
#[test]
fn d8_a_mounted_bucket_is_read_with_the_credentials_of_the_environment() {
    if !can_mount() {
        return;
    }
    let Some(store) = servers::object_store() else {
        return;
    };
    let mut cluster = Cluster::start(1);
    let dir = tempfile::tempdir().expect("a folder");
    let point = dir.path().join("mnt");
    std::fs::create_dir(&point).expect("a folder");
    let to = point.to_string_lossy();
    let to: &str = &to;
    cluster.files_pool();
    store.make_bucket("lab");
    let whole = bytes(1_500_000);
    store.put_for_owner("lab/hg/chr1.fa", &whole);
    let endpoint = format!("http://127.0.0.1:{}", store.port);

    let with_keys = |args: &[&str], keys: bool| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_staves"));
        command
            .args(["--cluster", &cluster.nodes[0].native])
            .args(args);
        command
            .env("HOME", dir.path())
            .env("AWS_ENDPOINT_URL", &endpoint);
        if keys {
            command.env("AWS_ACCESS_KEY_ID", "key");
            command.env("AWS_SECRET_ACCESS_KEY", "hush-hush");
        }
        let ran = command.output().expect("the program runs");
        let text = String::from_utf8_lossy(&ran.stderr).into_owned();
        (ran.status.code(), text, ran.stdout)
    };
    for (args, code, words) in [
        (["mount", "s3://bal", to], 3, "no bucket 'bal'"),
        (["mount", "s3://", to], 2, "cannot be a bucket"),
        (["mount", "gopher://lab", to], 2, "and not gopher://"),
        (
            ["mount", "http://127.0.0.1:1/x", to],
            4,
            "http://127.0.0.1:1/x",
        ),
        (["mount", "/nowhere/at/all", to], 3, "/nowhere/at/all"),
    ] {
        let (got, said, _) = with_keys(&args, true);
        assert!(said.contains(words), "{args:?}: {said}");
        assert_eq!(got, Some(code), "{args:?}: {said}");
        assert_eq!(said.trim().lines().count(), 1, "{said}");
    }

    let (code, said, _) = with_keys(&["mount", "s3://lab/hg", to], true);
    assert_eq!(code, Some(0), "{said}");
    let _point = Point(point.clone());
    assert!(std::fs::read(point.join("chr1.fa")).expect("it is there") == whole);
    // The node has no credentials: the mount reads for it, and gives it what it read.
    let until = Instant::now() + PATIENCE;
    loop {
        let (code, said, shown) = with_keys(&["files", "show", "hg", "-o", "json"], true);
        assert_eq!(code, Some(0), "{said}");
        let shown: serde_json::Value = serde_json::from_slice(&shown).expect("JSON");
        if shown["in_memory_bytes"] == 1_500_000 {
            break;
        }
        assert!(Instant::now() < until, "{shown}");
        read_anew(&point.join("chr1.fa")).expect("it is there");
    }
    let (_, _, listed) = with_keys(&["files", "list", "-o", "json"], false);
    let listed = String::from_utf8(listed).expect("text");
    assert!(
        listed.contains(&endpoint) && !listed.contains("hush"),
        "{listed}"
    );
    let gone = staves(&["unmount", to]);
    assert_eq!(gone.code, Some(0), "{}", gone.stderr);
    // The store need not be asked to forget it.
    drop(store);
    let dropped = cluster.run(0, &["files", "drop", "hg", "--yes"]);
    assert_eq!(dropped.code, Some(0), "{}", dropped.stderr);
    cluster.end(0, "-TERM");
}
