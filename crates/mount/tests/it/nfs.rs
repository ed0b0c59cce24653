//! The same files by NFS: with the programs that people have, and word by word.

mod raw;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use staves_mount::{Folder, NfsOptions, NfsServer, serve_nfs};
use tempfile::TempDir;

use self::raw::{Client, MOUNT, NFS, STALE, say};
use staves_testkit::tools::missing;
use staves_testkit::wait_until;

use crate::{Seen, Watched, age, noise, settle};

fn local() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

fn serve(source: &TempDir) -> NfsServer {
    let folder = Folder::open(source.path()).unwrap();
    // Each read asks whether the version is still there.
    let options = NfsOptions {
        lifetime: Duration::ZERO,
        ..NfsOptions::default()
    };
    serve_nfs(folder, local(), &options).unwrap()
}

fn source() -> TempDir {
    let source = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(source.path().join("a/b")).unwrap();
    std::fs::write(source.path().join("a/b/file"), noise(1, 700_000)).unwrap();
    std::fs::write(source.path().join("empty"), b"").unwrap();
    source
}

/// The output of a program of libnfs-utils. None where it is not installed, if it need not be.
fn tool(program: &str, server: &NfsServer, path: &str, more: &[&str]) -> Option<Vec<u8>> {
    let port = server.address().port();
    // libnfs 4 does not find its way on if it looks for mounts within mounts and is told the ports.
    let ports = format!("version=3&auto-traverse-mounts=0&nfsport={port}&mountport={port}");
    let url = format!("nfs://127.0.0.1/{path}?{ports}");
    match Command::new(program).args(more).arg(url).output() {
        Ok(ran) => {
            let said = String::from_utf8_lossy(&ran.stderr).into_owned();
            assert!(ran.status.success(), "{program}: {said}");
            Some(ran.stdout)
        }
        Err(error) => {
            missing(format_args!("{program} does not run here: {error}"));
            None
        }
    }
}

#[test]
fn d8_programs_of_libnfs_list_and_read_what_is_there() {
    let source = source();
    let large = noise(3, 20 << 20);
    std::fs::write(source.path().join("large"), &large).unwrap();
    let server = serve(&source);
    let Some(read) = tool("nfs-cat", &server, "large", &[]) else {
        return;
    };
    assert!(read == large, "{} bytes", read.len());
    assert!(tool("nfs-cat", &server, "a/b/file", &[]).unwrap() == noise(1, 700_000));
    assert!(tool("nfs-cat", &server, "empty", &[]).unwrap().is_empty());
    let said = tool("nfs-ls", &server, "", &["-R"]).unwrap();
    let said = String::from_utf8(said).unwrap();
    for name in ["large", "empty", "a/b/file"] {
        assert!(said.lines().any(|line| line.ends_with(name)), "{said}");
    }
    assert!(said.contains(&(20 << 20).to_string()), "{said}");
}

#[test]
fn handles_outlive_the_server_and_are_of_one_dataset() {
    let source = source();
    let server = serve(&source);
    let mut client = Client::connect(server.address());
    let file = client.walk("a/b/file");
    let folder = client.walk("a");
    let (some, end) = client.read(&file, 600_000, 200_000).unwrap();
    assert!(end && some == noise(1, 700_000)[600_000..]);
    drop(server);
    assert!(client.hear().is_none(), "its connections end with it");

    let server = serve(&source);
    let mut client = Client::connect(server.address());
    let (some, end) = client.read(&file, 5, 1000).unwrap();
    assert!(!end && some == noise(1, 700_000)[5..1005]);
    let b = client.look_up(&folder, b"b").unwrap();
    assert_eq!(client.look_up(&b, b"file"), Ok(file.clone()));
    assert_eq!(client.look_up(&b, b".."), Ok(folder));

    let folder = Folder::open(source.path()).unwrap();
    let options = NfsOptions {
        name: "another".into(),
        ..NfsOptions::default()
    };
    let other = serve_nfs(folder, local(), &options).unwrap();
    let mut client = Client::connect(other.address());
    assert_eq!(client.read(&file, 0, 10), Err(STALE));
}

