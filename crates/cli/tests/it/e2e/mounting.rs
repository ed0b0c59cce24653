//! Mistakes in mounting, and their errors.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;
use staves_testkit::tools::{can_mount, skip};

use super::mount::Point;
use super::{Cluster, PATIENCE};
use crate::staves;

const POOL: [&str; 7] = [
    "pool", "create", "files", "--kind", "files", "--memory", "48MiB",
];

fn folder(parent: &Path, name: &str) -> (PathBuf, String) {
    let path = parent.join(name);
    std::fs::create_dir_all(&path).expect("a folder");
    let text = path.to_string_lossy().into_owned();
    (path, text)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A request to a mount, which must answer.
fn answered<T: Send + 'static>(what: &str, ask: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(ask()));
    let answer = receiver.recv_timeout(PATIENCE);
    answer.unwrap_or_else(|_| panic!("no answer: {what}"))
}

/// A second place of what is mounted; aborted at the end, should it hang.
struct Bound(PathBuf);

impl Drop for Bound {
    fn drop(&mut self) {
        let run = |flag| Command::new("umount").arg(flag).arg(&self.0).status();
        let _ = run("-f");
        let _ = run("-l");
    }
}

/// Regression: a mount within its own source waited for itself, and no signal ended that.
#[test]
fn a_mount_never_waits_for_itself_and_what_cannot_be_mounted_leaves_nothing() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::start(1);
    let dir = tempfile::tempdir().expect("a folder");
    let (source, from) = folder(dir.path(), "self");
    let (inner, within) = folder(&source, "mnt");
    let (point, to) = folder(dir.path(), "point");
    std::fs::write(source.join("file"), b"acgt").expect("a file");
    assert_eq!(cluster.run(0, &POOL).code, Some(0));
    let absent = format!("{to}/absent");
    for (at, code, words) in [
        (&within, 2, "lies within"),
        (&from, 2, "lies within"),
        (&absent, 3, "there is no folder"),
    ] {
        let ran = cluster.run(0, &["mount", &from, at]);
        assert_eq!(ran.code, Some(code), "{at}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{at}: {}", ran.stderr);
    }
    let listed = cluster.run(0, &["files", "list", "-o", "json"]);
    assert_eq!(json(&listed.stdout), Value::Array(Vec::new()));

    let mounted = cluster.run(0, &["mount", &from, &to]);
    assert_eq!(mounted.code, Some(0), "{}", mounted.stderr);
    let _point = Point(point.clone());
    let bind = ["--bind", &to, &within];
    if !Command::new("mount")
        .args(bind)
        .status()
        .is_ok_and(|status| status.success())
    {
        return skip("nothing can be bound here");
    }
    let _bound = Bound(inner);
    let at = point.clone();
    let names = answered("what is in the mount", move || {
        let names = std::fs::read_dir(at).expect("a folder");
        names
            .map(|name| name.expect("a name").file_name())
            .collect::<Vec<_>>()
    });
    assert_eq!(names, ["file"]);
    let at = point.join("mnt/file");
    let refused = answered("what is in itself", move || std::fs::read(at).map(drop));
    assert!(refused.is_err());
    let at = point.join("file");
    let read = answered("a plain file", move || {
        std::fs::read(at).expect("it is there")
    });
    assert_eq!(read, b"acgt");
}

