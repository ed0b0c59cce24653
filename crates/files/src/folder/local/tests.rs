//! Folders of this machine: versions, links, permissions, and what lies outside.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use std::os::unix::fs::PermissionsExt;

use super::*;

fn at(folder: &LocalFolder, path: &[u8]) -> FileVersion {
    let stat = folder.stat(path).unwrap();
    let Kind::File { version, .. } = stat.kind else {
        panic!("{stat:?}")
    };
    FileVersion {
        dataset: "d".into(),
        path: path.to_vec(),
        size: stat.size,
        version,
    }
}

fn age(path: &Path) {
    let then = SystemTime::now() - Duration::from_secs(60);
    File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_modified(then)
        .unwrap();
}

fn list(folder: &LocalFolder, path: &[u8]) -> Result<Vec<(Vec<u8>, Stat)>, SourceError> {
    let mut all = Vec::new();
    let each = |name: &[u8], stat| all.push((name.to_vec(), stat));
    folder.list(path, || (), 9, each).map(|()| all)
}

#[test]
fn as_many_names_are_listed_as_may_be_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let folder = LocalFolder::new(dir.path().to_str().unwrap());
    for at in 0..9 {
        std::fs::write(dir.path().join(at.to_string()), b"").unwrap();
    }
    assert_eq!(list(&folder, b"").unwrap().len(), 9);
    std::fs::write(dir.path().join("one more"), b"").unwrap();
    let error = list(&folder, b"").unwrap_err().to_string();
    assert!(error.contains("more than 9 names"), "{error}");
    assert!(error.contains("spread them"), "{error}");
}

#[test]
fn a_name_that_cannot_be_looked_at_is_listed_and_a_list_is_whole_or_fails() {
    assert_eq!(unopened(Errno::NOENT), Ok(None), "it went meanwhile");
    for errno in [Errno::ACCESS, Errno::IO, Errno::STALE] {
        assert_eq!(unopened(errno), Ok(Some(Stat::UNREADABLE)), "{errno}");
    }
    for errno in [Errno::MFILE, Errno::NFILE] {
        assert_eq!(unopened(errno), Err(errno));
    }
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
    std::fs::write(dir.path().join("file"), b"").unwrap();
    let folder = LocalFolder::new(dir.path().to_str().unwrap());
    let all = list(&folder, b"").unwrap();
    let names: Vec<&[u8]> = all.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(names, [b"file"], "a socket is nothing that is shown");
}

#[test]
fn names_of_all_kinds_are_listed_and_read() {
    let dir = tempfile::tempdir().unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"odd \xff name");
    std::fs::write(dir.path().join(odd), b"hello").unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::write(dir.path().join("sub/x"), b"").unwrap();
    symlink("sub/x", dir.path().join("link")).unwrap();
    let folder = LocalFolder::new(dir.path().to_str().unwrap());
    let mut all = list(&folder, b"").unwrap();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    let names: Vec<&[u8]> = all.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(names, [&b"link"[..], b"odd \xff name", b"sub"]);
    assert_eq!(all[0].1.kind, Kind::Link(b"sub/x".to_vec()));
    assert_eq!((all[1].1.size, all[2].1.kind.clone()), (5, Kind::Folder));
    let file = at(&folder, b"odd \xff name");
    assert_eq!(
        &folder.read(&file, 1, 3, Reader::ThisProcess).unwrap().0[..],
        b"ell"
    );
    assert!(
        folder.read(&file, 3, 3, Reader::ThisProcess).is_err(),
        "past its end"
    );
    assert!(
        folder
            .read(&file, u64::MAX, 3, Reader::ThisProcess)
            .is_err()
    );
    assert_eq!(list(&folder, b"sub").unwrap().len(), 1);
    assert!(matches!(
        folder.stat(b"none"),
        Err(SourceError::NotFound { .. })
    ));
    assert!(matches!(
        list(&folder, b"sub/x"),
        Err(SourceError::NotFound { .. })
    ));
}

#[test]
fn what_is_no_folder_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for place in [file.path().to_str().unwrap(), "/nowhere/at/all"] {
        let error = LocalFolder::new(place).probe().unwrap_err().to_string();
        assert!(
            error.contains(place) && error.contains("no such folder"),
            "{error}"
        );
    }
}