#[test]
fn names_of_a_file_are_counted_as_the_source_counts_them() {
    let source = source();
    std::fs::hard_link(source.path().join("a/b/file"), source.path().join("more")).unwrap();
    let server = serve(&source);
    let mut client = Client::connect(server.address());
    for name in ["a", "a/b/file", "empty", "more"] {
        let handle = client.walk(name);
        let mut answer = client.run(NFS, 1, say().string(&handle));
        let [status, _, _, links] = std::array::from_fn(|_| answer.u32());
        let seen = std::fs::metadata(source.path().join(name)).unwrap();
        assert_eq!((status, u64::from(links)), (0, seen.nlink()), "{name}");
    }
}

/// Row D9.
#[test]
fn d9_an_overwritten_or_deleted_file_makes_its_handles_stale() {
    let source = source();
    let path = source.path().join("a/b/file");
    age(&path);
    let server = serve(&source);
    let mut client = Client::connect(server.address());
    let mut handles = BTreeSet::new();
    for seed in 2..12 {
        let old = client.walk("a/b/file");
        client.read(&old, 0, 100).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(&noise(seed, 700_000), 0).unwrap();
        assert_eq!(client.read(&old, 0, 100), Err(STALE), "{seed}");
        let attributes = client.run(NFS, 1, say().string(&old)).u32();
        assert_eq!(attributes, STALE);
        let new = client.walk("a/b/file");
        let now = client.read(&new, 1000, 100).unwrap().0;
        assert_eq!(now, noise(seed, 700_000)[1000..1100]);
        assert!(handles.insert(old));
    }
    let last = client.walk("a/b/file");
    client.read(&last, 0, 100).unwrap();
    let folder = client.walk("a/b");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(client.read(&last, 0, 100), Err(STALE));
    assert_eq!(client.look_up(&folder, b"file"), Err(2), "ENOENT");
    std::fs::remove_dir(source.path().join("a/b")).unwrap();
    assert_eq!(client.look_up(&folder, b"file"), Err(STALE));
}

#[test]
fn whatever_would_change_something_is_refused_as_read_only() {
    let source = source();
    let server = serve(&source);
    let mut client = Client::connect(server.address());
    let root = client.root();
    // SETATTR, WRITE, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK, COMMIT, each with a body like its own.
    for (procedure, words) in [
        (2, 2),
        (7, 2),
        (8, 2),
        (9, 2),
        (10, 2),
        (11, 2),
        (12, 2),
        (13, 2),
        (14, 4),
        (15, 3),
        (21, 2),
    ] {
        let args = say().string(&root).string(b"empty").string(&[7; 60_000]);
        let mut answer = client.run(NFS, procedure, args);
        assert_eq!(answer.u32(), 30, "procedure {procedure}");
        assert_eq!(answer.left(), words * 4, "procedure {procedure}");
    }
    let mut may = client.run(NFS, 4, say().string(&root).u32(0x3f));
    assert_eq!((may.u32(), may.u32()), (0, 1));
    may.attributes();
    assert_eq!(may.u32(), 0x1 | 0x2 | 0x20, "no writing");
    assert_eq!(std::fs::read(source.path().join("empty")).unwrap(), b"");
}

/// All names of a folder, listed in pieces of so many bytes.
fn all_names(client: &mut Client, folder: &[u8], max: u32, plus: bool) -> Vec<Vec<u8>> {
    let (mut names, mut place) = (Vec::new(), 0);
    loop {
        let (some, end) = client.list(folder, place, max, plus).unwrap();
        place = some.last().map_or(place, |(_, place, _)| *place);
        names.extend(some.into_iter().map(|(name, _, _)| name));
        if end {
            return names;
        }
    }
}

