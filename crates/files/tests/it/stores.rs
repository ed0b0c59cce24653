//! Real servers: what is listed, what is read, what is said of what is not there.

use std::path::Path;
use std::time::{Duration, SystemTime};

use staves_files::{FileVersion, Kind, Source, SourceError};

use staves_testkit::servers;

pub fn check(source: &Source) -> Result<(), SourceError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(source.check())
}

fn read(source: &Source, path: &str) -> Result<Vec<u8>, SourceError> {
    let stat = source.stat(path.as_bytes())?;
    let Kind::File { version, .. } = stat.kind else {
        panic!("{stat:?}")
    };
    let file = FileVersion {
        dataset: "d".into(),
        path: path.into(),
        size: stat.size,
        version,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let mut all = Vec::new();
    while (all.len() as u64) < file.size {
        let len = (file.size as usize - all.len()).min(70_001);
        let part = runtime
            .block_on(source.read(&file, all.len() as u64, len))?
            .0;
        assert_eq!(part.len(), len);
        all.extend_from_slice(&part);
    }
    Ok(all)
}

/// All files below a folder, by their paths, read whole.
pub fn tree(source: &Source, folder: &str) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for (name, stat) in source.list(folder.as_bytes()).unwrap() {
        let name = String::from_utf8(name).unwrap();
        let path = if folder.is_empty() {
            name
        } else {
            format!("{folder}/{name}")
        };
        let alone = source.stat(path.as_bytes()).unwrap();
        match stat.kind {
            Kind::Folder => {
                assert_eq!(alone.kind, Kind::Folder);
                all.extend(tree(source, &path));
            }
            _ => {
                assert_eq!((alone.kind, alone.size), (stat.kind, stat.size), "{path}");
                all.push((path.clone(), read(source, &path).unwrap()));
            }
        }
    }
    all.sort();
    all
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i + seed) * 131 % 251) as u8).collect()
}

pub fn files() -> Vec<(String, Vec<u8>)> {
    let all = [
        ("hg/38.fa", 200_000),
        ("hg/38.fa.fai", 77),
        ("hg/deep/er/x y", 5),
        ("hg/empty", 0),
        ("mm+10%.fa", 3),
    ];
    let made = (0..)
        .zip(all)
        .map(|(i, (path, len))| (path.to_owned(), bytes(i, len)));
    made.collect()
}

pub fn write(root: &Path, files: &[(String, Vec<u8>)]) {
    for (path, bytes) in files {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(3600))
            .unwrap();
    }
}

#[test]
fn a_bucket_is_listed_and_read() {
    let Some(server) = servers::object_store() else {
        return;
    };
    server.make_bucket("genomes");
    for (path, bytes) in files() {
        let path = path.replace('%', "%25").replace(' ', "%20");
        server.put(&format!("genomes/public/{path}"), &bytes);
    }
    let at = |place: &str| {
        let text = format!("s3://{place}#endpoint=http://127.0.0.1:{}", server.port);
        Source::parse(&text).unwrap()
    };
    let source = at("genomes/public");
    check(&source).unwrap();
    assert_eq!(tree(&source, ""), files());
    assert_eq!(tree(&at("genomes/public/hg"), "deep").len(), 1);
    for path in ["hg/none", "h", "hg/38", "none/x"] {
        let stat = source.stat(path.as_bytes());
        assert!(
            matches!(stat, Err(SourceError::NotFound { .. })),
            "{path}: {stat:?}"
        );
        let list = source.list(path.as_bytes());
        assert!(
            matches!(list, Err(SourceError::NotFound { .. })),
            "{path}: {list:?}"
        );
    }
    for (place, reason) in [
        ("genome", "no bucket 'genome'"),
        ("genomes/private", "begins with 'private/'"),
    ] {
        let error = check(&at(place)).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains(place), "{error}");
    }
    let nobody = Source::parse("s3://genomes#endpoint=http://127.0.0.1:1").unwrap();
    let error = check(&nobody).unwrap_err().to_string();
    assert!(
        error.contains("s3://genomes at http://127.0.0.1:1 cannot"),
        "{error}"
    );
    // What may not be read says whose fault that is.
    server.put_for_owner("genomes/public/secret", b"secret");
    let error = source.stat(b"secret").unwrap_err();
    assert!(matches!(error, SourceError::Denied { .. }), "{error}");
    assert!(error.to_string().contains("credentials"), "{error}");
}