/// Regression: a mount of Staves was taken for a source, and each read went through two of them.
#[test]
fn a_mount_is_no_source_and_the_error_says_what_is() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::start(1);
    let dir = tempfile::tempdir().expect("a folder");
    let (genomes, from) = folder(dir.path(), "genomes");
    std::fs::create_dir(genomes.join("below")).expect("a folder");
    let (point, to) = folder(dir.path(), "point");
    let (later, at) = folder(dir.path(), "later");
    assert_eq!(cluster.run(0, &POOL).code, Some(0));
    let refused = |args: &[&str]| {
        let ran = cluster.run(0, args);
        assert_eq!(ran.code, Some(3), "{args:?}: {}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
        let words = "is no source: it is in a mount of Staves";
        assert!(ran.stderr.contains(words), "{args:?}: {}", ran.stderr);
    };
    let done = |args: &[&str]| {
        let ran = cluster.run(0, args);
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
    };
    let _point = Point(point);
    let _later = Point(later);
    done(&["mount", &at, &to, "--dataset", "later"]);
    done(&["unmount", &to]);
    done(&["mount", &from, &at]);
    refused(&["mount", &at, &to, "--dataset", "twice"]);
    refused(&["mount", &format!("{at}/below"), "--nfs", "0"]);
    refused(&["files", "preload", "later"]);
    let listed = json(&cluster.run(0, &["files", "list", "-o", "json"]).stdout);
    let names = listed.as_array().expect("a list").iter();
    let names: Vec<&Value> = names.map(|known| &known["dataset"]).collect();
    assert_eq!(names, ["genomes", "later"], "{listed}");
}

/// Regression: a lock that the shell held was held by the mount from then on.
#[test]
fn a_mount_in_the_background_keeps_nothing_of_who_started_it_and_says_what_it_is() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::start(1);
    let dir = tempfile::tempdir().expect("a folder");
    let (_, from) = folder(dir.path(), "genomes");
    let (point, to) = folder(dir.path(), "point");
    assert_eq!(cluster.run(0, &POOL).code, Some(0));
    let lock = dir.path().join("lock");
    let _point = Point(point);
    let script = "exec 9>\"$1\"; shift; exec \"$@\"";
    let ran = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(&lock)
        .arg(env!("CARGO_BIN_EXE_staves"))
        .args(["--cluster", &cluster.nodes[0].native])
        .args(["mount", &from, &to, "-o", "json"])
        .output()
        .expect("a shell");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{ran:?}");
    let told = json(&said);
    assert_eq!(
        (&told["dataset"], &told["pool"]),
        (&Value::from("genomes"), &Value::from("files"))
    );
    let warning = told["warning"].as_str().unwrap_or_default();
    assert!(warning.contains("nothing is in"), "{said}");
    for command in ["preload", "unpin"] {
        let slip = cluster.run(0, &["files", command, "genomes", "absent"]);
        assert_eq!(slip.code, Some(3), "{command}: {}", slip.stderr);
    }
    let holders = std::fs::read_dir("/proc").expect("processes").flatten();
    let open = holders.filter_map(|process| std::fs::read_dir(process.path().join("fd")).ok());
    let mut open = open.flatten().flatten();
    let held = open.find(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == lock));
    assert!(held.is_none(), "{held:?}");
}