#[test]
fn large_folders_are_listed_in_pieces_whatever_their_names() {
    let source = source();
    let mut there: BTreeSet<Vec<u8>> = (0..2000).map(|i| format!("n{i}").into_bytes()).collect();
    there.insert(vec![b'x'; 255]);
    there.insert(b"not \xff\xfe UTF-8".to_vec());
    there.insert("\u{e4}\u{1f600} \n".into());
    for name in &there {
        let path = source.path().join("a").join(OsStr::from_bytes(name));
        std::fs::write(path, name).unwrap();
    }
    there.extend([&b"b"[..], b".", b".."].map(<[u8]>::to_vec));
    let server = serve(&source);
    let mut client = Client::connect(server.address());
    let folder = client.walk("a");
    for (max, plus) in [
        (1000, false),
        (1000, true),
        (1 << 20, false),
        (1 << 20, true),
    ] {
        let names = all_names(&mut client, &folder, max, plus);
        assert_eq!(names.len(), there.len(), "each once, by {max}");
        assert_eq!(BTreeSet::from_iter(names), there);
    }
    assert_eq!(client.list(&folder, 0, 100, true), Err(10005), "too small");
    let b = client.look_up(&folder, b"b").unwrap();
    let file = client.look_up(&b, b"file").unwrap();
    assert_eq!(client.list(&file, 0, 1000, true), Err(20), "no folder");

    // A listing is gone on with at another server, and what came or went meanwhile shifts nothing.
    let (some, _) = client.list(&folder, 0, 4000, true).unwrap();
    std::fs::write(source.path().join("a/new"), b"").unwrap();
    let gone = some.iter().rfind(|(name, ..)| name[0] == b'n').unwrap();
    std::fs::remove_file(source.path().join("a").join(OsStr::from_bytes(&gone.0))).unwrap();
    let server = serve(&source);
    let mut client = Client::connect(server.address());
    let mut seen: Vec<_> = some.iter().map(|(name, ..)| name.clone()).collect();
    let mut place = some.last().unwrap().1;
    loop {
        let (some, end) = client.list(&folder, place, 4000, true).unwrap();
        for (name, at, handle) in some {
            if name.starts_with(b"n") && name.len() < 6 && name != b"new" {
                let bytes = client.read(&handle, 0, 100).unwrap().0;
                assert_eq!(bytes, name, "the handle is its own");
            }
            place = at;
            seen.push(name);
        }
        if end {
            break;
        }
    }
    seen.retain(|name| name != b"new");
    assert_eq!(seen.len(), there.len());
    assert_eq!(BTreeSet::from_iter(seen), there);
}

/// Regression: nobody knows who a client of NFSv3 is, and it was given what the server's user alone may read.
#[test]
fn what_not_everybody_may_read_is_given_to_nobody() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path, mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path, mode).unwrap();
    };
    let source = source();
    let private = source.path().join("private");
    std::fs::write(&private, b"secret").unwrap();
    settle(); // what has just changed is not kept open
    let server = serve(&source);
    let mut client = Client::connect(server.address());
    let (root, denied) = (client.root(), 13);
    let (file, below) = (client.walk("private"), client.walk("a/b/file"));
    assert!(client.read(&file, 0, 6).is_ok() && client.read(&below, 0, 6).is_ok());
    mode(&private, 0o640);
    mode(&source.path().join("a"), 0o700);
    // The change of its mode is a change of the file: it is looked up anew.
    let file = client.look_up(&root, b"private").unwrap();
    assert_eq!(client.read(&file, 0, 6), Err(denied));
    let folder = client.look_up(&root, b"a").unwrap();
    assert_eq!(client.look_up(&folder, b"b"), Err(denied));
    assert_eq!(client.mount(b"/a/b"), Err(denied));
    assert_eq!(client.read(&below, 0, 6), Err(denied), "though it is open");
    let stat = client.run(NFS, 1, say().string(&below)).u32();
    assert_eq!(stat, denied, "nor is anything said of it");
    let server = serve(&source);
    let mut client = Client::connect(server.address());
    assert_eq!(
        client.read(&below, 0, 6),
        Err(denied),
        "with a handle from before"
    );
}