/// Regression: one key that no path can have made everything beside it unreadable.
#[test]
fn keys_that_are_no_paths_hide_nothing_but_themselves() {
    let Some(server) = servers::object_store() else {
        return;
    };
    server.make_bucket("odd");
    for key in [
        "d/a",
        "d/sub/b",
        "d/sub//c",
        "d/sub/../c",
        "d//b",
        "d/c%01x",
        "d/none//x",
        "%01x",
    ] {
        server.put(&format!("odd/{key}"), key.as_bytes());
    }
    let at = |place: &str| {
        let text = format!("s3://{place}#endpoint=http://127.0.0.1:{}", server.port);
        Source::parse(&text).unwrap()
    };
    let names = |source: &Source, folder: &str| {
        let listed = source.list(folder.as_bytes()).unwrap();
        let name = |(name, _): (Vec<u8>, _)| String::from_utf8(name).unwrap();
        listed.into_iter().map(name).collect::<Vec<_>>()
    };
    let below = at("odd/d");
    check(&below).unwrap();
    assert_eq!(names(&below, ""), ["a", "none", "sub"]);
    assert_eq!(names(&below, "sub"), ["b"]);
    assert_eq!(read(&below, "sub/b").unwrap(), b"d/sub/b");
    check(&at("odd")).unwrap();
    assert_eq!(names(&at("odd"), ""), ["d"]);
    // Who never listed what is above knows it for a folder too, and for an empty one.
    let alone = at("odd");
    assert_eq!(alone.stat(b"d/none").unwrap().kind, Kind::Folder);
    assert_eq!(names(&alone, "d/none"), [""; 0]);
}

/// Row D9: an object that is overwritten is another version, whoever has the old one open.
#[test]
fn d9_an_overwritten_object_is_never_mixed() {
    let Some(server) = servers::object_store() else {
        return;
    };
    server.make_bucket("bucket");
    server.put("bucket/f", &bytes(1, 1000));
    let text = format!("s3://bucket#endpoint=http://127.0.0.1:{}", server.port);
    let source = Source::parse(&text).unwrap();
    let stat = source.stat(b"f").unwrap();
    let Kind::File { version, fresh } = stat.kind else {
        panic!()
    };
    assert!(!fresh, "an object's ETag tells all of its changes");
    let file = FileVersion {
        dataset: "d".into(),
        path: b"f".to_vec(),
        size: 1000,
        version,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    assert!(runtime.block_on(source.read(&file, 0, 500)).is_ok());
    server.put("bucket/f", &bytes(2, 1000));
    let half = runtime.block_on(source.read(&file, 500, 500));
    assert!(matches!(half, Err(SourceError::Changed { .. })), "{half:?}");
    assert_eq!(
        read(&source, "f").unwrap(),
        bytes(2, 1000),
        "who opens it now sees what is there now"
    );
}

#[test]
fn a_web_servers_folder_is_read_by_its_manifest() {
    let (root, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let Some(server) = servers::web(root.path(), scratch.path()) else {
        return;
    };
    let all = files();
    write(&root.path().join("data"), &all);
    let url = format!("http://127.0.0.1:{}/data", server.port);
    let source = Source::parse(&url).unwrap();
    let error = check(&source).unwrap_err().to_string();
    assert!(
        error.contains("MANIFEST") && error.contains("#manifest="),
        "{error}"
    );

    let paths: Vec<&str> = all.iter().map(|(path, _)| path.as_str()).collect();
    std::fs::write(root.path().join("data/MANIFEST"), paths.join("\n")).unwrap();
    check(&source).unwrap();
    assert_eq!(tree(&source, ""), all);
    // One that somebody wrote on this machine.
    let own = scratch.path().join("list");
    std::fs::write(&own, "hg/38.fa\t200000\n").unwrap();
    let source = Source::parse(&format!("{url}#manifest={}", own.display())).unwrap();
    assert_eq!(tree(&source, ""), all[..1]);
    let source = Source::parse(&format!("{url}#manifest=/nowhere/list")).unwrap();
    let error = check(&source).unwrap_err().to_string();
    assert!(error.contains("/nowhere/list"), "{error}");
}

#[test]
fn a_web_servers_folder_is_read_by_webdav() {
    let root = tempfile::tempdir().unwrap();
    let Some(server) = servers::dav(root.path()) else {
        return;
    };
    write(&root.path().join("data"), &files());
    let source = Source::parse(&format!("http://127.0.0.1:{}/data", server.port)).unwrap();
    check(&source).unwrap();
    assert_eq!(tree(&source, ""), files());
    for path in ["none", "hg/none", "hg/38.fa/x"] {
        let stat = source.stat(path.as_bytes());
        assert!(
            matches!(stat, Err(SourceError::NotFound { .. })),
            "{path}: {stat:?}"
        );
    }
    let nowhere = Source::parse(&format!("http://127.0.0.1:{}/other", server.port)).unwrap();
    let error = check(&nowhere).unwrap_err().to_string();
    assert!(error.contains("/other"), "{error}");
}

/// A web server's ETag may rest on whole seconds: what changed just now is not to be kept.
#[test]
fn what_changed_just_now_on_a_web_server_is_not_kept() {
    let (root, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let Some(server) = servers::web(root.path(), scratch.path()) else {
        return;
    };
    std::fs::write(root.path().join("new"), b"new").unwrap();
    std::fs::write(root.path().join("MANIFEST"), b"new\n").unwrap();
    let source = Source::parse(&format!("http://127.0.0.1:{}", server.port)).unwrap();
    let stat = source.stat(b"new").unwrap();
    assert!(
        matches!(stat.kind, Kind::File { fresh: true, .. }),
        "{stat:?}"
    );
}