/// Regression: where no node answered nothing could be mounted, though reads go to the source then.
#[test]
fn d11_a_mount_needs_no_node_and_uses_those_that_come() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::start(1);
    let dir = tempfile::tempdir().expect("a folder");
    let (source, from) = folder(dir.path(), "genomes");
    let (point, to) = folder(dir.path(), "point");
    std::fs::write(source.join("one"), vec![1; 300_000]).expect("a file");
    std::fs::write(source.join("two"), vec![2; 300_000]).expect("a file");
    assert_eq!(cluster.run(0, &POOL).code, Some(0));
    cluster.end(0, "-KILL");

    let mounted = cluster.run(0, &["mount", &from, &to, "-o", "json", "--deadline", "1s"]);
    assert_eq!(mounted.code, Some(0), "{}", mounted.stderr);
    let _point = Point(point.clone());
    let warning = json(&mounted.stdout)["warning"].to_string();
    assert!(warning.contains("no node answers"), "{warning}");
    let (one, two) = (point.join("one"), point.join("two"));
    let read = |path: PathBuf| answered("a file", move || std::fs::read(path).expect("bytes"));
    assert!(read(one) == vec![1; 300_000]);

    cluster.up(0);
    cluster.wait_for("every bucket has a holder", 0, |s| {
        let pools = s["pools"].as_array().into_iter().flatten();
        let mut files = pools.filter(|p| p["kind"] == "files");
        files.any(|p| p["whole"] == p["buckets"])
    });
    // It finds the node by itself, names the dataset there, and has it keep what is read.
    let until = Instant::now() + PATIENCE;
    loop {
        let shown = cluster.run(0, &["files", "show", "genomes", "-o", "json"]);
        if shown.code == Some(0) && json(&shown.stdout)["in_memory_bytes"] == 300_000 {
            break;
        }
        assert!(Instant::now() < until, "{}{}", shown.stdout, shown.stderr);
        let path = two.clone();
        let got = answered("a file", move || super::mount::read_anew(&path));
        assert!(got.expect("bytes") == vec![2; 300_000]);
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// One fault, one code, whichever way it is come by.
#[test]
fn one_fault_has_one_code() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_, from) = folder(dir.path(), "genomes");
    let (_, to) = folder(dir.path(), "point");
    let file = dir.path().join("file");
    std::fs::write(&file, b"acgt").expect("a file");
    let (file, absent) = (file.to_string_lossy(), format!("{from}/absent"));
    for (args, code, words) in [
        (vec!["mount", &absent, &to], 3, "there is no such folder"),
        (vec!["mount", &from, &to, "--dataset", ".."], 2, "--dataset"),
        (
            vec!["mount", &from, &to, "--dataset", "a/b"],
            2,
            "--dataset",
        ),
        (vec!["mount", "gopher://lab", &to], 2, "gopher"),
        (vec!["files", "list"], 4, "--cluster and STAVES_CLUSTER"),
    ] {
        let mut all = vec!["--cluster", "127.0.0.1:1", "--deadline", "1s"];
        all.extend(&args);
        let ran = staves(&all);
        assert_eq!(ran.code, Some(code), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{args:?}: {}", ran.stderr);
    }
    let under = format!("{file}/under");
    let ran = staves(&["mount", &under, &to]);
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
}

/// Regression: whoever may use a mount was shown everything as readable by all, and could read it.
#[test]
fn others_may_read_what_everybody_may_read_at_the_source() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::CommandExt;
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    if !can_mount() {
        return;
    }
    if !is_root {
        return skip("only root can read as another user");
    }
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a mode");
    };
    let cluster = Cluster::start(1);
    let dir = tempfile::tempdir().expect("a folder");
    mode(dir.path(), 0o755);
    let (source, from) = folder(dir.path(), "source");
    let (closed, _) = folder(&source, "closed");
    let (point, to) = folder(dir.path(), "point");
    for (path, bits) in [
        (source.join("open"), 0o644),
        (source.join("secret"), 0o600),
        (closed.join("within"), 0o644),
    ] {
        std::fs::write(&path, b"acgt").expect("a file");
        mode(&path, bits);
    }
    mode(&closed, 0o700);
    assert_eq!(cluster.run(0, &POOL).code, Some(0));
    let mounted = cluster.run(0, &["mount", &from, &to, "--others"]);
    assert_eq!(mounted.code, Some(0), "{}", mounted.stderr);
    let _point = Point(point.clone());
    let nobody = 65534;
    let may = |name: &'static str, user: u32| {
        let mut cat = Command::new("cat");
        cat.arg(point.join(name)).uid(user).gid(user);
        let ran = answered(name, move || cat.output()).expect("cat runs");
        ran.stdout == b"acgt"
    };
    for name in ["open", "secret", "closed/within"] {
        assert!(may(name, 0), "root reads {name}");
        assert_eq!(may(name, nobody), name == "open", "{name}");
    }
    // Nor does a node keep it.
    let load = |path: &str| cluster.run(0, &["files", "preload", "source", path, "--pin"]);
    for name in ["secret", "closed/within"] {
        let refused = load(name);
        assert!(
            refused.stderr.contains("cannot be pinned"),
            "{}",
            refused.stderr
        );
        assert_eq!(refused.code, Some(1));
    }
    // Files count as changing until two seconds after their last change.
    std::thread::sleep(std::time::Duration::from_millis(2100));
    let whole = format!("{from}/open");
    let loaded = load(&whole);
    assert_eq!(loaded.code, Some(0), "{}", loaded.stderr);
    std::os::unix::fs::symlink("open", source.join("link")).expect("a link");
    let link = load("link");
    assert!(link.stderr.contains("is a link to open"), "{}", link.stderr);
}