#[test]
fn deep_trees_links_and_names_that_are_none() {
    let source = source();
    let deep = "d/".repeat(80);
    std::fs::create_dir_all(source.path().join(&deep)).unwrap();
    std::fs::write(source.path().join(&deep).join("file"), b"deep down").unwrap();
    symlink("a/b/file", source.path().join("link")).unwrap();
    symlink("/etc", source.path().join("out")).unwrap();
    let server = serve(&source);
    let mut client = Client::connect(server.address());
    let file = client.walk(&format!("{deep}file"));
    assert_eq!(client.read(&file, 0, 99), Ok((b"deep down".to_vec(), true)));
    let server = serve(&source);
    let mut client = Client::connect(server.address());
    assert_eq!(client.read(&file, 5, 2), Ok((b"do".to_vec(), false)));

    for (name, target) in [("link", "a/b/file"), ("out", "/etc")] {
        let link = client.walk(name);
        let mut answer = client.run(NFS, 5, say().string(&link));
        assert_eq!((answer.u32(), answer.u32()), (0, 1));
        assert_eq!(answer.attributes().0, 5, "a link");
        assert_eq!(answer.string(), target.as_bytes());
        assert_eq!(
            client.read(&link, 0, 10),
            Err(22),
            "it is shown, never followed"
        );
    }
    assert_eq!(client.mount(b"/out"), Err(20));
    assert_eq!(client.mount(b"/a/../a"), Err(22));
    assert_eq!(client.mount(b"/none"), Err(2));
    let root = client.root();
    assert_eq!(client.mount(b"/a"), client.look_up(&root, b"a"));
    assert_eq!(client.look_up(&root, b".."), Ok(root.clone()));
    assert_eq!(client.look_up(&root, b""), Err(22));
    assert_eq!(client.look_up(&root, b"a/b"), Err(22));
    assert_eq!(client.look_up(&root, &[b'x'; 256]), Err(63));
    assert_eq!(client.look_up(b"no handle", b"a"), Err(10001));
    assert_eq!(client.read(&root, 0, 10), Err(21));
    let empty = client.walk("empty");
    assert_eq!(client.look_up(&empty, b"x"), Err(20));
    assert_eq!(client.read(&empty, 0, 10), Ok((vec![], true)));
    assert_eq!(client.read(&empty, u64::MAX, u32::MAX), Ok((vec![], true)));
}

#[test]
fn what_is_no_call_harms_nobody_else() {
    let source = source();
    let server = serve(&source);
    let mut good = Client::connect(server.address());
    let file = good.walk("a/b/file");
    let cut_off = |sent: &[u8]| {
        let mut bad = Client::connect(server.address());
        // It may have ended the connection before it has come whole.
        let _ = bad.stream.write_all(sent);
        let _ = bad.stream.shutdown(Shutdown::Write);
        let mut rest = Vec::new();
        // Reset or ended: nothing is answered.
        let _ = bad.stream.read_to_end(&mut rest);
        assert_eq!(rest, b"");
    };
    cut_off(&[0xff; 4]);
    cut_off(&[0xff; 4096]);
    cut_off(&[0x80, 0, 0, 4, 1, 2, 3, 4]);
    cut_off(b"GET / HTTP/1.1\r\n\r\n");
    // A record of endlessly many fragments.
    cut_off(&[&[0, 0, 16, 0][..], &[7; 4096]].concat().repeat(40));
    for i in 1..200u64 {
        cut_off(&noise(i, 100 + i as usize)[..]);
    }
    let mut odd = Client::connect(server.address());
    let mut how = |program, version, procedure| {
        let mut answer = odd.call(program, version, procedure, say());
        assert_eq!((answer.u32(), answer.u32(), answer.u32()), (0, 0, 0));
        answer.u32()
    };
    assert_eq!(how(NFS, 3, 0), 0);
    assert_eq!(how(100_000, 2, 3), 1, "no such program");
    assert_eq!(how(NFS, 4, 1), 2, "no such version");
    assert_eq!(how(MOUNT, 1, 1), 2, "no such version");
    assert_eq!(how(NFS, 3, 99), 3, "no such procedure");
    assert_eq!(how(NFS, 3, 6), 4, "no arguments");
    odd.send([9, 0, 3, NFS, 3, 0], say());
    let mut denied = odd.hear().unwrap();
    let words: Vec<u32> = (0..6).map(|_| denied.u32()).collect();
    assert_eq!(words, [9, 1, 1, 0, 2, 2]);
    assert!(good.read(&file, 0, u32::MAX).unwrap().0 == noise(1, 700_000)[..256 << 10]);
}