#[test]
fn nothing_outside_of_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let inside = dir.path().join("inside");
    std::fs::create_dir(&inside).unwrap();
    std::fs::write(dir.path().join("secret"), b"secret").unwrap();
    symlink("../secret", inside.join("out")).unwrap();
    symlink("/etc/passwd", inside.join("far")).unwrap();
    let folder = LocalFolder::new(inside.to_str().unwrap());
    for path in [
        &b"../secret"[..],
        b"/etc/passwd",
        b"out",
        b"far",
        b"x/../../secret",
    ] {
        let file = FileVersion {
            dataset: "d".into(),
            path: path.to_vec(),
            size: 6,
            version: String::new(),
        };
        let read = folder.read(&file, 0, 1, Reader::ThisProcess);
        let refused = matches!(
            read,
            Err(SourceError::Denied { .. } | SourceError::NotFound { .. })
        );
        assert!(refused, "{path:?}: {read:?}");
    }
    assert!(matches!(folder.stat(b"out").unwrap().kind, Kind::Link(_)));
}

/// Row D9: whatever happens to a file, a version's bytes are its own or an error.
#[test]
fn d9_another_version_is_never_read_as_this_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, b"one").unwrap();
    age(&path);
    let folder = LocalFolder::new(dir.path().to_str().unwrap());
    let one = at(&folder, b"f");
    assert!(folder.read(&one, 0, 3, Reader::ThisProcess).is_ok());
    // The same size, in place, its time put back: the time of change shows it.
    std::fs::write(&path, b"two").unwrap();
    age(&path);
    assert!(matches!(
        folder.read(&one, 0, 3, Reader::ThisProcess),
        Err(SourceError::Changed { .. })
    ));
    let two = at(&folder, b"f");
    assert_ne!(one.id(), two.id());
    assert_eq!(
        &folder.read(&two, 0, 3, Reader::ThisProcess).unwrap().0[..],
        b"two"
    );
    // Another file under the name: a reader that has the old one open may go on, and its bytes are its own.
    std::fs::write(dir.path().join("g"), b"six").unwrap();
    std::fs::rename(dir.path().join("g"), &path).unwrap();
    match folder.read(&two, 0, 3, Reader::ThisProcess) {
        Ok((bytes, _)) => assert_eq!(&bytes[..], b"two"),
        Err(error) => assert!(matches!(error, SourceError::Changed { .. }), "{error}"),
    }
    assert_eq!(
        &folder
            .read(&at(&folder, b"f"), 0, 3, Reader::ThisProcess)
            .unwrap()
            .0[..],
        b"six"
    );
    std::fs::remove_file(&path).unwrap();
    assert!(folder.stat(b"f").is_err());
}

#[test]
fn what_changed_just_now_is_not_to_be_kept() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f"), b"one").unwrap();
    let folder = LocalFolder::new(dir.path().to_str().unwrap());
    let file = at(&folder, b"f");
    let (bytes, keep) = folder.read(&file, 0, 3, Reader::ThisProcess).unwrap();
    assert_eq!((&bytes[..], keep), (&b"one"[..], Keep::NotYet));
    // Where its own time of change is set to does not matter.
    let ahead = SystemTime::now() + Duration::from_secs(1 << 20);
    File::options()
        .write(true)
        .open(dir.path().join("f"))
        .unwrap()
        .set_modified(ahead)
        .unwrap();
    std::thread::sleep(FRESH + Duration::from_millis(100));
    let file = at(&folder, b"f");
    assert_eq!(
        folder.read(&file, 0, 3, Reader::ThisProcess).unwrap().1,
        Keep::Yes
    );
    let owners = std::fs::Permissions::from_mode(0o640);
    std::fs::set_permissions(dir.path().join("f"), owners).unwrap();
    let file = at(&folder, b"f");
    assert_eq!(
        folder.read(&file, 0, 3, Reader::ThisProcess).unwrap().1,
        Keep::Never
    );
}

#[test]
fn no_more_files_stay_open_than_allowed() {
    let dir = tempfile::tempdir().unwrap();
    for i in 0..OPEN_MAX + 20 {
        std::fs::write(dir.path().join(i.to_string()), i.to_string()).unwrap();
    }
    let folder = LocalFolder::new(dir.path().to_str().unwrap());
    for i in 0..OPEN_MAX + 20 {
        let file = at(&folder, i.to_string().as_bytes());
        let bytes = folder
            .read(&file, 0, file.size as usize, Reader::ThisProcess)
            .unwrap()
            .0;
        assert_eq!(bytes, i.to_string());
    }
    assert_eq!(folder.open.lock().files.len(), OPEN_MAX);
}