/// A server that takes four connections at a time.
fn serve_four(source: &TempDir) -> NfsServer {
    let folder = Folder::open(source.path()).unwrap();
    let options = NfsOptions {
        connections_max: 4,
        ..NfsOptions::default()
    };
    serve_nfs(folder, local(), &options).unwrap()
}

#[test]
fn clients_are_bounded_and_the_idle_one_makes_room() {
    let source = source();
    let server = serve_four(&source);
    let mut busy = Client::connect(server.address());
    let file = busy.walk("a/b/file");
    let mut idle = Vec::new();
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(20));
        busy.read(&file, 0, 100).unwrap();
        let mut other = Client::connect(server.address());
        other.read(&file, 0, 100).unwrap();
        idle.push(other);
    }
    busy.read(&file, 0, 100).unwrap();
    let mut closed = 0;
    for mut other in idle {
        other
            .stream
            .set_read_timeout(Some(Duration::from_millis(20)))
            .unwrap();
        closed += usize::from(other.stream.read(&mut [0]).is_ok());
    }
    assert_eq!(closed, 20 - 3);
}

#[test]
fn who_connects_and_is_silent_cuts_nobody_off_who_calls() {
    let source = source();
    let server = serve_four(&source);
    let mut works = Client::connect(server.address());
    let file = works.walk("a/b/file");
    let mut silent: Vec<TcpStream> = Vec::new();
    for _ in 0..5 {
        for _ in 0..8 {
            silent.push(TcpStream::connect(server.address()).unwrap());
        }
        let mut new = Client::connect(server.address());
        assert!(
            new.read(&file, 0, 100).is_ok(),
            "who calls at once is let in"
        );
        assert!(works.read(&file, 0, 100).is_ok(), "who called stays");
    }
}

#[test]
fn several_calls_of_a_client_are_answered_at_a_time_and_reading_in_order_is_read_ahead_of() {
    let source = source();
    let path = source.path().join("long");
    std::fs::write(&path, noise(5, 8 << 20)).unwrap();
    settle();
    let seen = Arc::new(Seen::default());
    let watched = Watched {
        folder: Folder::open(source.path()).unwrap(),
        seen: seen.clone(),
    };
    let server = serve_nfs(watched, local(), &NfsOptions::default()).unwrap();
    let mut client = Client::connect(server.address());
    let file = client.walk("long");
    for i in 0..200u64 {
        let at = i * 40_503 % 2048 * 4096;
        client.read(&file, at, 4096).unwrap();
    }
    assert_eq!(seen.ahead_bytes.load(Ordering::Relaxed), 0, "at random");
    let whole = noise(5, 8 << 20);
    for i in 0..32u32 {
        let args = say().string(&file).u64(u64::from(i) << 18).u32(256 << 10);
        client.send([1000 + i, 0, 2, NFS, 3, 6], args);
    }
    for _ in 0..32 {
        let mut answer = client.hear().unwrap();
        let at = ((answer.u32() - 1000) as usize) << 18;
        let head: Vec<u32> = (0..9).map(|_| answer.u32()).collect();
        assert_eq!(head[..6], [1, 0, 0, 0, 0, 0]);
        assert!(answer.string() == whole[at..at + (256 << 10)]);
    }
    wait_until("it is read ahead", || {
        seen.ahead_bytes.load(Ordering::Relaxed) > 0
    });
    seen.late.store(true, Ordering::Relaxed);
    assert_eq!(client.read(&file, 0, 10), Err(10008), "try again later");
    seen.late.store(false, Ordering::Relaxed);
    assert!(client.read(&file, 0, 10).is_ok());
}

/// Regression: one file that its source could not give, while all others were well, held who read it for ever.
#[test]
fn what_alone_cannot_be_had_is_an_error_and_no_wait() {
    let source = source();
    settle();
    let seen = Arc::new(Seen::default());
    let watched = Watched {
        folder: Folder::open(source.path()).unwrap(),
        seen: seen.clone(),
    };
    let options = NfsOptions {
        lifetime: Duration::from_millis(40),
        ..NfsOptions::default()
    };
    let server = serve_nfs(watched, local(), &options).unwrap();
    let mut client = Client::connect(server.address());
    let file = client.walk("a/b/file");
    seen.late.store(true, Ordering::Relaxed);
    seen.others_answer.store(true, Ordering::Relaxed);
    assert_eq!(
        client.read(&file, 0, 10),
        Err(10008),
        "a server may be starting again"
    );
    let began = Instant::now();
    while client.read(&file, 0, 10) != Err(5) {
        assert!(began.elapsed() < Duration::from_secs(60), "EIO in the end");
        std::thread::sleep(Duration::from_millis(20));
    }
    seen.others_answer.store(false, Ordering::Relaxed);
    assert_eq!(client.read(&file, 0, 10), Err(10008), "all are away");
    seen.late.store(false, Ordering::Relaxed);
    assert!(client.read(&file, 0, 10).is_ok());
}

#[test]
fn what_is_asked_for_again_and_again_is_looked_at_once_in_a_lifetime() {
    let source = source();
    settle();
    let seen = Arc::new(Seen::default());
    let watched = Watched {
        folder: Folder::open(source.path()).unwrap(),
        seen: seen.clone(),
    };
    let options = NfsOptions {
        lifetime: Duration::from_secs(3600),
        ..NfsOptions::default()
    };
    let server = serve_nfs(watched, local(), &options).unwrap();
    let mut client = Client::connect(server.address());
    let file = client.walk("a/b/file");
    for i in 0..200 {
        assert_eq!(client.run(NFS, 1, say().string(&file)).u32(), 0);
        assert_eq!(client.walk("a/b/file"), file);
        client.read(&file, i * 4096 % 700_000, 100).unwrap();
    }
    let looks = seen.looks.load(Ordering::Relaxed);
    assert!(
        looks <= 8,
        "{looks}: the root, two folders, the file, its opening"
    );
    // A read that finds another version ends that: the next look-up leads to it.
    let path = source.path().join("a/b/file");
    let file_there = File::options().write(true).open(&path).unwrap();
    file_there.write_all_at(&noise(2, 700_000), 0).unwrap();
    assert_eq!(client.read(&file, 0, 100), Err(STALE));
    let now = client.walk("a/b/file");
    assert_ne!(now, file);
    let bytes = client.read(&now, 0, 100).unwrap().0;
    assert_eq!(bytes, noise(2, 700_000)[..100]);
}

/// Regression: the first thread that saw the end cut the others off, which had answers to give.
#[test]
fn who_has_said_all_gets_all_answers() {
    let source = source();
    let server = serve(&source);
    for _ in 0..20 {
        let mut client = Client::connect(server.address());
        let file = client.walk("a/b/file");
        for i in 0..8u32 {
            let args = say().string(&file).u64(u64::from(i) << 16).u32(1 << 16);
            client.send([1000 + i, 0, 2, NFS, 3, 6], args);
        }
        client.stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!((0..9).filter_map(|_| client.hear()).count(), 8);
    }
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Regression: each connection had eight threads, which went on until the source had answered when it was closed long ago: one client that
/// connected again and again made fifteen hundred.
#[test]
fn threads_of_connections_that_left_are_bounded() {
    let source = source();
    let seen = Arc::new(Seen::default());
    let watched = Watched {
        folder: Folder::open(source.path()).unwrap(),
        seen: seen.clone(),
    };
    let options = NfsOptions {
        connections_max: 4,
        ..NfsOptions::default()
    };
    let server = serve_nfs(watched, local(), &options).unwrap();
    let file = Client::connect(server.address()).walk("a/b/file");
    let before = threads();
    seen.stands.store(true, Ordering::Relaxed);
    let mut clients = Vec::new();
    for _ in 0..60 {
        let mut client = Client::connect(server.address());
        for i in 0..8u32 {
            let args = say().string(&file).u64(u64::from(i) << 16).u32(1 << 16);
            client.send([1000 + i, 0, 2, NFS, 3, 6], args);
        }
        std::thread::sleep(Duration::from_millis(5));
        clients.push(client.stream.shutdown(Shutdown::Both));
    }
    let most = threads();
    seen.stands.store(false, Ordering::Relaxed);
    // Other tests of this process have threads, too.
    assert!(most < before + 200, "{most} threads, {before} before");
    let mut client = Client::connect(server.address());
    assert!(client.read(&file, 0, 100).is_ok(), "it goes on");
}