/// Regression: what was mounted at a folder's path after it was opened was never seen.
#[test]
fn the_folder_is_where_its_path_leads_now() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("data");
    let folder = LocalFolder::new(place.to_str().unwrap());
    assert!(folder.probe().is_err(), "it is not there yet");
    std::fs::create_dir(&place).unwrap();
    std::fs::write(place.join("f"), b"one").unwrap();
    let one = at(&folder, b"f");
    assert_eq!(
        &folder.read(&one, 0, 3, Reader::ThisProcess).unwrap().0[..],
        b"one"
    );
    std::fs::rename(&place, dir.path().join("former")).unwrap();
    assert!(folder.stat(b"f").is_ok(), "nothing else is there");
    std::fs::create_dir(&place).unwrap();
    std::fs::write(place.join("g"), b"six").unwrap();
    std::thread::sleep(LOOK + Duration::from_millis(100));
    // A reader sees it as well, and nothing of the former one stays open.
    assert!(matches!(
        folder.read(&one, 0, 3, Reader::ThisProcess),
        Err(SourceError::NotFound { .. })
    ));
    assert!(folder.open.lock().files.is_empty());
    assert_eq!(list(&folder, b"").unwrap()[0].0, b"g");
    assert_eq!(
        &folder
            .read(&at(&folder, b"g"), 0, 3, Reader::ThisProcess)
            .unwrap()
            .0[..],
        b"six"
    );
}

/// Bytes that this thread has read until now, by the kernel's count.
fn read_bytes() -> u64 {
    let all = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    let first = all.lines().find_map(|line| line.strip_prefix("rchar: "));
    first.unwrap().parse().unwrap()
}

/// Regression: a home read bytes that it must give to no client, and then refused.
#[test]
fn what_is_not_for_everybody_is_not_even_read_for_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, vec![1; 1 << 20]).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let folder = LocalFolder::new(dir.path().to_str().unwrap());
    let file = at(&folder, b"f");
    let before = read_bytes();
    let read = folder.read(&file, 0, 1 << 20, Reader::AnyClient);
    assert!(matches!(read, Err(SourceError::Private { .. })), "{read:?}");
    assert!(read_bytes() - before < 1 << 19);
    let before = read_bytes();
    assert!(folder.read(&file, 0, 1 << 20, Reader::ThisProcess).is_ok());
    assert!(read_bytes() - before >= 1 << 20, "it can be told");
}

/// Regression: a public file was kept though it lies in a folder that others may not enter.
#[test]
fn what_lies_in_a_private_folder_is_private() {
    let mode = std::fs::Permissions::from_mode;
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), mode(0o755)).unwrap();
    let sub = dir.path().join("a/b");
    std::fs::create_dir_all(&sub).unwrap();
    std::fs::write(sub.join("f"), b"text").unwrap();
    let folder = LocalFolder::new(dir.path().to_str().unwrap());
    let file = at(&folder, b"a/b/f");
    let kept = |reader| folder.read(&file, 0, 4, reader).map(|(_, keep)| keep);
    assert_ne!(kept(Reader::AnyClient).unwrap(), Keep::Never);
    for private in ["a", "a/b"] {
        let private = dir.path().join(private);
        std::fs::set_permissions(&private, mode(0o750)).unwrap();
        folder.ways.lock().clear(); // as after a second
        assert!(matches!(
            kept(Reader::AnyClient),
            Err(SourceError::Private { .. })
        ));
        assert_eq!(kept(Reader::ThisProcess).unwrap(), Keep::Never);
        std::fs::set_permissions(&private, mode(0o755)).unwrap();
        folder.ways.lock().clear();
        assert_ne!(kept(Reader::AnyClient).unwrap(), Keep::Never);
    }
    std::os::unix::fs::symlink("a/b", dir.path().join("link")).unwrap();
    let by_link = FileVersion {
        path: b"link/f".to_vec(),
        ..file
    };
    assert!(
        folder.stat(b"link/f").is_err(),
        "a link is shown, never followed"
    );
    let read = folder.read(&by_link, 0, 4, Reader::AnyClient);
    assert!(read.is_err(), "{read:?}");
    assert!(folder.stat(b"a").unwrap().for_all && folder.stat(b"").unwrap().for_all);
    std::fs::set_permissions(dir.path().join("a"), mode(0o711)).unwrap();
    assert!(!folder.stat(b"a").unwrap().for_all, "it may not be listed");
}
